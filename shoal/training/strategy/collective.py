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
        loss, scale, notes = self._sum_dense(sums, self.rows.note())
        gradients = self.clip(self.rows.collect(scale, notes))
        if self.dense_optimizer is not None:
            dense_step(self.dense_optimizer, lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def _sum_dense(self, sums: Sums, note: float) -> tuple[Tensor, float, float]:
        """Dense gradients of the global batch's mean loss; that loss, 1 / its count, all notes.

        One all-reduce carries the dense gradients, the loss, the count and the rows' note.
        """
        grads = []
        for parameter in self.dense:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        count = torch.as_tensor(sums.count).to(sums.loss)
        tail = torch.stack([sums.loss, count, sums.loss.new_tensor(note)])
        flat = self.world.all_reduce(torch.cat([g.reshape(-1) for g in grads] + [tail]))
        total, notes = flat[-2:].tolist()
        scale = 1.0 / total if total else 0.0
        mean, position = flat[:-3].mul_(scale), 0
        for parameter, grad in zip(self.dense, grads):
            parameter.grad = mean[position : position + grad.numel()].view_as(grad)
            position += grad.numel()
        return flat[-3] * scale, scale, notes
