"""ReplicatedRows: every rank holds every row. Of tables only what a batch touched travels.

Bytes on the wire grow with the batch, never with the table. Every rank applies the same sums in the
same order, so replicas stay equal bit for bit. Large tables that a softmax reads whole are updated
in stripes, one on each rank (see stripe.py); replicas of those are equal once they were fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.placed.duplicates import add_rows, find_duplicates
from shoal.embedding.placed.local import LocalRows, join
from shoal.embedding.placed.placement import Layout
from shoal.embedding.placed.stripe import Stripe
from shoal.embedding.service import Gradients, Lookup, RowGradients
from shoal.embedding.softmax.fused_cpu import fusable_on_cpu
from shoal.embedding.store import EVERY, Every, Store
from shoal.world.world import World

SMALL = 1 << 20  # bytes of all ranks that may travel with the rows, to be added up by each
STRIPED = 1 << 20  # floats of a table that is worth three more trips in every softmax


@dataclass(frozen=True)
class Touched:
    """This rank's gradients of a table's rows, repeated ones found but not summed yet."""

    ids: Tensor  # distinct [u]
    places: Tensor  # of the gradients' ids among them [n]
    of: RowGradients

    @property
    def kinds(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of what `parts` has."""
        given = [self.of.grads] if self.of.counts is None else [self.of.grads, self.of.counts]
        shapes = [(one.dtype, (len(self.ids), one.shape[1])) for one in given]
        return [(self.ids.dtype, self.ids.shape), *shapes]

    def parts(self) -> list[Tensor]:
        """Distinct ids [u], the sums of their gradients [u, dim] and of their counts [u, 2]."""
        sums = add_rows(None, self.places, self.of.grads, len(self.ids))
        if self.of.counts is None:
            return [self.ids, sums]
        counts = add_rows(None, self.places.cpu(), self.of.counts, len(self.ids))
        return [self.ids, sums, counts]

    def write(self, out: list[Tensor], scale: float) -> None:
        """Put `parts` there, gradients multiplied."""
        out[0].copy_(self.ids)
        add_rows(out[1], self.places, self.of.grads, len(self.ids), begun=False).mul_(scale)
        if self.of.counts is not None:
            add_rows(out[2], self.places, self.of.counts, len(self.ids), begun=False)


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
        return self.collect_with(torch.empty(0, device=self.device))[1](scale)

    def collect_with(self, flat: Tensor) -> tuple[Tensor, Callable[[float], Gradients]]:
        """The sum of everybody's `flat`; the call that has everybody's gradients, multiplied.

        All of it is one trip where `flat` is small. Gradients of every row of a table (a softmax
        over the catalogue) are summed on the way, as a larger `flat` is.
        """
        together = flat.nbytes * self.world.size <= SMALL
        # Else it travels while the rows' gradients are summed.
        apart = None if together else self.world.start_all_reduce(flat)
        every: Gradients = {}
        touched: dict[str, Touched] = {}
        # Those of other ranks are added to what a softmax would update by itself.
        self._write_late(self.leaves.keys() - self._stripes.keys() if self.world.size > 1 else ())
        self._labels = {}
        for name, leaf in self.leaves.items():
            own = [] if name in self._stripes else self._take_own(name)
            mine = join(own + self._take_pulled(name), leaf.table.dim, name in self.counted)
            if isinstance(mine.ids, Every):
                every[name] = RowGradients(EVERY, self.world.all_reduce(mine.grads))
            else:
                touched[name] = Touched(*find_duplicates(mine.ids, leaf.table.rows), mine)
        head = flat if together else flat[:0]
        heads, exchange = self._exchange(head, touched)
        if apart is None:
            first, *others = heads.unbind()
            flat = sum(others, first)
        else:
            flat = apart.wait()

        def finish(scale: float) -> Gradients:
            result = {name: one.scaled(scale) for name, one in every.items()} | exchange(scale)
            return result | self._of_stripes(result, scale)

        return flat, finish

    def _exchange(
        self, head: Tensor, touched: dict[str, Touched]
    ) -> tuple[Tensor, Callable[[float], Gradients]]:
        """Everybody's head [size, n]; the call that has everybody's touched rows, multiplied."""
        kinds = [kind for one in touched.values() for kind in one.kinds]
        found = self.world.lay_out(head, kinds)
        if found is None:
            parts = [part.to(self.device) for one in touched.values() for part in one.parts()]
            heads, *joined = self.world.gather([head, *parts])[0]
            return heads.view(self.world.size, -1), lambda scale: {
                name: one.scaled(scale) for name, one in _by_table(touched, joined).items()
            }
        heads, laid = found

        def write(scale: float) -> Gradients:
            mine = iter(laid.mine)
            for one in touched.values():
                one.write([next(mine) for _ in one.kinds], scale)
            if touched:
                self.world.barrier()
            return _by_table(touched, laid.joined)

        return heads, write

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

    def _of_stripes(self, gathered: Gradients, scale: float) -> Gradients:
        """Gradients of the rows of this rank's stripes: of a softmax, and of all ranks' lookups.

        scale: what those that were gathered are multiplied by already.
        """
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
        own = {name: [one.scaled(scale) for one in self._take_own(name)] for name in self._stripes}
        return {
            name: join(own[name] + looked_up[name], stripe.table.dim, counted=False)
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


def _by_table(touched: dict[str, Touched], joined: Sequence[Tensor]) -> Gradients:
    """The parts of all tables, one after the other, as the gradients of each."""
    parts = iter(joined)
    return {name: RowGradients(*(next(parts) for _ in one.kinds)) for name, one in touched.items()}
