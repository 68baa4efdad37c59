"""sharded with backend torchrec: rows live in TorchRec's collections, FBGEMM updates them.

The same numbers as the native backend, by other code: an oracle for it, and a way to use TorchRec's
kernels under a model and a config of Shoal's. What it cannot do is refused here, before the start.
"""

import logging

from shoal.embedding.placements.torchrec import OPTIMIZERS, TorchRecRows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.optimizers.selection import row_optimizer_of
from shoal.training.strategies.sharded import Sharded

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
        """Refuse settings that TorchRec does not support, and name what to set instead."""
        section, optimizer = self.section, row_optimizer_of(self.optimizer_section)
        plain = RowOptimizer(self.optimizer_section.name, optimizer.weight_decay)
        has = f"FBGEMM updates rows by {' and '.join(OPTIMIZERS)}, without weight_decay"
        refused = {
            "train.optimizer.rows": any(one != plain for one in self.row_optimizers.values()),
            f"train.optimizer.name={self.optimizer_section.name} ({has})": (
                optimizer.name not in OPTIMIZERS
            ),
            f"train.optimizer.weight_decay ({has})": optimizer.weight_decay > 0,
            "train.clip_grad_norm (rows are updated within backward)": self.clip_grad_norm,
        }
        for table in tables.values():
            overrides, name = section.tables.get(table.name, {}), f"table {table.name!r}"
            place = overrides.get("place", "auto")
            place = section.place if place == "auto" else place
            by = overrides.get("by", "range")
            refused[f"{name} that grows: give it rows"] = table.rows is None
            refused[f"{name} placed by {place}, but by row"] = place not in ("auto", "row")
            refused[f"{name} cut by {by}, but by range"] = by != "range"
        for setting, is_set in refused.items():
            if is_set:
                raise ValueError(
                    f"strategy.backend torchrec does not support {setting}; leave that out, or set "
                    "strategy.backend=native"
                )
