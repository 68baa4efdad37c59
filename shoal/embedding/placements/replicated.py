"""ReplicatedRows: every rank holds every row. Of tables only what a batch touched travels.

Bytes on the wire grow with the batch, never with the table. Every rank applies the same sums in the
same order, so replicas stay equal bit for bit. Large tables that a softmax reads whole are updated
in stripes, one on each rank (see stripe.py); replicas of those are equal once they were fetched.
Ranks of one host leave gradients on a board that all read, and may have a table in the same memory:
each then updates its part of the rows, straight from the board, and all wait for each other before
they read (`_await_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from shoal.config.row_rules import RowRules
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.placements.duplicates import find_duplicates
from shoal.embedding.placements.local import LocalRows, join
from shoal.embedding.placements.placement import Layout
from shoal.embedding.placements.stripe import Stripe
from shoal.embedding.service import Gradients, Lookup, RowGradients
from shoal.embedding.softmax.fused_cpu import fusable_on_cpu
from shoal.embedding.store import EVERY, Every, Store
from shoal.kernels.board import Board, Given
from shoal.kernels.codes import add_rows
from shoal.world.world import World

SMALL = 1 << 20  # bytes of all ranks that may travel with the rows, to be added up by each
STRIPED = 1 << 20  # floats of a table that is worth three more trips in every softmax


@dataclass(frozen=True)
class Posted:
    """Gradients of all ranks that lie on the board, of rows that ranks have in the same memory."""

    board: Board
    numbers: dict[str, int]  # of tables, there
    scale: float  # what they are to be multiplied by


class ReplicatedRows(LocalRows):
    """Local rows whose gradients are those of all ranks."""

    def __init__(
        self, leaves: Mapping[str, RowEngine], rules: Mapping[str, RowRules] | None, world: World
    ):
        super().__init__(leaves, rules, world.device)
        self.world = world
        self._stripes: dict[str, Stripe] = {}
        self._posted: Posted | None = None  # until they are applied
        self._stale = False  # whether the other ranks' stripes have changed since they were fetched
        self._shared = any(leaf.shared for leaf in self.leaves.values())
        self._updated: Callable[[], None] | None = None  # waits until all ranks updated their parts
        self.meet()

    # ---- rows that ranks have in the same memory ------------------------------------------------

    def meet(self) -> None:
        if self._shared:
            self.world.barrier()

    def _await_rows(self) -> None:
        """Before rows are read: others may still be at their parts of the last step."""
        if self._updated is not None:
            self._updated()
            self._updated = None

    def own(self, name: str, learn: bool) -> Tensor | None:
        self._await_rows()
        return super().own(name, learn)

    def pull(self, lookups: Sequence[Lookup], learn: bool) -> list[Tensor]:
        self._await_rows()
        if any(one.table in self._stripes for one in lookups):
            self._fetch_stripes()
        return super().pull(lookups, learn)

    # ---- gradients of all ranks -----------------------------------------------------------------

    def collect(self, scale: float = 1.0, notes: float = 0.0) -> Gradients:
        return self.collect_with(torch.empty(0, device=self.device), seen=True)[1](scale)

    def collect_with(self, flat: Tensor, seen: bool) -> tuple[Tensor, Callable[[float], Gradients]]:
        """The sum of everybody's `flat`; the call that has everybody's gradients, multiplied.

        seen: whether the caller looks at them (all ranks say the same). Else those of rows that
        ranks have in the same memory stay on the board, for `apply`. All of it is one trip where
        `flat` is small. Gradients of every row of a table (a softmax over the catalogue) are
        summed on the way, as a larger `flat` is.
        """
        every, mine = self._take_mine()
        if self.world.has_board:
            exchange = self._post(flat, mine, seen) or self._gather(flat[:0], mine)[1]
        else:
            flat, exchange = self._gather(flat, mine)

        def finish(scale: float) -> Gradients:
            result = {name: one.scaled(scale) for name, one in every.items()} | exchange(scale)
            return result | self._of_stripes(result, scale) if self._stripes else result

        return flat, finish

    def _take_mine(self) -> tuple[Gradients, dict[str, list[RowGradients]]]:
        """Gradients of tables that have one for every row, of all ranks; of others this rank's."""
        if self._late:  # those of other ranks are added to what a softmax would update by itself
            alone = self.world.size == 1
            self._write_late(() if alone else self.leaves.keys() - self._stripes.keys())
        self._labels = {}
        every: Gradients = {}
        mine: dict[str, list[RowGradients]] = {}
        for name, leaf in self.leaves.items():
            own = [] if name in self._stripes else self._take_own(name)
            parts = own + self._take_pulled(name)
            if any(isinstance(one.ids, Every) for one in parts):
                grads = join(parts, leaf.table.dim, name in self.counted).grads
                every[name] = RowGradients(EVERY, self.world.all_reduce(grads))
            else:
                mine[name] = parts
        return every, mine

    def _post(
        self, flat: Tensor, mine: dict[str, list[RowGradients]], seen: bool
    ) -> Callable[[float], Gradients] | None:
        """Leave what this rank has where all read it; `flat` is summed.

        None: there is no room for the rows of one of them.
        """
        tables: list[Given] = []
        stay: dict[str, int] = {}  # numbers of tables whose gradients nobody looks at
        looked_at: dict[str, int] = {}
        for name, parts in mine.items():
            leaf, table = self.leaves[name], self.leaves[name].table
            stays = leaf.shared and not seen and name not in self._stripes
            (stay if stays else looked_at)[name] = len(tables)
            ids = [one.ids for one in parts if not isinstance(one.ids, Every)]
            tables.append(Given(ids, [one.grads for one in parts], table.dim, table.rows))
            if name in self.counted:
                counts = [one.counts for one in parts if one.counts is not None]
                tables.append(Given(ids, counts, 2, table.rows))
        board = self.world.post(flat, tables)
        if board is None:
            return None

        def finish(scale: float) -> Gradients:
            self._posted = Posted(board, stay, scale) if stay else None
            result = {}
            for name, k in looked_at.items():
                counts = board.rows(k + 1, 2, 1.0)[1] if name in self.counted else None
                result[name] = RowGradients(*board.rows(k, tables[k].dim, scale), counts)
            return result

        return finish

    def _gather(
        self, flat: Tensor, mine: dict[str, list[RowGradients]]
    ) -> tuple[Tensor, Callable[[float], Gradients]]:
        """Send all ranks what each has."""
        together = flat.nbytes * self.world.size <= SMALL
        # Else it travels while the rows' gradients are summed.
        apart = None if together else self.world.start_all_reduce(flat)
        summed = {name: self._sum(name, parts) for name, parts in mine.items()}
        parts = [part.to(self.device) for parts in summed.values() for part in parts]
        heads, *joined = self.world.gather([flat if together else flat[:0], *parts])[0]
        if apart is None:
            first, *others = heads.view(self.world.size, -1).unbind()
            flat = sum(others, first)
        else:
            flat = apart.wait()
        came = iter(joined)
        gathered = {name: RowGradients(*islice(came, len(summed[name]))) for name in summed}
        return flat, lambda scale: {name: one.scaled(scale) for name, one in gathered.items()}

    def _sum(self, name: str, parts: list[RowGradients]) -> list[Tensor]:
        """Distinct ids [u], the sums of their gradients [u, dim] and of their counts [u, 2]."""
        table = self.leaves[name].table
        one = join(parts, table.dim, name in self.counted)
        assert not isinstance(one.ids, Every)
        ids, places = find_duplicates(one.ids, table.rows)
        sums = add_rows(None, places, one.grads, len(ids))
        if one.counts is None:
            return [ids, sums]
        return [ids, sums, add_rows(None, places.cpu(), one.counts, len(ids))]

    def apply(self, gradients: Gradients, lr: float, scale: float = 1.0) -> None:
        self._await_rows()  # a step may have read none
        for name, stripe in self._stripes.items():
            stripe.step = self.leaves[name].step
        posted, self._posted = self._posted, None
        if posted is not None:
            leaves = [cast(Native, self.leaves[name]) for name in posted.numbers]
            numbers = list(posted.numbers.values())
            Native.push_posted(leaves, posted.board, numbers, lr, posted.scale)
        super().apply(gradients, lr, scale)
        if self._shared:
            self._updated = self.world.start_barrier()
        for name, stripe in self._stripes.items():
            self.leaves[name].step, self._stale = stripe.step, True

    def settle(self) -> None:
        super().settle()
        self._await_rows()
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

    def leaf(self, name: str) -> RowEngine:
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
        self._await_rows()
        if self.world.is_main:
            yield from super().saved()
