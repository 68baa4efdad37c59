"""sharded: tables are spread over the ranks; ids go to the owners, rows come back.

Every rank holds only its share of the rows and their optimizer state. Bytes on the wire grow with
the distinct rows that a batch touches, never with a table. Gradients of a row are summed over the
ranks at its owner before the row's optimizer sees them.
"""

import logging

import torch

from shoal.config.key_applicability import EACH_STEP
from shoal.config.schema import StrategySection
from shoal.distributed.subworld import cut
from shoal.distributed.world import World
from shoal.embedding.placements.groups import RankGroups
from shoal.embedding.placements.row_requests import WirePrecision
from shoal.embedding.placements.shard_engine import make_shard_engines
from shoal.embedding.placements.sharded import ShardedRows
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.placements.table_plan import TablePlan, plan_tables
from shoal.embedding.rows.admission import admission_of
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.training.strategies.base import Strategy

log = logging.getLogger("shoal")


class Sharded(Strategy):
    """Rows with their owners, all-reduced dense gradients."""

    name = "sharded"

    def __init__(self, world: World | None = None, section: StrategySection | None = None):
        super().__init__(world)
        self.section = section or StrategySection(name="sharded")
        self.prefetches = self.section.prefetch

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self.plan, section = self.make_plan(tables, self.section), self.section
        if section.groups_every > 1 and (self.rules or self.clip_grad_norm is not None):
            raise ValueError(f"strategy.groups_every: {EACH_STEP}")
        group, peers = cut(self.world, section.groups)
        if tables:
            group_text = "" if section.groups == 1 else f", in each of {section.groups} groups"
            log.info("tables over %d processes%s:\n%s", group.size, group_text, self.plan)
        shardings, rank = self.plan.shardings, group.rank
        admissions = {
            name: admission_of(self.rules.get(name), sharding.share(rank))
            for name, sharding in shardings.items()
        }
        # Gradients of rows that groups sum between them must be written.
        fused = section.fused and self.world.device.type == "cpu" and section.groups == 1
        engines = make_shard_engines(
            shardings,
            rank,
            self.row_optimizers,
            self.seed,
            admissions=admissions,
            device=self.world.device,
            fused=fused and self.clip_grad_norm is None,
            tiers=self.tiers,
        )
        placed = {
            name: ShardedTable(
                sharding, group, self.row_optimizers[name], engines.get(name), admissions[name]
            )
            for name, sharding in shardings.items()
        }
        self.row_world = group
        groups = None
        if section.groups > 1:
            groups = RankGroups(self.world, peers, section.groups_every)
        return ShardedRows(
            group, placed, self.rules, groups, WirePrecision(getattr(torch, section.wire_dtype))
        )

    def make_plan(self, tables: dict[str, Table], section: StrategySection) -> TablePlan:
        """Where each table goes."""
        names = [table.name for m in self.embeddings for table in m.fields.values()]
        lookups = {name: names.count(name) for name in tables}
        return plan_tables(tables, self.world.size, section, self.row_optimizers, lookups)
