"""ReplicatedRows: every rank holds every row. Of tables only what a batch touched travels.

Bytes on the wire grow with the batch, never with the table. Every rank applies the same sums in the
same order, so replicas stay equal bit for bit. Large tables that a softmax reads whole are updated
in stripes, one on each rank (see stripe.py); replicas of those are equal once they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.placed.duplicates import sum_duplicates
from shoal.embedding.placed.local import LocalRows, join
from shoal.embedding.placed.placement import Layout
from shoal.embedding.placed.stripe import Stripe
from shoal.embedding.service import Gradients, Lookup, RowGradients
from shoal.embedding.softmax.fused_cpu import fusable_on_cpu
from shoal.embedding.store import EVERY, Every, Store
from shoal.world.world import World

SMALL = 1 << 20  # bytes of all ranks that may travel with the rows, to be added up by each
STRIPED = 1 << 20  # floats of a table that is worth three more trips in every softmax


class ReplicatedRows(LocalRows):
    """Local rows whose gradients are those of all ranks."""

    def __init__(
        self, leaves: Mapping[str, Leaf], rules: Mapping[str, RowRules] | None, world: World
    ):
        super().__init__(leaves, rules, world.device)
        self.world = world
        self._stripes: dict[str, Stripe] = {}
        self._stale = False  # whether the other ranks' stripes have changed since they were fetched

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        if any(one.table in self._stripes for one in lookups):
            self._fetch_stripes()
        return super().pull(lookups, learn)

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        _, gradients = self.collect_with(torch.empty(0, device=self.device))
        return {name: one.scaled(scale) for name, one in gradients.items()}

    def collect_with(self, flat: Tensor) -> tuple[Tensor, Gradients]:
        """The sum of everybody's `flat`, and everybody's gradients, in order of rank.

        All of it is one trip where `flat` is small. Gradients of every row of a table (a softmax
        over the catalogue) are summed on the way, as a larger `flat` is.
        """
        together = flat.nbytes * self.world.size <= SMALL
        # Else it travels while the rows' gradients are summed.
        apart = None if together else self.world.start_all_reduce(flat)
        result: Gradients = {}
        touched: dict[str, list[Tensor]] = {}  # ids, gradients, and counts where there are any
        # Those of other ranks are added to what a softmax would update by itself.
        self._write_late(self.leaves.keys() - self._stripes.keys() if self.world.size > 1 else ())
        self._labels = {}
        for name, leaf in self.leaves.items():
            own = [] if name in self._stripes else self._take_own(name)
            mine = join(own + self._take_pulled(name), leaf.table.dim, name in self.counted)
            if isinstance(mine.ids, Every):
                result[name] = RowGradients(EVERY, self.world.all_reduce(mine.grads))
                continue
            unique, summed = sum_duplicates(mine.ids, mine.grads, leaf.table.rows)
            touched[name] = [unique, summed]
            if mine.counts is not None:
                touched[name].append(sum_duplicates(mine.ids.cpu(), mine.counts)[1])
        mine_all = [part.to(self.device) for parts in touched.values() for part in parts]
        if together:
            mine_all.insert(0, flat)
        joined = iter(self.world.gather(mine_all)[0])
        if apart is not None:
            flat = apart.wait()
        else:
            first, *others = next(joined).view(self.world.size, -1).unbind()
            flat = sum(others, first)
        for name, parts in touched.items():
            result[name] = RowGradients(*(next(joined) for _ in parts))
        return flat, result | self._of_stripes(result)

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        for name, stripe in self._stripes.items():
            stripe.step = self.leaves[name].step
        super().apply(gradients, lr, scale)
        for name, stripe in self._stripes.items():
            self.leaves[name].step, self._stale = stripe.step, True

    def settle(self) -> None:
        super().settle()
        self._fetch_stripes()

    # ---- tables of which each rank updates a stripe ---------------------------------------------

    def read_whole(self, names: Sequence[str]) -> None:
        size, leaves = self.world.size, [self.leaves[name] for name in names]
        rows = leaves[0].table.rows or 0
        if size == 1 or rows < size or rows * leaves[0].table.dim < STRIPED:
            return
        found = fusable_on_cpu(*leaves[:2])
        able = found is not None and found[0].kernels is None
        votes = self.world.all_reduce(torch.tensor([float(able)], device=self.device))
        if found is None or float(votes) < size:  # a rank may run on a machine that cannot
            return
        for name, leaf in zip(names, found):
            assert leaf is not None
            self._stripes[name] = Stripe(leaf, self.world)

    def spread(self, name: str) -> tuple[Layout, World] | None:
        return (self._stripes[name].layout, self.world) if name in self._stripes else None

    def leaf(self, name: str) -> Leaf:
        return self._stripes.get(name, self.leaves[name])

    def _of_stripes(self, gathered: Gradients) -> Gradients:
        """Gradients of the rows of this rank's stripes: of a softmax, and of all ranks' lookups."""
        looked_up = {}
        for name, stripe in self._stripes.items():
            ids, grads = gathered[name].ids, gathered[name].grads
            if isinstance(ids, Every):
                grads = grads[stripe.first : stripe.last]
            else:
                inside = (ids >= stripe.first) & (ids < stripe.last)
                ids, grads = ids[inside] - stripe.first, grads[inside]
            looked_up[name] = [RowGradients(ids, grads)] if len(grads) else []
        self._write_late([name for name, some in looked_up.items() if some])
        return {
            name: join(self._take_own(name) + looked_up[name], stripe.table.dim, counted=False)
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
