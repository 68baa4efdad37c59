"""CachedGpuTables: a fixed table whose rows are in GPU memory while they are used.

All rows have a place in host memory, which kernels read and write through the bus (gpu_staging).
A row is updated in a slot, always: so every number is that of a table that is in GPU memory whole.
Rows come and go on the stream that computes: nothing is in flight while others read or write.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.leaves import gpu_staging
from shoal.embedding.leaves.gpu_lookup import Lookup
from shoal.embedding.leaves.gpu_optim import make_state
from shoal.embedding.leaves.gpu_random import write_initial
from shoal.embedding.leaves.gpu_staging import SHORT, Slots
from shoal.embedding.leaves.gpu_tables import GpuTables
from shoal.embedding.leaves.traffic import Traffic
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.store import Rows
from shoal.embedding.table import Table

NO_PADDING = -1  # an id that no table has
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
        self.first_rows, self.key_type = [0, table.rows], torch.int32
        self.arena = self._make_arena(slots, torch.tensor([0, slots], device=self.device))
        values = torch.empty(table.rows, self.dim)
        self.host_state = make_state(self.optimizer, table.rows, self.dim, "cpu")
        self.host = [values, *self.host_state.values()]
        self.hot = [self.arena.values, *self.arena.state.values()]
        for part in self.host:
            self._register(part)
        write_initial(values, 0, table, 0, self.recipes)
        self.slots = Slots.make(table.rows, slots, self.device)
        self.padding = NO_PADDING if table.padding is None else table.padding
        self._staged: Tensor | None = None  # ids whose rows are in slots now
        self._asked = 0

    def _register(self, part: Tensor) -> None:
        """Let kernels reach host memory."""
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

    def locate(self, lookup: Lookup) -> Tensor:
        """Slots [n] of the rows, which are there then; too little room is noted."""
        if not len(lookup.ids):
            return torch.empty(0, dtype=torch.int32, device=self.device)
        self._ensure(lookup.ids)
        return gpu_staging.find(lookup.ids, self.slots, self.wrong, self.padding)

    def pull(self, lookup: Lookup, rows: Tensor | None = None) -> Tensor:
        """Rows of all ids: [n, dim] float32."""
        ids = lookup.ids
        if rows is not None or not len(ids):
            return super().pull(lookup, rows)
        if len(ids) <= READ_ALONE * self.number_of_slots:
            self._ensure(ids)
        return gpu_staging.peek(ids, self.slots, self.hot[0], self.host[0], self.padding)

    def _ensure(self, ids: Tensor) -> None:
        """Rows of ids into slots, unless they are there because they were asked for just now."""
        before = self._staged
        if before is None or (before.data_ptr(), len(before)) != (ids.data_ptr(), len(ids)):
            self._stage(ids)

    def _stage(self, ids: Tensor) -> None:
        gpu_staging.stage(ids, self.slots, self.hot, self.host, self.wrong, self.padding)
        self._staged = ids
        self._asked += len(ids)

    @property
    def traffic(self) -> Traffic:
        """Where ids found their rows so far; waits for the GPU."""
        came = int(self.slots.counts[gpu_staging.CAME.value])
        return Traffic(self._asked - came, 0, came, came)

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

    def _rows(self, ids: Tensor, at: Tensor) -> Rows:
        at = at.cpu()
        slot = self._slots_of(at)
        hot = (slot >= 0).nonzero().squeeze(1)
        where = slot[hot].long().to(self.device)
        parts = [part[at] for part in self.host]
        for part, here in zip(parts, self.hot):
            part[hot] = here[where].cpu()
        return Rows(ids, parts[0], dict(zip(self.host_state, parts[1:])))

    def restore(self, number: int, rows: Rows) -> None:
        """Take over rows of the table, values and state; the chunk must have been checked."""
        pieces = [rows.state[key] for key in self.host_state]
        self._put(rows.ids, [self._padded(rows.ids, rows.values), *pieces])

    def assign(self, number: int, ids: Tensor, values: Tensor) -> None:
        """Set values of rows, distinct ids [n], values [n, dim]; state stays."""
        self._put(ids.cpu(), [self._padded(ids.cpu(), values.cpu())])

    def _padded(self, ids: Tensor, values: Tensor) -> Tensor:
        """It reads as zeros, whatever a chunk says."""
        return values.masked_fill((ids == self.padding)[:, None], 0.0)

    def _put(self, ids: Tensor, parts: list[Tensor]) -> None:
        slot = self._slots_of(ids)
        hot = (slot >= 0).nonzero().squeeze(1)
        where = slot[hot].long().to(self.device)
        for part, there, here in zip(parts, self.host, self.hot):
            there[ids] = part
            here[where] = part[hot].to(self.device)

    def _slots_of(self, ids: Tensor) -> Tensor:
        """Slots [n] of ids, in host memory, when all work has ended."""
        self._staged = None
        found = self.slots.slot_of[ids.to(self.device)].cpu()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return found

    def whole(self, number: int) -> Tensor:
        """Not lent: most rows are elsewhere."""
        raise NotImplementedError  # GpuLeaf.lend lends no cached table
