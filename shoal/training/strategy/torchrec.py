"""sharded with backend torchrec: rows live in TorchRec's collections, FBGEMM updates them.

The same numbers as the native backend, by other code: an oracle for it, and a way to use TorchRec's
kernels under a model and a config of Shoal's. What it cannot do is refused here, before the start.
"""

from __future__ import annotations

import logging

from shoal.embedding.optim.chosen import row_optimizer_of
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placements.torchrec import OPTIMIZERS, TorchRecRows
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.training.strategy.sharded import Sharded

log = logging.getLogger("shoal")


class ShardedByTorchRec(Sharded):
    """Rows with their owners as TorchRec cuts them, all-reduced dense gradients."""

    cannot_count = (
        "backend torchrec has no tables that grow, and only their ids are counted; set "
        "strategy.backend=native, or leave the section out"
    )
    cannot_narrow = "backend torchrec keeps float32: set strategy.backend=native, or leave it out"

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        self._refuse(tables)
        self.prefetches = False
        by_rows = self.section.model_copy(update={"place": "row", "row_by": "range"})
        self.plan = self.make_plan(tables, by_rows)
        if tables:
            log.info("tables over %d processes, by TorchRec:\n%s", self.world.size, self.plan)
        optimizer = row_optimizer_of(self.optimizer_section)
        return TorchRecRows(self.world, list(tables.values()), optimizer, self.seed)

    def _refuse(self, tables: dict[str, Table]) -> None:
        """Say what TorchRec cannot do, and what to do instead."""
        optimizer, section = row_optimizer_of(self.optimizer_section), self.section
        plain = RowOptimizer(self.optimizer_section.name, optimizer.weight_decay)
        reason = None
        if any(one != plain for one in self.row_optimizers.values()):
            reason = (
                "train.optimizer.rows or train.optimizer.tables give rows an optimizer of their "
                "own: TorchRec's tables have that of train.optimizer; leave them out"
            )
        elif optimizer.name not in OPTIMIZERS:
            reason = (
                f"train.optimizer.name is {self.optimizer_section.name}: on CPUs FBGEMM updates "
                "rows by sgd and adagrad, and those alone are offered on GPUs too; use one of "
                f"{', '.join(OPTIMIZERS)}"
            )
        elif optimizer.weight_decay:
            reason = (
                f"train.optimizer.weight_decay is {optimizer.weight_decay}: FBGEMM's sgd and "
                "adagrad have none; set it to 0"
            )
        elif self.clip_grad_norm is not None:
            reason = (
                f"train.clip_grad_norm is {self.clip_grad_norm}: the optimizer runs within "
                "TorchRec's backward, before the norm of all gradients is known; leave it out"
            )
        for table in tables.values():
            own = section.tables.get(table.name, {})
            place = own.get("place", "auto")
            place = section.place if place == "auto" else place
            if table.rows is None:
                reason = f"table {table.name!r} grows: TorchRec's tables are fixed; give it rows"
            elif place not in ("auto", "row"):
                reason = (
                    f"table {table.name!r} is placed by {place}: it is cut by row only; set its "
                    "place to row or auto"
                )
            elif own.get("by", "range") != "range":
                reason = (
                    f"table {table.name!r} is cut by {own['by']}: TorchRec cuts by range; leave "
                    f"strategy.tables.{table.name}.by out"
                )
        if reason is not None:
            raise ValueError(
                f"strategy.backend torchrec cannot do it: {reason}, or set strategy.backend=native"
            )
