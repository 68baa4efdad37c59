"""sharded: tables are spread over the ranks; ids go to the owners, rows come back.

Every rank holds only its share of the rows and their optimizer state. Bytes on the wire grow with
the distinct rows that a batch touches, never with a table. Gradients of a row are summed over the
ranks at its owner before the row's optimizer sees them.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from shoal.config.schema import StrategySection
from shoal.config.tiers import TiersSection
from shoal.data.batch import Batch
from shoal.embedding.leaves.admission import admission_of
from shoal.embedding.leaves.budgets import share_out
from shoal.embedding.placed.planner import Plan, plan_tables
from shoal.embedding.placed.sharded import ShardedRows
from shoal.embedding.placed.sharded_table import ShardedTable
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.training.strategy.collective import Collective
from shoal.world.world import World

log = logging.getLogger("shoal")


class Sharded(Collective):
    """Rows with their owners, all-reduced dense gradients."""

    name = "sharded"
    spreads_rows = True

    def __init__(self, world: World | None = None, section: StrategySection | None = None):
        super().__init__(world)
        self.section = section or StrategySection(name="sharded")

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self.plan = self.make_plan(tables, self.section)
        if tables:
            log.info("tables over %d processes:\n%s", self.world.size, self.plan)
        fused = self.section.fused and self.world.device.type == "cpu"
        shares = self._share_tiers()
        placed = {
            name: ShardedTable(
                layout,
                self.world,
                self.row_optimizers[name],
                self.seed,
                fused and self.clip_grad_norm is None,
                admission_of(self.rules.get(name), layout.share(self.world.rank)),
                shares.get(name),
            )
            for name, layout in self.plan.layouts.items()
        }
        return ShardedRows(self.world, placed, self.rules)

    def _share_tiers(self) -> dict[str, TiersSection]:
        """Of each table that this rank holds rows of: its share of the rank's budgets."""
        layouts, rank = self.plan.layouts, self.world.rank
        held = {
            name: replace(layout.table, dim=layout.width(rank), rows=layout.shares[rank] or None)
            for name, layout in layouts.items()
            if layout.holds(rank)
        }
        shares = share_out(held, self.row_optimizers, self.tiers)
        return {
            name: self.tiers
            if one.slots is None
            else self.tiers.model_copy(update={"host": one.bytes})
            for name, one in shares.items()
        }

    def make_plan(self, tables: dict[str, Table], section: StrategySection) -> Plan:
        """Where each table goes."""
        names = [table.name for m in self.embeddings for table in m.fields.values()]
        lookups = {name: names.count(name) for name in tables}
        return plan_tables(tables, self.world.size, section, self.row_optimizers, lookups)

    def prefetch(self, batch: Batch) -> None:
        """Let the ids of a coming batch travel while the present one computes."""
        if self.section.overlap:
            self.rows.announce(batch, self.lookups(batch))
