"""single: one process, rows in its own memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.optim.dense import dense_step
from shoal.embedding.placed.local import LocalRows
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.models.base import Output
from shoal.training.strategy.back import go_back
from shoal.training.strategy.base import Strategy
from shoal.world.world import World


class Single(Strategy):
    """The reference that every other strategy must equal."""

    name = "single"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        return LocalRows(self.make_leaves(tables, self.fused), self.rules, self.world.device)

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        lr, scale = self.lr(lr), 1.0
        if len(parts) == 1:
            output = self.forward(parts[0], lr)
            share = share_of(output)
            go_back(output.loss, share)
            loss = output.loss.detach() * share
        else:
            sums = self.backward(parts, lr)
            scale = 1.0 / max(1.0, float(sums.count))
            loss = sums.loss * scale
            for parameter in self.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        gradients = self.clip(self.rows.collect(scale))
        self.step_dense(lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def step_dense(self, lr: float) -> None:
        """Update the dense parameters."""
        if self.dense_optimizer is not None:
            dense_step(self.dense_optimizer, lr)


def share_of(output: Output) -> Tensor:
    """1 / the terms of a batch's loss, shaped as it is, to go back with.

    Scaling what backward begins with costs nothing; scaling the gradients afterwards would.
    """
    loss, count = output.loss, output.count
    if isinstance(count, Tensor):  # a GPU is not waited for
        return count.clamp(min=1).to(loss).reciprocal().view_as(loss)
    return torch.full_like(loss, 1.0 / count if count else 0.0)
