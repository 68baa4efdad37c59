"""Collective: the step that ddp and sharded share, dense parameters that agree by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.training.strategy.base import Strategy, Sums
from shoal.world.world import World


class Collective(Strategy):
    """Replicated dense parameters, summed gradients; the row service says where rows are."""

    def __init__(self, world: World | None = None):
        super().__init__(world)
        self._tail = torch.zeros(3)  # made once: a step of a small model is made of such calls
        self._tail_numbers = self._tail.numpy()  # the same memory

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        lr = self.lr(lr)
        sums = self.forward_backward(parts, lr)
        flat = self.world.all_reduce(self.flat_dense(sums, self.rows.note()))
        loss, scale, notes = self.mean_dense(flat)
        gradients = self.clip(self.rows.collect(scale, notes))
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def flat_dense(self, sums: Sums, note: float = 0.0) -> Tensor:
        """What ranks add up: the dense gradients, the loss, its count, and a note of the rows."""
        if not self.dense:
            return self.tail(sums, note)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dense]
        return torch.cat([grad.reshape(-1) for grad in grads] + [self.tail(sums, note)])

    def tail(self, sums: Sums, note: float = 0.0) -> Tensor:
        """The loss, its count, and a note of the rows: [3]."""
        if sums.loss.dtype == torch.float32 and sums.loss.is_cpu:  # nothing is waited for
            self._tail_numbers[:] = float(sums.loss), float(sums.count), note
            return self._tail
        count = torch.as_tensor(sums.count).to(sums.loss)
        return torch.stack([sums.loss, count, sums.loss.new_tensor(note)])

    def mean_dense(self, flat: Tensor) -> tuple[Tensor, float, float]:
        """Dense gradients of the global batch's mean loss; that loss, 1 / its count, all notes."""
        if not self.dense:
            return self.mean_loss(flat)
        loss, scale, notes = self.mean_loss(flat[-3:])
        mean, position = flat[:-3].mul_(scale), 0
        for parameter in self.dense:
            size = parameter.numel()
            parameter.grad = mean[position : position + size].view_as(parameter)
            position += size
        return loss, scale, notes

    def mean_loss(self, tail: Tensor) -> tuple[Tensor, float, float]:
        """The global batch's mean loss, 1 / its count, all notes; tail [3]: summed over ranks."""
        _, total, notes = tail.tolist()
        scale = 1.0 / total if total else 0.0
        return tail[0] * scale, scale, notes
