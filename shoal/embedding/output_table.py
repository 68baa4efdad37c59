"""OutputTable: a fixed table as the output layer of a model, and the softmax over all its rows.

    plain      all rows get a gradient, as in any other lookup (softmax/full.py)
    parallel   rows split over ranks: positions travel, rows stay (softmax/parallel.py)
    fused      rows are updated in `step`, and the gradient of the table is never written: by
               kernels on a GPU (softmax/fused.py), by the core on a CPU (softmax/fused_cpu.py)

The location of the rows decides which is used; all compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.engines.row_engine import flat_grads
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import EVERY, Ids
from shoal.embedding.rows.table import Table
from shoal.embedding.softmax.deferred import Deferred
from shoal.embedding.softmax.full import full_softmax_loss
from shoal.embedding.softmax.fused import FusedSoftmax, fusable
from shoal.embedding.softmax.fused_cpu import CoreSoftmax, fusable_on_cpu
from shoal.embedding.softmax.parallel import parallel_softmax_loss


@dataclass(frozen=True)
class InPlaceRows:
    """Rows of a table that are read in place: all of them, or this rank's share."""

    engine: Any  # a RowEngine; None: this rank has none of them
    split: tuple[Sharding, World] | None = None  # how ranks share them; None: all are here


class OutputTable:
    """A table that a softmax reads whole in every step, and a bias of dim 1 for each row."""

    def __init__(
        self,
        table: Table,
        bias: Table | None,
        rows: InPlaceRows | None,
        added: InPlaceRows | None,
        pull: Callable[[str, Ids, bool], Tensor],
        device: torch.device,
        alone: bool,
    ):
        """rows, added: table and bias in place (None: to be pulled); pull(table, ids, learn).

        alone: nothing else reads these tables in training.
        """
        if table.rows is None:
            raise ValueError(f"table {table.name!r} grows: it has no whole for a softmax")
        if table.padding != 0:
            raise ValueError(
                f"table {table.name!r} has padding={table.padding}; a softmax over all rows takes "
                "row 0 for padding: make it with padding=0"
            )
        self.table, self.bias, self.num_rows = table, bias, table.rows
        self.rows, self.added, self.alone = rows, added, alone
        self._pull, self._device = pull, device
        self._read: list[tuple[str, Tensor]] = []  # rows that backward leaves gradients on
        self._deferred: list[Deferred] = []  # since the last step
        self._candidates: dict[int, tuple[Tensor, Tensor]] = {}  # by `stop`, see _places

    def loss(self, hidden: Tensor, targets: Tensor, stop: int | None, learn: bool) -> Tensor:
        """The softmax loss over all rows, as Embeddings.full_softmax describes it."""
        stop = stop or self.num_rows
        if self.rows is not None and self.rows.split is not None:
            return self._parallel(self.rows, *self.rows.split, hidden, targets, stop, learn)
        rows = None if self.rows is None else self.rows.engine
        bias = None if self.added is None else self.added.engine
        if rows is not None and learn and self.alone and fusable(rows, bias):
            return FusedSoftmax(rows, bias, targets, stop, self._deferred.append).loss(hidden)
        fused = self._in_core(learn, rows, bias, _outside(self.num_rows, stop))
        added = None if self.bias is None else self._all(self.bias, self.added, learn).squeeze(1)
        items = self._all(self.table, self.rows, learn)
        return full_softmax_loss(hidden, items, targets, None, added, stop, fused)

    def _all(self, table: Table, in_place: InPlaceRows | None, learn: bool) -> Tensor:
        """Every row of a table: the engine's own memory where it is here."""
        if in_place is None or in_place.split is not None:
            return self._pull(table.name, EVERY, learn)
        return self._own(table, in_place, learn)

    def _own(self, table: Table, in_place: InPlaceRows, learn: bool) -> Tensor:
        """The rows of a table that this process holds [k, dim]: read at once, not kept."""
        if in_place.engine is None:
            return torch.empty(0, table.dim, device=self._device)
        view = in_place.engine.view_rows()
        rows = in_place.engine.pull(EVERY).to(self._device) if view is None else view.detach()
        if learn:
            self._read.append((table.name, rows.requires_grad_()))
        return rows

    def _in_core(self, learn: bool, rows: Any, bias: Any, others: Tensor) -> CoreSoftmax | None:
        fused_engines = fusable_on_cpu(rows, bias) if learn and self.alone else None
        return (
            None
            if fused_engines is None
            else CoreSoftmax(*fused_engines, others, self._deferred.append)
        )

    # ---- after backward -------------------------------------------------------------------------

    @property
    def deferred_tables(self) -> list[str]:
        """Tables whose updates wait for `step`, once for each loss."""
        return [name for one in self._deferred for name in one.tables]

    def take_gradients(self, written: Collection[str]) -> list[tuple[str, Tensor]]:
        """Table and gradient [k, dim] of every row held here, since the last call.

        Gradients of deferred updates are written only for tables in `written`.
        """
        gradients = [(name, flat_grads(rows)) for name, rows in self._read if rows.grad is not None]
        self._read = []
        touched = {*written, *(name for name, _ in gradients)}
        still_deferred = []
        for update in self._deferred:
            if touched.isdisjoint(update.tables):
                still_deferred.append(update)
            else:
                gradients += zip(update.tables, update.gradients())
        self._deferred = still_deferred
        return gradients

    def step(self, lr: float, scale: float) -> None:
        """Make the deferred updates, by gradients times `scale`."""
        for update in self._deferred:
            update.step(lr, scale)
        self._deferred = []

    # ---- rows that are split over ranks ---------------------------------------------------------

    def _parallel(
        self,
        in_place: InPlaceRows,
        sharding: Sharding,
        world: World,
        hidden: Tensor,
        targets: Tensor,
        stop: int,
        learn: bool,
    ) -> Tensor:
        """The loss where every rank computes the logits of its own rows."""
        low, high = (int(x) for x in targets.aminmax()) if len(targets) else (1, 1)
        if not 0 <= low <= high < stop:
            raise ValueError(
                f"full_softmax over table {self.table.name!r}: targets are {low} to {high}; they "
                f"must be 1 to {stop - 1}, or 0 where a position does not count"
            )
        if low == 0:
            real = targets.nonzero().squeeze(1)
            hidden, targets = hidden[real], targets[real]
        place, others = self._places(sharding, world, stop)
        rows_engine, bias_engine, bias = in_place.engine, None, None
        if self.bias is not None:
            if self.added is not None and self.added.split == in_place.split:
                bias = self._own(self.bias, self.added, learn)
                bias_engine = self.added.engine
            else:
                ids = sharding.ids(world.rank).to(world.device)
                bias = self._pull(self.bias.name, ids, learn)
                rows_engine = None  # its gradients travel
            bias = bias.squeeze(1)
        return parallel_softmax_loss(
            world,
            hidden,
            self._own(self.table, in_place, learn),
            bias,
            targets,
            place,
            others,
            max(sharding.shares),
            self._in_core(learn, rows_engine, bias_engine, others),
        )

    def _places(self, sharding: Sharding, world: World, stop: int) -> tuple[Tensor, Tensor]:
        """The place of every candidate among this rank's rows (-1: not here) and the rows of this
        rank that are no candidates."""
        if stop not in self._candidates:
            ids = sharding.ids(world.rank)
            inside = (ids > 0) & (ids < stop)
            place = torch.full((self.num_rows,), -1)
            place[ids[inside]] = inside.nonzero().squeeze(1)
            others = (~inside).nonzero().squeeze(1)
            self._candidates[stop] = place.to(world.device), others.to(world.device)
        return self._candidates[stop]


@cache
def _outside(rows: int, stop: int) -> Tensor:
    """Rows of a whole table that are no candidates: padding, and those from `stop` on."""
    return torch.tensor([0, *range(stop, rows)])
