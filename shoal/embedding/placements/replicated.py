"""ReplicatedRows: every rank holds every row. Only the rows that a batch touched travel.

Bytes on the wire grow with the batch, never with the table. Every rank applies the same sums in the
same order, so replicas stay equal bit for bit. Large tables that a softmax alone reads are updated
in stripes, one on each rank (see stripe.py); replicas of those are equal once they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.distributed.world import World
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.output_table import InPlaceRows, OutputTable
from shoal.embedding.placements.stripe import Stripe
from shoal.embedding.rows.store import EVERY, Every, Store
from shoal.embedding.rows.table import Table
from shoal.embedding.service import (
    Collected,
    Gradients,
    LocalRows,
    Lookup,
    RowGradients,
    join,
    join_flat,
)
from shoal.embedding.softmax.fused_cpu import fusable_on_cpu

# Bytes of all ranks' dense gradients that may travel with the rows, to be added up by each:
SMALL_DENSE = 1 << 20
STRIPED = 1 << 20  # floats of a table that is worth three more trips in every softmax


class ReplicatedRows(LocalRows):
    """Local rows whose gradients are those of all ranks."""

    def __init__(
        self, engines: Mapping[str, RowEngine], rules: Mapping[str, RowRules] | None, world: World
    ):
        super().__init__(engines, rules, world.device)
        self.world = world
        self._stripes: dict[str, Stripe] = {}
        self._stale = False  # whether the other ranks' stripes have changed since they were fetched

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if any(one.table in self._stripes for one in lookups):
            self._fetch_stripes()
        return super().pull(lookups, learn)

    # ---- gradients of all ranks -----------------------------------------------------------------

    def collect(self, dense: Sequence[Tensor] = ()) -> Collected:
        """Collect dense and rows' gradients of all ranks: one trip where `dense` is small.

        Gradients of every row of a table (a softmax over it) are summed as a larger `dense` is.
        """
        whole = [output for output in self._outputs if output.table.name not in self._stripes]
        alone = self.world.size == 1  # else gradients of other ranks are added to all of them
        outputs = self._take_outputs(self._touched() if alone else self.engines.keys(), whole)
        whole_gradients: Gradients = {}
        own_parts: dict[str, list[Tensor]] = {}  # distinct ids, sums of gradients and of counts
        for name, engine in self.engines.items():
            parts = outputs.get(name, []) + self._take_pulled(name)
            joined = join(parts, engine.table.dim, name in self.counted)
            if isinstance(joined.ids, Every):
                whole_gradients[name] = RowGradients(EVERY, self.world.all_reduce(joined.grads))
            else:
                summed = joined.summed(engine.table.rows)
                assert not isinstance(summed.ids, Every)
                counts = [] if summed.counts is None else [summed.counts]
                own_parts[name] = [summed.ids, summed.grads, *counts]
        flat, gathered = self._gather(join_flat(dense, self.device), own_parts)
        gradients = whole_gradients | gathered
        return Collected(flat, gradients | self._of_stripes(gradients))

    def _gather(self, flat: Tensor, own_parts: dict[str, list[Tensor]]) -> tuple[Tensor, Gradients]:
        """The sum of `flat` over ranks, and the rows' gradients of all ranks."""
        rides = flat.nbytes * self.world.size <= SMALL_DENSE
        travelling = None if rides else self.world.start_all_reduce(flat)
        parts = [part.to(self.device) for parts in own_parts.values() for part in parts]
        heads, *joined = self.world.gather([flat if rides else flat[:0], *parts])[0]
        if travelling is None:
            first, *others = heads.view(self.world.size, -1).unbind()
            flat = sum(others, first)
        else:
            flat = travelling.wait()
        received = iter(joined)
        return flat, {
            name: RowGradients(
                *islice(received, len(own_parts[name])), padding=self.engines[name].table.padding
            )
            for name in own_parts
        }

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        for name, stripe in self._stripes.items():
            stripe.step = self.engines[name].step
        super().apply(gradients, lr, scale)
        for name, stripe in self._stripes.items():
            self.engines[name].step, self._stale = stripe.step, True

    def synchronize(self) -> None:
        super().synchronize()
        self._fetch_stripes()

    # ---- tables of which each rank updates a stripe ---------------------------------------------

    def output_table(self, table: Table, bias: Table | None, alone: bool) -> OutputTable:
        if alone:
            self._cut([one.name for one in (table, bias) if one is not None])
        return super().output_table(table, bias, alone)

    def _cut(self, names: list[str]) -> None:
        """Let each rank update a stripe of these tables, where that saves time."""
        size, engines = self.world.size, [self.engines[name] for name in names]
        rows = engines[0].table.rows or 0
        if size == 1 or rows < size or rows * engines[0].table.dim < STRIPED:
            return
        fused_engines = fusable_on_cpu(*engines)
        can_fuse = torch.tensor([float(fused_engines is not None)], device=self.device)
        votes = self.world.all_reduce(can_fuse)
        if fused_engines is None or float(votes) < size:  # some rank's machine may not be able to
            return
        for name, engine in zip(names, fused_engines):
            assert engine is not None
            self._stripes[name] = Stripe(engine, self.world)

    def _rows_in_place(self, name: str) -> InPlaceRows | None:
        if name not in self._stripes:
            return super()._rows_in_place(name)
        return InPlaceRows(self._stripes[name], (self._stripes[name].sharding, self.world))

    def _updated(self, name: str) -> RowEngine:
        return self._stripes.get(name, self.engines[name])

    def _of_stripes(self, gathered: Gradients) -> Gradients:
        """Gradients of the rows of this rank's stripes: of a softmax, and of all ranks' lookups."""
        if not self._stripes:
            return {}
        looked_up = {}
        for name, stripe in self._stripes.items():
            ids, grads = gathered[name].ids, gathered[name].grads
            if isinstance(ids, Every):
                grads = grads[stripe.first : stripe.last]
            else:
                inside = (ids >= stripe.first) & (ids < stripe.last)
                ids, grads = ids[inside] - stripe.first, grads[inside]
            looked_up[name] = [RowGradients(ids, grads)] if len(grads) else []
        striped = [output for output in self._outputs if output.table.name in self._stripes]
        from_outputs = self._take_outputs(
            [name for name, some in looked_up.items() if some], striped
        )
        return {
            name: join(
                from_outputs.get(name, []) + looked_up[name], stripe.table.dim, counted=False
            )
            for name, stripe in self._stripes.items()
        }

    def _fetch_stripes(self) -> None:
        """Bring every replica up to date; all ranks call it."""
        if not self._stale:
            return
        for stripe in self._stripes.values():
            for stripe_part, replica in stripe.pieces():
                replica.copy_(self.world.all_gather(stripe_part))
        self._stale = False

    def saved(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().saved()
