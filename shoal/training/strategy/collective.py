"""Collective: the step that ddp and sharded share, dense parameters that agree by all-reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.training.strategy.base import Strategy, Sums
from shoal.training.strategy.buckets import Buckets


class Collective(Strategy):
    """Replicated dense parameters, summed gradients; the row service says where rows are."""

    buckets: Buckets | None = None  # dense gradients that are summed during backward

    def update(self, sums: Sums, lr: float) -> Tensor:
        collected = self.rows.collect(self.dense_sums(sums))
        loss, scale = self.set_dense_gradients(collected.dense)
        gradients, row_scale = self.clip(collected.rows, scale)
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, row_scale)
        return loss

    def dense_sums(self, sums: Sums) -> list[Tensor]:
        """What ranks add up: dense gradients, unless buckets did, the loss, its count, and how
        many ranks have a gradient of each parameter."""
        count = torch.as_tensor(sums.count).to(sums.loss)
        tail = [sums.loss.reshape(1), count.reshape(1)]
        if self.buckets is not None and self.buckets.begun:
            self.buckets.flush()
            return [torch.cat(tail)]
        if not self.dense:
            return [torch.cat(tail)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dense]
        had = [float(p.grad is not None) for p in self.dense]
        return [*(g.reshape(-1).to(sums.loss) for g in grads), *tail, sums.loss.new_tensor(had)]

    def set_dense_gradients(self, flat: Tensor) -> tuple[Tensor, float]:
        """Dense gradients of the global batch's mean loss; that loss, and 1 / its count.

        A parameter that no rank has a gradient of keeps none, as in one process.
        """
        size = sum(p.numel() for p in self.dense)
        if len(flat) == 2:  # buckets, or no parameters
            loss, count = flat[0], float(flat[1])
        else:
            loss, (count, *had) = flat[size], flat[size + 1 :].tolist()
        scale = 1.0 / count if count else 0.0
        if len(flat) == 2 and self.buckets is not None:
            self.buckets.end(scale)
        elif len(flat) > 2:
            means = flat[:size].mul_(scale).split([p.numel() for p in self.dense])
            for parameter, mean, some in zip(self.dense, means, had):
                if some:
                    parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        return loss * scale, scale
