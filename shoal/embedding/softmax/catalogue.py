"""Catalogue: a fixed table that a softmax reads whole in every step, and how its rows are updated.

    plain      gradients of all rows, as of any other rows (full.py)
    parallel   rows spread over ranks: positions travel, rows stay (parallel.py)
    fused      rows are updated in `apply`, and the gradient of the table is never written: by
               kernels on a GPU (fused.py), by the native core on a CPU (fused_cpu.py)

Which of them is chosen by what the row service holds here; all give the same numbers.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.placements.placement import Layout
from shoal.embedding.service import Lookup, RowService
from shoal.embedding.softmax.full import full_softmax_loss
from shoal.embedding.softmax.fused import FusedSoftmax, fusable
from shoal.embedding.softmax.fused_cpu import CoreSoftmax, fusable_on_cpu
from shoal.embedding.softmax.parallel import parallel_softmax_loss
from shoal.embedding.store import EVERY
from shoal.embedding.table import Table
from shoal.world.world import World


class Catalogue:
    """A table as the output layer of a model, with a table of dim 1 that is added to the logits."""

    def __init__(self, service: RowService, table: Table, bias: Table | None, shared: set[str]):
        """`shared` are tables that lookups read too."""
        if table.rows is None:
            raise ValueError(f"table {table.name!r} grows: it has no whole for a softmax")
        if table.padding != 0:
            raise ValueError(
                f"table {table.name!r} has padding={table.padding}; a softmax over all rows takes "
                "row 0 for padding: make it with padding=0"
            )
        self.service, self.table, self.bias, self.rows = service, table, bias, table.rows
        names = [one.name for one in (table, bias) if one is not None]
        self._alone = shared.isdisjoint(names)
        if self._alone:
            service.read_whole(names)
        self._candidates: dict[int, tuple[Tensor, Tensor]] = {}  # by `stop`, see _places

    def loss(self, hidden: Tensor, targets: Tensor, stop: int | None, learn: bool) -> Tensor:
        """As Embeddings.full_softmax."""
        service, stop = self.service, stop or self.rows
        spread = service.spread(self.table.name)
        if spread is not None:
            return self._parallel(*spread, hidden, targets, stop, learn)
        rows = service.leaf(self.table.name)
        bias = None if self.bias is None else service.leaf(self.bias.name)
        found = fusable(rows, bias) if learn and self._alone else None
        if found is not None:
            return FusedSoftmax(*found, targets, stop, service).loss(hidden)
        fused = self._in_core(learn, rows, bias, _outside(self.rows, stop))
        added = None if self.bias is None else self._all(self.bias, learn).squeeze(1)
        items = self._all(self.table, learn)
        return full_softmax_loss(hidden, items, targets, None, added, stop, fused)

    def _all(self, table: Table, learn: bool) -> Tensor:
        """Every row of a table: the leaf's own memory where it is here."""
        service, name = self.service, table.name
        own = service.own(name, learn) if service.spread(name) is None else None
        return service.pull([Lookup(name, EVERY)], learn)[0] if own is None else own

    def _in_core(
        self, learn: bool, rows: RowEngine | None, bias: RowEngine | None, others: Tensor
    ) -> CoreSoftmax | None:
        found = fusable_on_cpu(rows, bias) if learn and self._alone else None
        return None if found is None else CoreSoftmax(*found, others, self.service)

    # ---- rows that are spread over ranks --------------------------------------------------------

    def _parallel(
        self,
        layout: Layout,
        world: World,
        hidden: Tensor,
        targets: Tensor,
        stop: int,
        learn: bool,
    ) -> Tensor:
        """Every rank makes the logits of its own rows."""
        service, name = self.service, self.table.name
        low, high = (int(x) for x in targets.aminmax()) if len(targets) else (1, 1)
        if not 0 <= low <= high < stop:
            raise ValueError(
                f"full_softmax over table {name!r}: targets are {low} to {high}; they must be 1 to "
                f"{stop - 1}, or 0 where a position does not count"
            )
        if low == 0:
            real = targets.nonzero().squeeze(1)
            hidden, targets = hidden[real], targets[real]
        place, others = self._places(layout, world, stop)
        rows_leaf, bias_leaf, bias = service.leaf(name), None, None
        if self.bias is not None:
            if service.spread(self.bias.name) == (layout, world):
                bias = service.own(self.bias.name, learn)
                bias_leaf = service.leaf(self.bias.name)
            else:
                ids = layout.ids(world.rank).to(world.device)
                bias = service.pull([Lookup(self.bias.name, ids)], learn)[0]
                rows_leaf = None  # its gradients travel
            assert bias is not None
            bias = bias.squeeze(1)
        rows = service.own(name, learn)
        assert rows is not None
        return parallel_softmax_loss(
            world,
            hidden,
            rows,
            bias,
            targets,
            place,
            others,
            max(layout.shares),
            self._in_core(learn, rows_leaf, bias_leaf, others),
        )

    def _places(self, layout: Layout, world: World, stop: int) -> tuple[Tensor, Tensor]:
        """The place of every candidate among this rank's rows (-1: not here) and the rows of this
        rank that are no candidates."""
        if stop not in self._candidates:
            ids = layout.ids(world.rank)
            inside = (ids > 0) & (ids < stop)
            place = torch.full((self.rows,), -1)
            place[ids[inside]] = inside.nonzero().squeeze(1)
            others = (~inside).nonzero().squeeze(1)
            self._candidates[stop] = place.to(world.device), others.to(world.device)
        return self._candidates[stop]


@cache
def _outside(rows: int, stop: int) -> Tensor:
    """Rows of a whole table that are no candidates: padding, and those from `stop` on."""
    return torch.tensor([0, *range(stop, rows)])
