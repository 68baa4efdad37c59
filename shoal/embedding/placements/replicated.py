"""ReplicatedRows: every rank holds every row. Of tables only what a batch touched travels.

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
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.output_table import Held, OutputTable
from shoal.embedding.placements.local import LocalRows, join
from shoal.embedding.placements.stripe import Stripe
from shoal.embedding.rows.store import EVERY, Every, Store
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Collected, Gradients, Lookup, RowGradients, join_flat
from shoal.embedding.softmax.fused_cpu import fusable_on_cpu
from shoal.world.world import World

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
        """All of it is one trip where `dense` is small.

        Gradients of every row of a table (a softmax over it) are summed as a larger `dense` is.
        """
        whole = [output for output in self._outputs if output.table.name not in self._stripes]
        alone = self.world.size == 1  # else gradients of other ranks are added to all of them
        outputs = self._take_outputs(self._touched() if alone else self.engines.keys(), whole)
        every: Gradients = {}
        mine: dict[str, list[Tensor]] = {}  # distinct ids, sums of gradients and of counts
        for name, engine in self.engines.items():
            parts = outputs.get(name, []) + self._take_pulled(name)
            joined = join(parts, engine.table.dim, name in self.counted)
            if isinstance(joined.ids, Every):
                every[name] = RowGradients(EVERY, self.world.all_reduce(joined.grads))
            else:
                one = joined.summed(engine.table.rows)
                assert not isinstance(one.ids, Every)
                counts = [] if one.counts is None else [one.counts]
                mine[name] = [one.ids, one.grads, *counts]
        flat, gathered = self._gather(join_flat(dense, self.device), mine)
        gradients = every | gathered
        return Collected(flat, gradients | self._of_stripes(gradients))

    def _gather(self, flat: Tensor, mine: dict[str, list[Tensor]]) -> tuple[Tensor, Gradients]:
        """The sum of everybody's `flat`, and the rows' gradients of all ranks."""
        rides = flat.nbytes * self.world.size <= SMALL_DENSE
        travelling = None if rides else self.world.start_all_reduce(flat)
        parts = [part.to(self.device) for parts in mine.values() for part in parts]
        heads, *joined = self.world.gather([flat if rides else flat[:0], *parts])[0]
        if travelling is None:
            first, *others = heads.view(self.world.size, -1).unbind()
            flat = sum(others, first)
        else:
            flat = travelling.wait()
        came = iter(joined)
        return flat, {
            name: RowGradients(
                *islice(came, len(mine[name])), padding=self.engines[name].table.padding
            )
            for name in mine
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
        """Let each rank update a stripe of these tables, where that is worth it."""
        size, engines = self.world.size, [self.engines[name] for name in names]
        rows = engines[0].table.rows or 0
        if size == 1 or rows < size or rows * engines[0].table.dim < STRIPED:
            return
        found = fusable_on_cpu(*engines)
        able = torch.tensor([float(found is not None)], device=self.device)
        votes = self.world.all_reduce(able)
        if found is None or float(votes) < size:  # a rank may run on a machine that cannot
            return
        for name, engine in zip(names, found):
            assert engine is not None
            self._stripes[name] = Stripe(engine, self.world)

    def _held(self, name: str) -> Held | None:
        if name not in self._stripes:
            return super()._held(name)
        return Held(self._stripes[name], (self._stripes[name].sharding, self.world))

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
        own = self._take_outputs([name for name, some in looked_up.items() if some], striped)
        return {
            name: join(own.get(name, []) + looked_up[name], stripe.table.dim, counted=False)
            for name, stripe in self._stripes.items()
        }

    def _fetch_stripes(self) -> None:
        """All ranks: bring every replica up to date."""
        if not self._stale:
            return
        for stripe in self._stripes.values():
            for mine, every in stripe.pieces():
                every.copy_(self.world.all_gather(mine))
        self._stale = False

    def saved(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().saved()
