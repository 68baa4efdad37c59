"""ddp: every rank holds all parameters; gradients are summed over ranks before the update."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.optim.dense import dense_step
from shoal.embedding.placed.replicated import ReplicatedRows
from shoal.embedding.table import Table
from shoal.training.strategy.collective import Collective
from shoal.world.world import World


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"
    rows: ReplicatedRows

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused and self.world.device.type == "cpu"  # a GPU's kernels never write them

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        lr = self.lr(lr)
        sums = self.backward(parts, lr)
        flat, collected = self.rows.collect_with(self.flat_dense(sums))
        loss, scale, _ = self.mean_dense(flat)
        gradients = self.clip({name: one.scaled(scale) for name, one in collected.items()})
        if self.dense_optimizer is not None:
            dense_step(self.dense_optimizer, lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def make_rows(self, tables: dict[str, Table]) -> ReplicatedRows:
        return ReplicatedRows(self.make_leaves(tables, self.fused), self.rules, self.world)
