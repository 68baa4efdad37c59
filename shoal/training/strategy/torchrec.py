"""sharded with backend torchrec: rows live in TorchRec's collections, FBGEMM updates them.

The same numbers as the native backend, by other code: an oracle for it, and a way to use TorchRec's
kernels under a model and a config of Shoal's. What it cannot do is refused here, before the start.
"""

from __future__ import annotations

import logging

from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.placed.planner import plan_tables
from shoal.embedding.placed.torchrec import OPTIMIZERS, TorchRecRows
from shoal.embedding.store import Store
from shoal.embedding.table import Table
from shoal.training.strategy.base import Gradients
from shoal.training.strategy.sharded import Sharded

log = logging.getLogger("shoal")


class ShardedByTorchRec(Sharded):
    """Rows with their owners as TorchRec cuts them, all-reduced dense gradients."""

    cannot_count = (
        "backend torchrec has no tables that grow, and only their ids are counted; set "
        "strategy.backend=native, or leave the section out"
    )
    exchange: TorchRecRows

    def make_stores(self, tables: dict[str, Table]) -> dict[str, Store]:
        self._refuse(tables)
        by_rows = self.section.model_copy(update={"place": "row", "row_by": "range"})
        names = [table.name for m in self.embeddings for table in m.fields.values()]
        lookups = {name: names.count(name) for name in tables}
        size = self.world.size
        self.plan = plan_tables(tables, size, by_rows, self.row_optimizer, lookups)
        if tables:
            log.info("tables over %d processes, by TorchRec:\n%s", size, self.plan)
        self.exchange = TorchRecRows(
            self.world, list(tables.values()), self.row_optimizer, self.seed
        )
        for module in self.embeddings:
            module.exchange = self.exchange
        self._unstaged = set()
        return dict(self.exchange.stores)

    def _refuse(self, tables: dict[str, Table]) -> None:
        """Say what TorchRec cannot do, and what to do instead."""
        optimizer, section = self.row_optimizer, self.section
        reason = None
        if optimizer.name not in OPTIMIZERS:
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

    def prefetch(self, batch: Batch) -> None:
        """Nothing travels ahead."""

    def train_step(self, batch: Batch, lr: float | None = None) -> Tensor:
        self.exchange.set_lr(self.optimizer_section.lr if lr is None else lr)
        return super().train_step(batch, lr)

    def note(self) -> float:
        return 0.0  # a gradient of zeros changes nothing, so unused rows need no mention

    def exchange_rows(self, scale: float, notes: float) -> Gradients:
        if self.exchange.staged is not None:
            self._unstaged |= self.exchange.staged.parts.keys() - self.exchange.found
        self._scale = scale
        return {}

    def push(self, gradients: Gradients, lr: float) -> None:
        self.exchange.teach(self._scale, lr)
        for store in self.stores.values():
            store.step += 1
