"""GrowingGpuTables: growing tables of one width on a GPU, by a hash index in its memory.

How full index and arena are is known on the device. `begin` asks for it and does not wait: the
answer comes some steps later, and until then every id of the steps between counts as new. When
that no longer fits, answers that are on their way are waited for; when it still does not, index
or arena grow, by copies that are queued like any other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Rows
from shoal.embedding.table import Table
from shoal.kernels.gpu import index as gpu_index
from shoal.kernels.gpu import segments as gpu_segments
from shoal.kernels.gpu import update as gpu_update
from shoal.kernels.gpu.index import Index
from shoal.kernels.gpu.lookup import Lookup
from shoal.kernels.gpu.segments import Segments
from shoal.kernels.gpu.update import Arena

if TYPE_CHECKING:  # it reads configs, which kernels need not
    from shoal.embedding.engines.admission import Admission, Pending, Shrink

FIRST_PLACES = 1024  # of a table's index
FIRST_ROWS = 1024
COUNTERS = ("show", "click", "last_step")


class GrowingGpuTables(GpuTables):
    """Tables whose rows come with their first gradients, or when admission gives them one."""

    grows = True

    def __init__(
        self,
        tables: Sequence[Table],
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
        admission: Admission | None = None,
    ):
        self.admission = admission
        self.sorts_ahead = admission is None  # else ids that nobody was shown are left out
        self.generation = 0  # rises when memory moves: graphs must be recorded again
        super().__init__(tables, optimizer, seed, device)

    def _make_rows(self) -> None:
        sizes = [FIRST_PLACES] * len(self.tables)
        self.index = Index.make(sizes, self.admission is not None, self.device)
        self.arena = self._make_arena(FIRST_ROWS, self.index.bases)
        self.free = torch.arange(FIRST_ROWS, dtype=torch.int32, device=self.device)
        self.used = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.sizes = sizes
        self._known = [0] * (len(sizes) + 1)  # entries of each table, rows: as last heard
        self._since = [0] * len(sizes)  # ids pushed since then, and not in an answer on its way
        self._answers: deque[tuple[Tensor, torch.cuda.Event | None, list[int]]] = deque()

    # ---- one step --------------------------------------------------------------------------------

    def locate(self, lookup: Lookup) -> Tensor:
        """Rows [n] to read; ids without one read as their initial value."""
        self.join()  # ids may be entered beside
        return gpu_index.find(self.index, lookup, self.paddings, self.wrong)

    def begin(self, lr: float, lookup: Lookup | None = None) -> None:
        """Count a step, and see to it that its ids have room."""
        super().begin(lr, lookup)
        if lookup is not None:
            self._ask()
            self.make_room(lookup.counts)

    def pull(self, lookup: Lookup, learn: bool = False) -> Tensor:
        """As GpuTables.pull. Ids are entered as they are sorted, so they need room before."""
        recorded = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if learn and self.sorts_ahead and not recorded:  # else whoever replays it calls `begin`
            self._ask()
            self.make_room(lookup.counts)
        return super().pull(lookup, learn)

    def sort(self, lookup: Lookup, rows: Tensor | None = None) -> Segments:
        """Enter the ids, and list their occurrences by place."""
        places = gpu_index.insert(self.index, lookup, self.paddings, self.wrong)
        return gpu_segments.find_segments(places)

    def apply(
        self,
        segments: Segments,
        grads: Tensor,
        clicks: Tensor | None = None,
        shows: Tensor | None = None,
    ) -> None:
        """Count the ids, give rows to those that earned one, and update those that have one."""
        rule = None
        if self.admission is not None:
            given = self.admission
            rule = given.threshold, given.show_coefficient, given.click_coefficient
        found = gpu_index.admit(
            self.index, segments, self.steps, self.free, self.used, rule, clicks, shows
        )
        gpu_update.update(
            *(segments, grads, self.arena, self.optimizer),
            index_ids=self.index.ids,
            found=found,
            beside=self._beside,
        )

    def _outside(self, table: Table, id_: int) -> ValueError:
        return ValueError(
            f"table {table.name!r}: id {id_} marks empty places of its index on the GPU; take "
            "another id for it"
        )

    # ---- room ------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Have the counts of all steps so far sent here."""
        counts = torch.cat([self.index.entries, self.used])
        event = None
        if self.device.type == "cuda":
            there = torch.empty_like(counts, device="cpu", pin_memory=True)
            counts = there.copy_(counts, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._answers.append((counts, event, self._since))
        self._since = [0] * len(self.tables)

    def make_room(self, counts: Sequence[int]) -> None:
        """Room for so many new ids of each table, whatever is still under way."""
        while self._answers and (
            self._answers[0][1] is None or self._answers[0][1].query() or self._lacks(counts)
        ):
            answer, event, _ = self._answers.popleft()
            if event is not None:
                event.synchronize()
            self._known = answer.tolist()
        short = self._lacks(counts)
        self._since = [a + b for a, b in zip(self._since, counts)]
        if short:
            self._grow()

    def _bounds(self, counts: Sequence[int]) -> list[int]:
        """The most entries each table can have after the next step."""
        under_way = [self._since, counts, *(since for _, _, since in self._answers)]
        return [a + sum(more) for a, more in zip(self._known, zip(*under_way))]

    def _lacks(self, counts: Sequence[int]) -> bool:
        bounds = self._bounds(counts)
        rows = self._known[-1] + sum(bounds) - sum(self._known[:-1])
        full = any(2 * bound > size for bound, size in zip(bounds, self.sizes))
        return full or rows > len(self.free)

    def _grow(self) -> None:
        """Twice the room where it no longer does; nothing here waits."""
        self.forget_sorted()  # ids get other places in the index
        bounds = self._bounds([0] * len(self.tables))
        sizes = [
            size if 2 * bound <= size else 1 << (4 * bound - 1).bit_length()
            for bound, size in zip(bounds, self.sizes)
        ]
        if sizes != self.sizes:
            self.index, self.sizes = gpu_index.rebuild(self.index, sizes), sizes
        rows = self._known[-1] + sum(bounds) - sum(self._known[:-1])
        have = len(self.free)
        if rows > have:
            rows = max(rows, have + have // 2)
            more = torch.arange(have, rows, dtype=torch.int32, device=self.device)
            self.free = torch.cat([self.free, more])
            values, state = self.arena.values, self.arena.state
            made = self._make_arena(rows, self.index.bases)
            made.values[:have] = values
            for key, part in state.items():
                made.state[key][:have] = part
            self.arena = made
        old = self.arena
        self.arena = Arena(
            old.values, old.state, self.numbers, self.steps, self.index.bases, self.recipes
        )
        self.generation += 1

    # ---- rows that go, and rows in host memory: these wait for the device ------------------------

    def rows_held(self, number: int) -> tuple[Tensor, Tensor]:
        """Ids of a table that have a row, ascending, and their places in the index."""
        self.join()
        mine = self._places(number)
        places = torch.arange(mine.start, mine.stop, device=self.device)
        places = places[self.index.rows[mine] >= 0]
        ids, order = self.index.ids[places].sort()
        return ids, places[order]

    def count(self, number: int) -> int:
        """Rows that a table has."""
        return int((self.index.rows[self._places(number)] >= 0).sum())

    def _places(self, number: int) -> slice:
        """Where a table lies in the index."""
        begin = sum(self.sizes[:number])
        return slice(begin, begin + self.sizes[number])

    def decay(self, number: int, factor: float) -> None:
        """Multiply all counters of a table, of rows and of ids without one."""
        self.index.show[self._places(number)] *= factor
        self.index.click[self._places(number)] *= factor

    def shrink(self, number: int, rule: Shrink) -> int:
        """Drop rows of a table, and ids without one that faded; returns how many rows went."""
        index, counted = self.index, self.admission is not None
        mine = self._places(number)
        keep = index.ids != gpu_index.EMPTY.value
        if counted:
            faded = self._scores(mine) < rule.min_score
            if rule.max_age is not None:
                faded |= self.step - index.last_step[mine] > rule.max_age
            keep[mine] &= ~faded
        _, places = self.rows_held(number)
        if rule.min_norm > 0:
            norms = self.read_values(index.rows[places].long()).double().norm(dim=1)
            keep[places] &= norms >= rule.min_norm
        kept = places[keep[places]]  # by id, and the next sort leaves it so among equals
        if rule.capacity is not None and len(kept) > rule.capacity:
            by = index.last_step if rule.order == "lru" else index.show
            order = by[kept].sort(stable=True).indices
            keep[kept[order[: len(kept) - rule.capacity]]] = False
        gone = index.rows[places[~keep[places]]]
        used = int(self.used) - len(gone)
        self.free[used : used + len(gone)] = gone
        self.used.fill_(used)
        self.forget_sorted()
        self.index = gpu_index.rebuild(index, self.sizes, keep)
        self._hear()
        self.generation += 1
        return len(gone)

    def _scores(self, places: slice) -> Tensor:
        rule, show, click = self.admission, self.index.show[places], self.index.click[places]
        assert rule is not None
        return rule.show_coefficient * (show - click) + rule.click_coefficient * click

    def _hear(self) -> None:
        """Forget what is under way, and wait for the counts as they are."""
        self._answers.clear()
        self._since = [0] * len(self.tables)
        self._known = [*self.index.entries.tolist(), int(self.used)]

    def export(self, number: int, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row of a table, in chunks of ascending id."""
        ids, places = self.rows_held(number)
        for some, at in zip(ids.split(chunk_rows), places.split(chunk_rows)):
            if len(some):
                made = self._rows(some.cpu(), self.index.rows[at].long())
                counters = COUNTERS if self.admission is not None else ()
                made.state.update({key: getattr(self.index, key)[at].cpu() for key in counters})
                yield made

    def restore(self, number: int, rows: Rows) -> None:
        """Take over rows of a table, values and state; the chunk must have been checked."""
        padding = self.tables[number].padding
        if padding is not None:
            keep = rows.ids != padding
            state = {key: part[keep] for key, part in rows.state.items()}
            rows = Rows(rows.ids[keep], rows.values[keep], state)
        places = self._enter(number, rows.ids)
        at = self._give_rows(places)
        self._write(number, rows.ids, rows.values, at)
        self._write_state(rows, at)
        for key in COUNTERS if self.admission is not None else ():
            getattr(self.index, key)[places] = rows.state[key].to(self.device)

    def assign(self, number: int, ids: Tensor, values: Tensor) -> None:
        """Set values of rows, distinct ids [n], values [n, dim]; state stays, or begins."""
        padding = self.tables[number].padding
        if padding is not None:
            keep = (ids != padding).nonzero().squeeze(1)
            ids, values = ids[keep], values[keep]
        self._write(number, ids, values, self._give_rows(self._enter(number, ids)))

    def export_pending(self, number: int, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Counters of the ids of a table without a row, in chunks of ascending id."""
        from shoal.embedding.engines.admission import Pending

        index, mine = self.index, self._places(number)
        waits = (index.ids[mine] != gpu_index.EMPTY.value) & (index.rows[mine] < 0)
        places = waits.nonzero().squeeze(1) + mine.start
        ids, order = index.ids[places].sort()
        for some, at in zip(ids.split(chunk_rows), places[order].split(chunk_rows)):
            if len(some):
                counters = [getattr(index, key)[at].cpu() for key in COUNTERS]
                yield Pending(some.cpu(), *counters)

    def restore_pending(self, number: int, pending: Pending) -> None:
        """Take over counters of ids without a row; those that have one keep theirs."""
        places = self._enter(number, pending.ids)
        waits = self.index.rows[places] < 0
        for key in COUNTERS:
            part = getattr(pending, key).to(self.device)
            getattr(self.index, key)[places[waits]] = part[waits]

    def _enter(self, number: int, ids: Tensor) -> Tensor:
        """Places [n] of distinct ids in the index."""
        counts = [len(ids) if k == number else 0 for k in range(len(self.tables))]
        self._hear()
        self.make_room(counts)
        lookup = self.look_up(ids.to(self.device), counts)
        places = gpu_index.insert(self.index, lookup, self.paddings, self.wrong).long()
        self._hear()
        return places

    def _give_rows(self, places: Tensor) -> Tensor:
        """Rows [n] of the arena for places; new ones where there were none."""
        without = places[self.index.rows[places] < 0]
        used = int(self.used)
        given = self.free[used : used + len(without)]
        self.index.rows[without] = given
        self.used.add_(len(without))
        for key, begin in self.optimizer.initial_state().items():
            self.arena.state[key][given.long()] = begin
        self._hear()
        return self.index.rows[places].long()
