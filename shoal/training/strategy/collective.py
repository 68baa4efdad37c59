"""Collective: the step that ddp and sharded share, dense parameters that agree by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.optim.dense import dense_step
from shoal.training.strategy.base import Strategy, Sums


class Collective(Strategy):
    """Replicated dense parameters, summed gradients; the row service says where rows are."""

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        lr = self.lr(lr)
        sums = self.backward(parts, lr)
        flat = self.world.all_reduce(self.flat_dense(sums, self.rows.note()))
        loss, scale, notes = self.mean_dense(flat)
        gradients = self.clip(self.rows.collect(scale, notes))
        if self.dense_optimizer is not None:
            dense_step(self.dense_optimizer, lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def flat_dense(self, sums: Sums, note: float = 0.0) -> Tensor:
        """What ranks add up: the dense gradients, the loss, its count, and a note of the rows."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dense]
        count = torch.as_tensor(sums.count).to(sums.loss)
        tail = torch.stack([sums.loss, count, sums.loss.new_tensor(note)])
        return torch.cat([grad.reshape(-1) for grad in grads] + [tail])

    def mean_dense(self, flat: Tensor) -> tuple[Tensor, float, float]:
        """Dense gradients of the global batch's mean loss; that loss, 1 / its count, all notes."""
        total, notes = flat[-2:].tolist()
        scale = 1.0 / total if total else 0.0
        mean, position = flat[:-3].mul_(scale), 0
        for parameter in self.dense:
            size = parameter.numel()
            parameter.grad = mean[position : position + size].view_as(parameter)
            position += size
        return flat[-3] * scale, scale, notes
