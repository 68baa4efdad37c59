"""CachedGpuTables: a fixed table whose rows are in GPU memory while they are used.

All rows have a place in host memory, which kernels read and write through the bus (gpu_staging).
A row is updated in a slot, always: so every number is that of a table that is in GPU memory whole.
Rows of the batch that comes next come on a side stream, while this one computes:

    computing   ... update k-1 | stage k | read k |      compute, update k       | stage k+1 ...
    beside                                        | stage k+1, rows of k stay    |

What `stage k+1` beside moves is used neither by step k nor, any more, by those before it. The same
ids are staged once more when their step begins: mostly there is nothing left to do then, which a
comparison tells, and else what lacked room comes.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.engines.traffic import Traffic
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.kernels.bags import sum_bags
from shoal.kernels.gpu import lookup as gpu_lookup
from shoal.kernels.gpu import segments as gpu_segments
from shoal.kernels.gpu import staging as gpu_staging
from shoal.kernels.gpu.lookup import TableLookup
from shoal.kernels.gpu.random import write_initial
from shoal.kernels.gpu.segments import Segments
from shoal.kernels.gpu.staging import SHORT, CacheSlots
from shoal.optimizers.row_optimizer import RowOptimizer

NO_PADDING = -1  # an id that no table has
ALIGN = 4  # numbers, of a row in host memory
READ_ALONE = 4  # times as many ids as slots are more than a step: they are read where they are


class CachedGpuTables(GpuTables):
    """One fixed table of float32 rows, `slots` of them in GPU memory."""

    cached = True

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
        slots: int,
    ):
        self.number_of_slots = slots
        super().__init__([table], optimizer, seed, device)

    def _make_rows(self) -> None:
        table, slots = self.tables[0], self.number_of_slots
        assert table.rows is not None
        self.first_rows = [0, table.rows]
        self.bounds = torch.tensor(self.first_rows, device=self.device)
        self.key_type = torch.int32 if table.rows < 1 << 31 else torch.int64
        self.arena = self._make_arena(slots, torch.tensor([0, slots], device=self.device))
        begin, kinds = self.optimizer.initial_state(), self.optimizer.state_names()
        sizes = [self.dim, *(1 if kind == "row" else self.dim for kind in kinds.values())]
        pitch = -(-sum(sizes) // ALIGN) * ALIGN
        self.memory = large_memory(table.rows * pitch).view(table.rows, pitch)
        parts = list(self.memory[:, : sum(sizes)].split(sizes, 1))
        self.host_state = {
            key: part.squeeze(1) if kinds[key] == "row" else part
            for key, part in zip(kinds, parts[1:])
        }
        self.host = [parts[0], *self.host_state.values()]
        self.hot = [self.arena.values, *self.arena.state.values()]
        self._register(self.memory)
        assert table.rows is not None
        write_initial(parts[0], 0, table.rows, table.dim, table.padding, 0, self.recipes)
        for key, part in self.host_state.items():
            part.fill_(begin[key])
        self.slots = CacheSlots.make(table.rows, slots, self.device)
        self.padding = NO_PADDING if table.padding is None else table.padding
        self._staged: Tensor | None = None  # ids whose rows are in slots now
        self._coming: list[Tensor] = []  # ids of the next batch
        self._ahead: Tensor | None = None  # ids whose rows are on their way, on the side stream
        self._num_pulled = 0

    def _register(self, part: Tensor) -> None:
        """Pin host memory, so that kernels can reach it."""
        if self.device.type == "cuda":
            size = part.numel() * part.element_size()
            error = torch.cuda.cudart().cudaHostRegister(part.data_ptr(), size, 0)
            if int(error):
                raise ValueError(
                    f"table {self.tables[0].name!r}: {size:,} bytes of host memory cannot be "
                    f"registered with the GPU (error {int(error)}): allow more locked memory "
                    "(ulimit -l), or leave out rows.tiers.gpu"
                )
            weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, part.data_ptr())

    @property
    def at_once(self) -> int:
        """Rows that surely find room together."""
        return self.number_of_slots

    # ---- one step --------------------------------------------------------------------------------

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """These ids are used by the step after the next one."""
        self._coming = [part.reshape(-1) for part in ids]

    def stage(self, ids: Sequence[Tensor]) -> None:
        """Rows of a step that was recorded into slots; those of the next one begin to come."""
        flat = [part.reshape(-1) for part in ids]
        self._stage(flat[0] if len(flat) == 1 else torch.cat(flat))
        self._go_ahead()

    def locate(self, lookup: TableLookup) -> Tensor:
        """Slots [n] of the rows, which are there then; too little room is noted."""
        if not len(lookup.ids):
            return torch.empty(0, dtype=torch.int32, device=self.device)
        self._ensure(lookup.ids)
        return gpu_staging.find(lookup.ids, self.slots, self.wrong, self.padding)

    def sort(self, lookup: TableLookup, rows: Tensor | None = None) -> Segments:
        """By row, not by slot: gradients are added in the order that a table in one place has."""
        if not len(lookup.ids):
            return super().sort(lookup)
        self._ensure(lookup.ids)
        places = gpu_lookup.locate(lookup, self.bounds, self.paddings, self.wrong, self.key_type)
        segments = gpu_segments.find_segments(places)
        slots = gpu_staging.find(segments.keys, self.slots, self.wrong, self.padding)
        return replace(segments, keys=slots)

    def pull(self, lookup: TableLookup, learn: bool = False, bags: Bags | None = None) -> Tensor:
        """Rows of all ids: [n, dim] float32; of bags their sums: [bags, dim]."""
        ids = lookup.ids
        if not len(ids):
            return super().pull(lookup, bags=bags)
        staged = False
        if len(ids) <= READ_ALONE * self.number_of_slots:
            staged = self._ensure(ids)
        elif bags is not None:  # by distinct rows, where they are
            distinct_ids, places = ids.unique(return_inverse=True)
            rows = self.pull(self.look_up(distinct_ids, [len(distinct_ids)]))
            return sum_bags(rows, bags.offsets, places, bags.weights)
        elif not self._is_recorded():
            self._wait_for_prefetched()
        if bags is not None:
            slots = gpu_staging.find(ids, self.slots, self.wrong, self.padding)
            rows_read = self._gather(lookup, slots, bags)
            if staged:
                self._go_ahead()
            return rows_read
        rows_read = gpu_staging.peek(ids, self.slots, self.hot[0], self.memory, self.padding)
        if staged:
            self._go_ahead()
        return rows_read

    def _is_recorded(self) -> bool:
        """Whether `stage` has been called, or will be: nothing is staged then."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _ensure(self, ids: Tensor) -> bool:
        """Stage the rows of ids in slots, unless the last call staged the same ids."""
        before = self._staged
        if before is not None and before.data_ptr() == ids.data_ptr() and len(before) == len(ids):
            return False
        if self._is_recorded():
            return False
        self._stage(ids)
        return True

    def _stage(self, ids: Tensor) -> None:
        before = self._ahead
        self._wait_for_prefetched()
        gpu_staging.stage(
            ids,
            self.slots,
            self.hot,
            self.memory,
            self.wrong,
            self.padding,
            before=before,
        )
        self._staged = ids
        self._num_pulled += len(ids)

    def _go_ahead(self) -> None:
        """Stage rows of the next batch while this one computes; called right after a staging."""
        coming, self._coming = self._coming, []
        if not any(len(part) for part in coming):
            return
        if self._side_stream is None:
            self._stage_ahead(coming)
            return
        self._side_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side_stream):
            self._stage_ahead(coming)

    def _stage_ahead(self, coming: list[Tensor]) -> None:
        parts = [self._here(part) for part in coming]
        self._ahead = ids = parts[0] if len(parts) == 1 else torch.cat(parts)
        gpu_staging.stage(
            ids,
            self.slots,
            self.hot,
            self.memory,
            self.wrong,
            self.padding,
            ahead=True,
        )

    def _here(self, ids: Tensor) -> Tensor:
        if self.device.type == "cuda" and not ids.is_cuda and not ids.is_pinned():
            ids = ids.pin_memory()  # or the host would wait for the side stream
        return ids.to(self.device, non_blocking=True)

    def _wait_for_prefetched(self) -> None:
        """Wait on this stream for what comes ahead."""
        if self._side_stream is not None and self._ahead is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side_stream)
        self._ahead = None

    @property
    def traffic(self) -> Traffic:
        """Counts of where lookups found rows so far; waits for the GPU."""
        self._wait_for_prefetched()
        counts = self.slots.counts.tolist()
        late, early = counts[gpu_staging.LATE.value], counts[gpu_staging.EARLY.value]
        return Traffic(self._num_pulled - late - early, early, late, late + early)

    def _outside(self, table: Table, id_: int) -> ValueError:
        if id_ != SHORT:
            return table.outside(id_)
        return ValueError(
            f"table {table.name!r}: one step uses more rows than the {self.number_of_slots:,} that "
            "its share of rows.tiers.gpu has room for: raise it, or train in smaller batches "
            "(train.batch_size)"
        )

    # ---- rows in host memory ---------------------------------------------------------------------

    def export(self, number: int, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row of the table, in chunks of ascending id."""
        for begin in range(0, self.first_rows[1], chunk_rows):
            ids = torch.arange(begin, min(begin + chunk_rows, self.first_rows[1]))
            yield self._rows(ids, ids)

    def _rows(self, ids: Tensor, places: Tensor) -> Rows:
        places = places.cpu()
        slot = self._slots_of(places)
        hot = (slot >= 0).nonzero().squeeze(1)
        hot_slots = slot[hot].long().to(self.device)
        parts = [part[places] for part in self.host]
        for part, hot_part in zip(parts, self.hot):
            part[hot] = hot_part[hot_slots].cpu()
        return Rows(ids, parts[0], dict(zip(self.host_state, parts[1:])))

    def restore(self, number: int, rows: Rows) -> None:
        """Take over rows of the table, values and state; the chunk must have been checked."""
        pieces = [rows.state[key] for key in self.host_state]
        self._put(rows.ids, [self._padded(rows.ids, rows.values), *pieces])

    def assign(self, number: int, ids: Tensor, values: Tensor) -> None:
        """Set values of rows, distinct ids [n], values [n, dim]; state stays."""
        self._put(ids.cpu(), [self._padded(ids.cpu(), values.cpu())])

    def _padded(self, ids: Tensor, values: Tensor) -> Tensor:
        """Values with the padding id's row set to zeros."""
        return values.masked_fill((ids == self.padding)[:, None], 0.0)

    def _put(self, ids: Tensor, parts: list[Tensor]) -> None:
        slot = self._slots_of(ids)
        hot = (slot >= 0).nonzero().squeeze(1)
        hot_slots = slot[hot].long().to(self.device)
        for part, host_part, hot_part in zip(parts, self.host, self.hot):
            host_part[ids] = part
            hot_part[hot_slots] = part[hot].to(self.device)

    def _slots_of(self, ids: Tensor) -> Tensor:
        """Slots [n] of ids, in host memory, when all work has ended."""
        self._wait_for_prefetched()
        self._staged = None
        slots = self.slots.slot_of[ids.to(self.device)].cpu()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return slots

    def whole(self, number: int) -> Tensor:
        """Not supported: most rows are in host memory."""
        raise NotImplementedError  # GpuEngine.view_rows returns None for a cached table


def large_memory(count: int) -> Tensor:
    """Zeros [count] float32 in host memory, in large pages where the system has them.

    Rows lie anywhere in it: with small pages the GPU would look up an address for each of them.
    """
    memory = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)
