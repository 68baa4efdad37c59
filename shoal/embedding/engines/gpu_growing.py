"""GrowingGpuTables: growing tables of one width on a GPU, by a hash index in its memory.

How full index and arena are is known on the device. `begin` asks for it and does not wait: the
answer comes some steps later, and until then every id of the steps between counts as new. When
that no longer fits, answers that are on their way are waited for; when it still does not, index
or arena grow, by copies that are queued like any other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.kernels.gpu import index as gpu_index
from shoal.kernels.gpu import segments as gpu_segments
from shoal.kernels.gpu import update as gpu_update
from shoal.kernels.gpu.index import Index
from shoal.kernels.gpu.lookup import TableLookup
from shoal.kernels.gpu.segments import Segments
from shoal.kernels.gpu.update import Arena
from shoal.optimizers.row_optimizer import RowOptimizer

FIRST_PLACES = 1024  # of a table's index
FIRST_ROWS = 1024


class GrowingGpuTables(GpuTables):
    """Tables whose rows come with their first gradients."""

    grows = True

    def __init__(
        self,
        tables: Sequence[Table],
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
    ):
        self.generation = 0  # rises when memory moves: graphs must be recorded again
        super().__init__(tables, optimizer, seed, device)

    def _make_rows(self) -> None:
        sizes = [FIRST_PLACES] * len(self.tables)
        self.index = Index.make(sizes, self.device)
        self.arena = self._make_arena(FIRST_ROWS, self.index.bases)
        self.free = torch.arange(FIRST_ROWS, dtype=torch.int32, device=self.device)
        self.used = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.sizes = sizes
        self._last_counts = [0] * (len(sizes) + 1)  # entries of each table, rows: as last heard
        self._since = [0] * len(sizes)  # ids pushed since then, and not in an answer on its way
        self._answers: deque[tuple[Tensor, torch.cuda.Event | None, list[int]]] = deque()

    # ---- one step --------------------------------------------------------------------------------

    def locate(self, lookup: TableLookup) -> Tensor:
        """Rows [n] to read; ids without one read as their initial value."""
        self.join()  # ids may be entered beside
        return gpu_index.find(self.index, lookup, self.paddings, self.wrong)

    def begin(self, lr: float, lookup: TableLookup | None = None) -> None:
        """Count a step, and see to it that its ids have room."""
        super().begin(lr, lookup)
        if lookup is not None:
            self._ask()
            self.make_room(lookup.counts)

    def pull(self, lookup: TableLookup, learn: bool = False, bags: Bags | None = None) -> Tensor:
        """Rows of ids (GpuTables.pull); sorting inserts ids, so room is made first."""
        recorded = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if learn and not recorded:  # a recorded step calls `begin` before it is replayed
            self._ask()
            self.make_room(lookup.counts)
        return super().pull(lookup, learn, bags)

    def sort(self, lookup: TableLookup, rows: Tensor | None = None) -> Segments:
        """Enter the ids, and list their occurrences by place."""
        places = gpu_index.insert(self.index, lookup, self.paddings, self.wrong)
        return gpu_segments.find_segments(places)

    def apply(self, segments: Segments, grads: Tensor) -> None:
        """Give rows to new ids, and update all."""
        places = gpu_index.assign_rows(self.index, segments, self.free, self.used)
        gpu_update.update(
            segments,
            grads,
            self.arena,
            self.optimizer,
            index_ids=self.index.ids,
            segment_rows=places,
            long_stream=self._side_stream,
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
            host_counts = torch.empty_like(counts, device="cpu", pin_memory=True)
            counts = host_counts.copy_(counts, non_blocking=True)
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
            self._last_counts = answer.tolist()
        short = self._lacks(counts)
        self._since = [a + b for a, b in zip(self._since, counts)]
        if short:
            self._grow()

    def _bounds(self, counts: Sequence[int]) -> list[int]:
        """The most entries each table can have after the next step."""
        under_way = [self._since, counts, *(since for _, _, since in self._answers)]
        return [a + sum(more) for a, more in zip(self._last_counts, zip(*under_way))]

    def _lacks(self, counts: Sequence[int]) -> bool:
        bounds = self._bounds(counts)
        rows = self._last_counts[-1] + sum(bounds) - sum(self._last_counts[:-1])
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
        rows = self._last_counts[-1] + sum(bounds) - sum(self._last_counts[:-1])
        num_rows = len(self.free)
        if rows > num_rows:
            rows = max(rows, num_rows + num_rows // 2)
            new_rows = torch.arange(num_rows, rows, dtype=torch.int32, device=self.device)
            self.free = torch.cat([self.free, new_rows])
            values, state = self.arena.values, self.arena.state
            arena = self._make_arena(rows, self.index.bases)
            arena.values[:num_rows] = values
            for key, part in state.items():
                arena.state[key][:num_rows] = part
            self.arena = arena
        old = self.arena
        self.arena = Arena(
            old.values, old.state, self.numbers, self.steps, self.index.bases, self.recipes
        )
        self.generation += 1

    # ---- rows that go, and rows in host memory: these wait for the device ------------------------

    def rows_held(self, number: int) -> tuple[Tensor, Tensor]:
        """Ids of a table that have a row, ascending, and their places in the index."""
        self.join()
        table_places = self._places(number)
        places = torch.arange(table_places.start, table_places.stop, device=self.device)
        places = places[self.index.rows[table_places] >= 0]
        ids, order = self.index.ids[places].sort()
        return ids, places[order]

    def count(self, number: int) -> int:
        """Rows that a table has."""
        return int((self.index.rows[self._places(number)] >= 0).sum())

    def _places(self, number: int) -> slice:
        """The slice of the index that holds a table."""
        begin = sum(self.sizes[:number])
        return slice(begin, begin + self.sizes[number])

    def shrink(self, number: int, min_norm: float) -> int:
        """Drop rows of a table whose L2 norm is smaller; returns how many went."""
        index = self.index
        keep = index.ids != gpu_index.EMPTY.value
        _, places = self.rows_held(number)
        norms = self.read_values(index.rows[places].long()).double().norm(dim=1)
        keep[places] &= norms >= min_norm
        dropped_rows = index.rows[places[~keep[places]]]
        used = int(self.used) - len(dropped_rows)
        self.free[used : used + len(dropped_rows)] = dropped_rows
        self.used.fill_(used)
        self.forget_sorted()
        self.index = gpu_index.rebuild(index, self.sizes, keep)
        self._hear()
        self.generation += 1
        return len(dropped_rows)

    def _hear(self) -> None:
        """Forget what is under way, and wait for the counts as they are."""
        self._answers.clear()
        self._since = [0] * len(self.tables)
        self._last_counts = [*self.index.entries.tolist(), int(self.used)]

    def export(self, number: int, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row of a table, in chunks of ascending id."""
        ids, places = self.rows_held(number)
        for chunk_ids, chunk_places in zip(ids.split(chunk_rows), places.split(chunk_rows)):
            if len(chunk_ids):
                yield self._rows(chunk_ids.cpu(), self.index.rows[chunk_places].long())

    def restore(self, number: int, rows: Rows) -> None:
        """Take over rows of a table, values and state; the chunk must have been checked."""
        padding = self.tables[number].padding
        if padding is not None:
            rows = rows.select(rows.ids != padding)
        places = self._give_rows(self._enter(number, rows.ids))
        self._write(number, rows.ids, rows.values, places)
        self._write_state(rows, places)

    def assign(self, number: int, ids: Tensor, values: Tensor) -> None:
        """Set values of rows, distinct ids [n], values [n, dim]; state stays, or begins."""
        padding = self.tables[number].padding
        if padding is not None:
            keep = (ids != padding).nonzero().squeeze(1)
            ids, values = ids[keep], values[keep]
        self._write(number, ids, values, self._give_rows(self._enter(number, ids)))

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
        places_without_row = places[self.index.rows[places] < 0]
        used = int(self.used)
        new_rows = self.free[used : used + len(places_without_row)]
        self.index.rows[places_without_row] = new_rows
        self.used.add_(len(places_without_row))
        for key, begin in self.optimizer.initial_state().items():
            self.arena.state[key][new_rows.long()] = begin
        self._hear()
        return self.index.rows[places].long()
