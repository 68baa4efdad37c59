"""ddp: every process has all rows, and gradients of those that were touched travel."""

from shoal.distributed.world import World
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.training.strategies.base import Strategy


class DDP(Strategy):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused and self.world.device.type == "cpu"  # a GPU's kernels never write them

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        rows = ReplicatedRows(engines, self.rules, self.world)
        self.prefetches = bool(rows.offloaded_tables)
        return rows
