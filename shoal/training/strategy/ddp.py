"""ddp: every rank holds all parameters; gradients are summed over ranks before the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from shoal.data.batch import Batch
from shoal.embedding.placements.replicated import SMALL, ReplicatedRows
from shoal.embedding.table import Table
from shoal.models.base import Model
from shoal.training.strategy.buckets import Buckets
from shoal.training.strategy.collective import Collective
from shoal.world.world import World


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"
    rows: ReplicatedRows

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        on_cpu = self.world.device.type == "cpu"
        self.fused = fused and on_cpu  # a GPU's kernels never write them
        self.overlap = self.world.size > 1 and not on_cpu  # on CPUs who sends would not compute
        self.buckets: Buckets | None = None

    def setup(self, model: Model, *given: Any, **how: Any) -> None:
        super().setup(model, *given, **how)
        size = sum(parameter.nbytes for parameter in self.dense)
        if self.overlap and size * self.world.size > SMALL:  # else they travel with the rows
            self.buckets = Buckets(self.dense, self.world)

    def going_back(self, count: int | Tensor) -> None:
        # A model that looks across the batch talks during backward, and not in a known order.
        across, self.gathered.called = self.gathered.called, False
        if self.buckets is not None and not across:
            self.buckets.begin()

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        lr = self.lr(lr)
        sums = self.forward_backward(parts, lr)
        seen = self.clip_grad_norm is not None
        if self.buckets is not None and self.buckets.begun:
            self.buckets.flush()
            tail, collect = self.rows.collect_with(self.tail(sums), seen)
            loss, scale, _ = self.mean_loss(tail)
            self.buckets.end(scale)
        else:
            flat, collect = self.rows.collect_with(self.flat_dense(sums), seen)
            loss, scale, _ = self.mean_dense(flat)
        gradients = self.clip(collect(scale))
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, scale)
        return loss

    def make_rows(self, tables: dict[str, Table]) -> ReplicatedRows:
        leaves = self.make_leaves(tables, self.fused, shared=True)
        return ReplicatedRows(leaves, self.rules, self.world)
