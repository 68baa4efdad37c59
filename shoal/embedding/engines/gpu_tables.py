"""GpuTables: rows of many tables of one width in the memory of a GPU, in one launch for all.

Ids of a call are one list, a tensor [n_t] for each table. Nothing waits for the device in pull and
push: what only the device knows (an id outside its table, how full an index is) is read steps
later. A step may be recorded in a CUDA graph; whoever replays it calls `begin` before:

    tables.begin(lr, lookup)
    values = tables.pull(lookup, learn=True)     ids are sorted on a side stream from here on
    tables.apply(tables.take_sorted(lookup.counts).segments, grads)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from shoal.embedding.engines.init import recipe
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.kernels.gpu import lookup as gpu_lookup
from shoal.kernels.gpu import optim as gpu_optim
from shoal.kernels.gpu import segments as gpu_segments
from shoal.kernels.gpu import update as gpu_update
from shoal.kernels.gpu.lookup import TableLookup
from shoal.kernels.gpu.random import Recipes, write_initial
from shoal.kernels.gpu.segments import Segments
from shoal.kernels.gpu.update import Arena
from shoal.optimizers.row_optimizer import RowOptimizer


@dataclass(frozen=True)
class Sorted:
    """The sorted ids of a lookup, as an update needs them; made on a side stream."""

    lookup: TableLookup
    rows: Tensor  # the side stream may read these until `join`
    bags: Bags | None
    segments: Segments


class GpuTables:
    """Fixed tables of one width that learn by one optimizer."""

    grows = False
    cached = False  # whether rows may be in host memory, see gpu_cache

    def __init__(
        self,
        tables: Sequence[Table],
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device | str,
    ):
        assert len({(table.dim, table.dtype, table.rows is None) for table in tables}) == 1
        self.tables, self.optimizer = list(tables), optimizer
        self.seed, self.device, self.half = seed, torch.device(device), tables[0].half
        self.dim, self.step = tables[0].dim, 0
        self.recipes = Recipes.of(
            [recipe(table, seed) for table in tables],
            [None if t.numbering is None else astuple(t.numbering) for t in tables],
            self.device,
        )
        self.paddings = (
            torch.tensor([table.padding or 0 for table in tables], device=self.device),
            torch.tensor([int(table.padding is not None) for table in tables], device=self.device),
        )
        self.numbers = torch.zeros(gpu_optim.NUMBERS, device=self.device)
        self.steps = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.wrong = torch.zeros(2, dtype=torch.int64, device=self.device)  # table + 1, id
        self._side_stream: torch.cuda.Stream | None = None
        self._sorted: Sorted | None = None  # of the last lookup that learns
        self._sorting: Sorted | None = None  # while the side stream may sort
        if self.device.type == "cuda":
            # Sorting is many small kernels: behind those that read rows they would wait for all.
            self._side_stream = torch.cuda.Stream(self.device, priority=-1)
            self._seen = torch.zeros(2, dtype=torch.int64, device="cpu", pin_memory=True)
            self._seen_at = torch.cuda.Event()
        self._starts: dict[tuple[int, ...], Tensor] = {}
        self._make_rows()

    def _make_rows(self) -> None:
        sizes = [table.rows or 0 for table in self.tables]
        bases = torch.tensor([0, *sizes]).cumsum(0)
        self.arena = self._make_arena(int(bases[-1]), bases.to(self.device))
        self.first_rows = bases.tolist()
        self.key_type = torch.int32 if self.first_rows[-1] < 1 << 31 else torch.int64
        for number, (table, start) in enumerate(zip(self.tables, self.first_rows)):
            assert table.rows is not None
            write_initial(
                self.arena.values,
                start,
                table.rows,
                table.dim,
                table.padding,
                number,
                self.recipes,
            )

    def _make_arena(self, rows: int, bases: Tensor) -> Arena:
        kind = torch.int16 if self.half else torch.float32
        values = torch.empty(rows, self.dim, dtype=kind, device=self.device)
        state = gpu_optim.make_state(self.optimizer, rows, self.dim, self.device)
        return Arena(values, state, self.numbers, self.steps, bases, self.recipes)

    # ---- one step --------------------------------------------------------------------------------

    def look_up(
        self, ids: Sequence[Tensor] | Tensor, counts: Sequence[int] | None = None
    ) -> TableLookup:
        """The ids of each table, or all of them in one tensor with how many each table has."""
        if isinstance(ids, Tensor):
            assert counts is not None
            flat = ids
        else:
            counts = [part.numel() for part in ids]
            flat = torch.cat([part.to(self.device).reshape(-1) for part in ids])
        key = tuple(counts)
        if key not in self._starts:
            starts = torch.tensor([0, *key]).cumsum(0).to(torch.int32)
            self._starts[key] = starts.to(self.device)
        return TableLookup(flat, self._starts[key], key)

    def locate(self, lookup: TableLookup) -> Tensor:
        """Rows [n] of the arena to read."""
        arena = self.arena
        return gpu_lookup.locate(lookup, arena.bases, self.paddings, self.wrong, self.key_type)

    def pull(self, lookup: TableLookup, learn: bool = False, bags: Bags | None = None) -> Tensor:
        """Rows of all ids: [n, dim] float32; of bags their sums: [bags, dim].

        learn: a push of the same ids may come next.
        """
        rows = self.locate(lookup)
        if learn and len(rows) and not self.cached:  # else they may be on their way to their slots
            self._sort_on_side_stream(lookup, rows, bags)
        return self._gather(lookup, rows, bags)

    def _gather(self, lookup: TableLookup, rows: Tensor, bags: Bags | None) -> Tensor:
        if bags is None:
            return gpu_lookup.gather(self.arena.values, rows, lookup, self.recipes, self.grows)
        return gpu_lookup.gather_bags(
            self.arena.values,
            rows,
            lookup,
            self.recipes,
            self.grows,
            bags.offsets,
            bags.weights,
        )

    def begin(self, lr: float, lookup: TableLookup | None = None) -> None:
        """Count a step; also called before each replay of a recorded push, with as many ids."""
        self._watch()
        self.step += 1
        gpu_optim.write_numbers(self.numbers, self.steps, self.optimizer, lr, self.step)

    def sort(self, lookup: TableLookup, rows: Tensor | None = None) -> Segments:
        """Occurrences by row, which `apply` needs; they can be sorted before gradients come."""
        return gpu_segments.find_segments(self.locate(lookup) if rows is None else rows)

    def _sort_bags(self, lookup: TableLookup, rows: Tensor | None, bags: Bags | None) -> Segments:
        segments = self.sort(lookup, rows)
        return segments if bags is None else segments.of_bags(bags.offsets, bags.weights)

    def _sort_on_side_stream(self, lookup: TableLookup, rows: Tensor, bags: Bags | None) -> None:
        """Sort while rows are read and the model computes, after all that was queued here.

        `apply` waits for it, so memory of the side stream is not reused too early.
        """
        self.join()
        if self._side_stream is None:
            self._sorted = Sorted(lookup, rows, bags, self._sort_bags(lookup, rows, bags))
            return
        self._side_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side_stream):
            self._sorted = Sorted(lookup, rows, bags, self._sort_bags(lookup, rows, bags))
        self._sorting = self._sorted

    def take_sorted(self, counts: Sequence[int]) -> Sorted | None:
        """Take the sorted ids of the last training lookup, if it had `counts` ids of each table."""
        last_sorted, self._sorted = self._sorted, None
        self.join()
        if last_sorted is None or last_sorted.lookup.counts != tuple(counts):
            return None
        return last_sorted

    def forget_sorted(self) -> None:
        """Forget the sorted ids of the last training lookup."""
        self._sorted = None
        self.join()

    def join(self) -> None:
        """Make this stream wait for sorting on the side stream."""
        if self._sorting is not None:
            assert self._side_stream is not None
            torch.cuda.current_stream(self.device).wait_stream(self._side_stream)
            self._sorting = None

    def apply(self, segments: Segments, grads: Tensor) -> None:
        """Update every row once by the sum of its gradients [n, dim], or of bags [bags, dim]."""
        gpu_update.update(
            segments, grads, self.arena, self.optimizer, long_stream=self._side_stream
        )

    def push(self, lookup: TableLookup, grads: Tensor, lr: float, bags: Bags | None = None) -> None:
        """One optimizer step by gradients [n, dim] of ids, or of bags [bags, dim]."""
        self.begin(lr, lookup)
        self.forget_sorted()
        self.sort_and_apply(lookup, grads.contiguous(), bags)

    def sort_and_apply(self, lookup: TableLookup, grads: Tensor, bags: Bags | None = None) -> None:
        """The step itself, after `begin`."""
        if len(lookup.ids):
            self.apply(self._sort_bags(lookup, None, bags), grads)

    def _watch(self) -> None:
        """Refuse ids that a table cannot have; on a GPU those of steps whose news has come."""
        if self._side_stream is None:
            self._refuse(self.wrong)
        elif self._seen_at.query():
            self._refuse(self._seen)
            self._seen.copy_(self.wrong, non_blocking=True)
            self._seen_at.record()

    def check(self) -> None:
        """Wait for the device, and refuse ids that a table cannot have."""
        self._refuse(self.wrong.cpu())

    def _refuse(self, wrong: Tensor) -> None:
        number, id_ = wrong.tolist()
        if number:
            self.wrong.zero_()
            wrong.zero_()
            raise self._outside(self.tables[number - 1], id_)

    def _outside(self, table: Table, id_: int) -> ValueError:
        return table.outside(id_)

    # ---- rows of one table, in host memory -------------------------------------------------------

    def export(self, number: int, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row of a table, in chunks of ascending id."""
        start, stop = self.first_rows[number], self.first_rows[number + 1]
        for begin in range(start, stop, chunk_rows):
            places = torch.arange(begin, min(begin + chunk_rows, stop), device=self.device)
            yield self._rows((places - start).cpu(), places)

    def restore(self, number: int, rows: Rows) -> None:
        """Take over rows of a table, values and state; the chunk must have been checked."""
        places = rows.ids.to(self.device) + self.first_rows[number]
        self._write(number, rows.ids, rows.values, places)
        self._write_state(rows, places)

    def assign(self, number: int, ids: Tensor, values: Tensor) -> None:
        """Set values of rows that a table has, distinct ids [n], values [n, dim]; state stays."""
        self._write(number, ids, values, ids.to(self.device) + self.first_rows[number])

    def whole(self, number: int) -> Tensor:
        """The rows of a fixed table themselves [rows, dim]; bfloat16 ones as int16."""
        return self.arena.values[self.first_rows[number] : self.first_rows[number + 1]]

    def count(self, number: int) -> int:
        """Rows that a table has."""
        return self.first_rows[number + 1] - self.first_rows[number]

    def _rows(self, ids: Tensor, places: Tensor) -> Rows:
        state = {key: part[places].cpu() for key, part in self.arena.state.items()}
        return Rows(ids, self.read_values(places).cpu(), state)

    def read_values(self, places: Tensor) -> Tensor:
        """Rows of the arena as float32."""
        values = self.arena.values[places]
        return values.view(torch.bfloat16).float() if self.half else values

    def _write(self, number: int, ids: Tensor, values: Tensor, places: Tensor) -> None:
        padding = self.tables[number].padding
        values = values.to(self.device)
        if padding is not None:  # the padding id always reads as zeros
            values = values.masked_fill((ids == padding).to(self.device)[:, None], 0.0)
        if self.half:
            values = values.to(torch.bfloat16).view(torch.int16)
        self.arena.values[places] = values

    def _write_state(self, rows: Rows, places: Tensor) -> None:
        for key, part in self.arena.state.items():
            part[places] = rows.state[key].to(self.device)
