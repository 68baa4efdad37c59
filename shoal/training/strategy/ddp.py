"""ddp: every rank holds all parameters; gradients are summed over ranks before the update."""

from __future__ import annotations

from typing import Any

from shoal.embedding.placements.replicated import SMALL_DENSE, ReplicatedRows
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.models.base import Model
from shoal.training.strategy.buckets import Buckets
from shoal.training.strategy.collective import Collective
from shoal.world.world import World


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        on_cpu = self.world.device.type == "cpu"
        self.fused = fused and on_cpu  # a GPU's kernels never write them
        self.overlap = self.world.size > 1 and not on_cpu  # on CPUs who sends would not compute

    def setup(self, model: Model, *given: Any, **how: Any) -> None:
        super().setup(model, *given, **how)
        size = sum(parameter.nbytes for parameter in self.dense)
        if self.overlap and size * self.world.size > SMALL_DENSE:  # else they go with the rows
            self.buckets = Buckets(self.dense, self.world)

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        self.prefetches = any(engine.offloaded for engine in engines.values())
        return ReplicatedRows(engines, self.rules, self.world)

    def before_last_backward(self) -> None:
        # A model that looks across the batch talks during backward, and not in a known order.
        across, self.gathered.called = self.gathered.called, False
        if self.buckets is not None and not across:
            self.buckets.begin()
