"""ddp: every rank holds all parameters; gradients are summed over ranks before the update."""

from __future__ import annotations

from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.training.strategy.collective import Collective
from shoal.world.world import World


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused and self.world.device.type == "cpu"  # a GPU's kernels never write them

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        self.prefetches = any(engine.offloaded for engine in engines.values())
        return ReplicatedRows(engines, self.rules, self.world)
