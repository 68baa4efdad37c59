"""single: one process, rows in its own memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.placements.local import LocalRows
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.models.base import Output
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
            mean = output.loss * share_of(output)
            mean.backward()
            loss = mean.detach()
        else:
            sums = self.forward_backward(parts, lr)
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
            self.dense_optimizer.step(lr)


def share_of(output: Output) -> float | Tensor:
    """1 / the terms of a batch's loss."""
    count = output.count
    if isinstance(count, Tensor):  # a GPU is not waited for
        return count.clamp(min=1).to(output.loss).reciprocal().view_as(output.loss)
    return 1.0 / count if count else 0.0
