"""sharded: tables are spread over the ranks; ids go to the owners, rows come back.

Every rank holds only its share of the rows and their optimizer state. Bytes on the wire grow with
the distinct rows that a batch touches, never with a table. Gradients of a row are summed over the
ranks at its owner before the row's optimizer sees them.
"""

from __future__ import annotations

import logging

from torch import Tensor

from shoal.config.schema import StrategySection
from shoal.data.batch import Batch
from shoal.embedding.leaves.admission import admission_of, tend
from shoal.embedding.placed.exchange import Exchange, Lookups
from shoal.embedding.placed.planner import Plan, plan_tables
from shoal.embedding.placed.sharded import Sharded as ShardedStore
from shoal.embedding.store import Store
from shoal.embedding.table import Table
from shoal.models.base import Output
from shoal.training.strategy.base import Gradients, sum_squares
from shoal.training.strategy.collective import Collective
from shoal.world.world import World

log = logging.getLogger("shoal")


class Sharded(Collective):
    """Rows with their owners, all-reduced dense gradients."""

    name = "sharded"
    spreads_rows = True
    stores: dict[str, ShardedStore]  # type: ignore[assignment]

    def __init__(self, world: World | None = None, section: StrategySection | None = None):
        super().__init__(world)
        self.section = section or StrategySection(name="sharded")
        self.fused = self.section.fused and self.world.device.type == "cpu"

    def make_stores(self, tables: dict[str, Table]) -> dict[str, Store]:
        names = [table.name for m in self.embeddings for table in m.fields.values()]
        lookups = {name: names.count(name) for name in tables}
        size = self.world.size
        self.plan: Plan = plan_tables(tables, size, self.section, self.row_optimizers, lookups)
        if tables:
            log.info("tables over %d processes:\n%s", size, self.plan)
        fused = self.fused and self.clip_grad_norm is None
        stores = {
            name: ShardedStore(
                layout,
                self.world,
                self.row_optimizers[name],
                self.seed,
                fused,
                admission_of(self.rules.get(name), layout.share(self.world.rank)),
            )
            for name, layout in self.plan.layouts.items()
        }
        self.exchange = Exchange(self.world, stores)
        for module in self.embeddings:
            module.exchange = self.exchange
        self._unstaged: set[str] = set()  # tables whose rows the model does not look up by batch
        return stores  # type: ignore[return-value]

    def prefetch(self, batch: Batch) -> None:
        """Let the ids of a coming batch travel while the present one computes."""
        lookups = self._lookups(batch) if self.section.overlap else []
        if lookups:
            self.exchange.announce(batch, lookups)

    def forward(self, batch: Batch) -> Output:
        if self.counted:
            self.exchange.labels = [one for m in self.embeddings for one in m.labels(batch)]
        lookups = self._lookups(batch)
        if lookups:
            self.exchange.stage(batch, lookups)
        output = self.compute(batch)
        self.exchange.advance()
        return output

    def _lookups(self, batch: Batch) -> Lookups:
        return [
            (name, ids)
            for module in self.embeddings
            for name, ids in module.lookups(batch)
            if name not in self._unstaged
        ]

    def note(self) -> float:
        return float(self.exchange.num_unused())

    def exchange_rows(self, scale: float, notes: float) -> Gradients:
        if self.exchange.staged is not None:
            # A model that reads whole tables (a graph's) asks for nothing of the batch's rows.
            self._unstaged |= self.exchange.staged.parts.keys() - self.exchange.found
        for module in self.embeddings:
            module.write_softmax()
        gradients = self.exchange.collect(scale, any_unused=notes > 0)
        self._counts = self.exchange.counts
        return gradients

    def push(self, gradients: Gradients, lr: float) -> None:
        for name, (keys, grads) in gradients.items():
            self.stores[name].push_owned(keys, grads, lr, self._counts.get(name))
        self._counts = {}
        for name, rules in self.rules.items():
            tend(self.stores[name], rules, self.stores[name].layout.num_shares)

    def row_squares(self, gradients: Gradients) -> Tensor:
        apart = [g for n, (_, g) in gradients.items() if not self.stores[n].layout.replicated]
        alike = [g for n, (_, g) in gradients.items() if self.stores[n].layout.replicated]
        mine = sum_squares(apart).reshape(1).to(self.world.device)
        return self.world.all_reduce(mine).cpu().squeeze(0) + sum_squares(alike)
