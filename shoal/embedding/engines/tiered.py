"""Tiered: an engine whose rows are in host memory while they are used, and on a disk otherwise.

    index   id -> code: 0, never updated; 1 to slots, in host memory; above, a place on the disk
    hot     a table of the native core with a row for each slot
    cold    RowRecords: values and optimizer state, id by id

A row is updated in a slot, always: cold ones are put into slots before, those of rows that were not
used for longest, which are written to the disk first. So every number is that of an engine which
has all rows in memory, bit for bit. `prefetch` has the system read files of the next batch's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.native import Native
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.engines.row_records import RowRecords, distinct
from shoal.embedding.engines.traffic import Traffic
from shoal.embedding.rows.admission import Shrink
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import Ids, Rows
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer

NOBODY = 1 << 62  # the time of a slot without a row
AT_ONCE = 1 << 16  # rows that pass through memory on their way at a time


class Tiered(RowEngine):
    """Rows of one table, `slots` of them in host memory and the others in a folder.

    With a device, slots are in its memory (kernels of GpuEngine); without a folder, the other
    rows are in host memory.
    """

    offloaded = True

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        slots: int,
        folder: Path | None,
        *,
        device: torch.device | str | None = None,
        segment_rows: int | None = None,
    ):
        super().__init__(table, optimizer, seed)
        self.slots = slots
        self._at_once = max(1, min(AT_ONCE, slots // 2))  # rows that are taken over at a time
        plain, zeros = RowOptimizer("sgd"), Init("constant", 0.0)
        hot_table = Table(table.name, table.dim, slots, zeros)
        self.hot: Any
        if device is None:
            self.hot = Native(hot_table, optimizer, seed)
        else:  # Triton comes in with it
            from shoal.embedding.engines.gpu_engine import make_gpu_engines

            self.hot = make_gpu_engines([hot_table], optimizer, seed, device)[0]
        self._begin = Native(table.grown, plain, seed)  # holds nothing
        self._index_table, self._plain = Table(table.name, 2, table.rows, zeros), plain
        self._pieces = optimizer.widths(table.dim)
        self._floats = table.dim + sum(self._pieces.values())  # of a record, after its id
        self.cold = RowRecords(folder, table.name, 1 + -(-self._floats // 2), segment_rows)
        self._pool = ThreadPoolExecutor(1, f"rows of {table.name}")
        self.traffic = Traffic()
        self._clear()

    def _clear(self) -> None:
        self.index = Native(self._index_table, self._plain, 0)
        self.owner = torch.full((self.slots,), -1, dtype=torch.int64)
        self.used = torch.full((self.slots,), NOBODY)  # the time of the last use
        self.free = torch.arange(self.slots - 1, -1, -1)
        self.held = 0  # rows, hot and cold
        self.time = 0
        self._pulled: tuple[Tensor, Tensor] | None = None  # the last ids, and their codes now
        self._ahead: Future[None] | None = None  # what is read for the next batch

    def __len__(self) -> int:
        return self.held if self.table.rows is None else self.table.rows

    @property
    def memory(self) -> int:
        """Bytes of host memory that rows, state and index take, without cold rows."""
        hot = self.hot.memory if isinstance(self.hot, Native) else 0
        return hot + self.index.memory + 16 * self.slots

    # ---- reading and updating --------------------------------------------------------------------

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        if self.cold.folder is not None and (self._ahead is None or self._ahead.done()):
            flat = self.ids_inside(torch.cat(list(ids)))
            self._ahead = self._pool.submit(self._read_ahead, flat)

    def pull(self, ids: Ids) -> Tensor:
        codes = self._staged(flat := self.ids_inside(ids))
        if codes is None:  # more than a step: to be read alone, and slots stay whose they are
            parts = [self._peek(some).values for some in flat.split(AT_ONCE)]
            return torch.cat(parts).to(self.hot.device)
        if bool(codes.all()):
            return self.hot.pull(codes - 1)
        rows = self._begin.pull(flat).to(self.hot.device)
        places = codes.nonzero().squeeze(1)
        return rows.index_copy_(0, places.to(rows.device), self.hot.pull(codes[places] - 1))

    def pull_bags(self, ids: Tensor, bags: Bags) -> Tensor:
        codes = self._staged(self.ids_inside(ids))
        if codes is None or not bool(codes.all()):  # some have no slot
            return super().pull_bags(ids, bags).to(self.hot.device)
        return self.hot.pull_bags(codes - 1, bags)

    def _staged(self, flat: Tensor) -> Tensor | None:
        """Codes of ids [n], cold rows put into slots; None: they are too many for that."""
        codes = self._codes(flat)
        if len(flat) > self.slots and len(distinct(flat)[0]) > self.slots // 2:
            return None
        before = self.traffic.cold
        if bool((codes > self.slots).any()):
            codes = self._stage(flat, codes)
        else:
            self._note(codes)
        self.traffic.hot += len(flat) - (self.traffic.cold - before)
        self._pulled = flat, codes
        return codes

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        self.flat_counts(counts, len(grads))  # none: its ids are not counted
        self._push(self.ids_inside(ids), grads, lr, None)

    def push_bags(
        self, ids: Tensor, grads: Tensor, bags: Bags, lr: float, counts: Tensor | None = None
    ) -> None:
        self.flat_counts(counts, ids.numel())  # none: its ids are not counted
        flat = self.ids_inside(ids)
        self._push(flat, grads, lr, self.flat_bags(bags, len(flat)))

    def _push(self, flat: Tensor, grads: Tensor, lr: float, bags: Bags | None) -> None:
        grads = self.hot.flat_grads(grads, len(flat) if bags is None else len(bags))
        if self.table.padding is not None and len(flat):
            real = flat != self.table.padding
            if not bool(real.all()):
                flat = flat[real]
                if bags is None:
                    grads = grads[real.to(grads.device)]
                else:
                    bags = bags.keep_ids(real)
        if self._pulled is not None and self._pulled[0] is flat:  # they are where they were
            codes = self._pulled[1]
        else:
            codes = self._codes(flat)
        if not bool(codes.all()) or bool((codes > self.slots).any()):
            codes = self._stage(flat, codes, make=True)
        else:
            self._note(codes)
        self.hot.step = self._step
        if bags is None:
            self.hot.push(codes - 1, grads, lr)
        else:
            self.hot.push_bags(codes - 1, grads, bags, lr)
        self._step += 1

    def _codes(self, ids: Tensor) -> Tensor:
        """The codes of ids [n]: where their rows are (see the class)."""
        return self.index.pull(ids).view(torch.int64).squeeze(1)

    def _note(self, codes: Tensor) -> None:
        """Rows in slots are used now."""
        self.time += 1
        slots = codes - 1
        self.used.index_fill_(0, slots if bool(codes.all()) else slots[slots >= 0], self.time)

    def _stage(self, ids: Tensor, codes: Tensor, make: bool = False) -> Tensor:
        """Give slots to all cold rows of ids [n]; make: also to ids that have no row yet."""
        self.time += 1
        hot = (codes > 0) & (codes <= self.slots)
        self.used.index_fill_(0, codes[hot] - 1, self.time)  # so that they stay
        cold_ids = distinct(ids[codes > self.slots])[0]
        new_ids = distinct(ids[codes == 0])[0] if make else ids[:0]
        slots_taken = self._take_slots(len(cold_ids) + len(new_ids))
        if len(cold_ids):
            places = self._codes(cold_ids) - self.slots - 1  # which making room may have changed
            records = self.cold.read(places)
            self.traffic.cold += len(cold_ids)
            self.cold.free(places)
            chosen_slots = slots_taken[: len(cold_ids)]
            self.hot.restore(self._rows(records, chosen_slots))
            self._occupy(cold_ids, chosen_slots)
        if len(new_ids):
            chosen_slots = slots_taken[len(cold_ids) :]
            for chunk_ids, slots in zip(new_ids.split(AT_ONCE), chosen_slots.split(AT_ONCE)):
                self.hot.restore(self._initial(chunk_ids, slots))
            self._occupy(new_ids, chosen_slots)
            self.held += len(new_ids)
        return self._codes(ids)

    def _occupy(self, ids: Tensor, slots: Tensor) -> None:
        self.owner.index_copy_(0, slots, ids)
        self.used.index_fill_(0, slots, self.time)
        self._set_codes(ids, slots + 1)

    def _set_codes(self, ids: Tensor, codes: Tensor) -> None:
        self._pulled = None
        self.index.assign(ids, codes.contiguous().view(torch.float32).view(-1, 2))

    def _take_slots(self, count: int) -> Tensor:
        """Ascending slots [count] without an owner; others' rows go to the disk for it."""
        if len(self.free) < count:
            self._evict(count - len(self.free))
        slots_taken = self.free[len(self.free) - count :].sort().values
        self.free = self.free[: len(self.free) - count]
        return slots_taken

    def _evict(self, count: int) -> None:
        """Write rows that were not used for longest to the disk, `count` or more."""
        idle = (self.used < self.time).nonzero().squeeze(1)
        if len(idle) < count:
            key = "rows.tiers.host" if isinstance(self.hot, Native) else "rows.tiers.gpu"
            raise ValueError(
                f"table {self.table.name!r}: one step uses more rows than the {self.slots:,} that "
                f"its share of {key} has room for: raise it, or train in smaller batches "
                "(train.batch_size)"
            )
        count = min(len(idle), max(count, self.slots // 16))  # a part of them, not one by one
        times = self.used.index_select(0, idle)
        victims = idle.index_select(0, times.topk(count, largest=False, sorted=False).indices)
        for slots in victims.split(AT_ONCE):
            ids = self.owner.index_select(0, slots)
            places = self.cold.put(self._records(ids, self.hot._read(slots)))
            self._set_codes(ids, places + self.slots + 1)
        self.used.index_fill_(0, victims, NOBODY)
        self.free = torch.cat([self.free, victims])
        self.traffic.evicted += count

    # ---- rows on their way -----------------------------------------------------------------------

    def _read_ahead(self, ids: Tensor) -> None:
        """In a thread: lets the system read what is cold of the ids, so that it is at hand soon."""
        places = (self._codes(ids) - self.slots - 1).unique()
        places = places[places >= 0]
        self.cold.peek(places)
        self.traffic.ahead += len(places)

    def _records(self, ids: Tensor, rows: Rows) -> Tensor:
        """Rows as records: [n, words] int64."""
        floats = torch.zeros(len(ids), 2 * self.cold.words)
        state = [rows.state[key].view(len(ids), -1) for key in self._pieces]
        torch.cat([rows.values, *state], 1, out=floats[:, 2 : 2 + self._floats])
        records = floats.view(torch.int64)
        records[:, 0] = ids
        return records

    def _rows(self, records: Tensor, ids: Tensor) -> Rows:
        """Rows from records (see `_records`), under these ids."""
        floats = records.view(torch.float32)[:, 2 : 2 + self._floats]
        widths = [self.table.dim, *self._pieces.values()]
        values, *state = (part.contiguous() for part in floats.split(widths, 1))
        shapes = self.state_shapes(len(ids))
        named = {key: part.view(shapes[key][0]) for key, part in zip(self._pieces, state)}
        return Rows(ids, values, named)

    def _initial(self, ids: Tensor, keys: Tensor | None = None) -> Rows:
        """Rows that never learned, under their ids or others."""
        keys = ids if keys is None else keys
        return Rows(keys, self._begin.pull(ids), self.fresh_state(len(ids)))

    def _peek(self, ids: Tensor) -> Rows:
        """Rows of ids [n], wherever they are and stay."""
        codes = self._codes(ids)
        rows = self._initial(ids)
        hot = ((codes > 0) & (codes <= self.slots)).nonzero().squeeze(1)
        cold = (codes > self.slots).nonzero().squeeze(1)
        parts = [(hot, self.hot._read(codes[hot] - 1))] if len(hot) else []
        if len(cold):
            records = self.cold.read(codes[cold] - self.slots - 1)
            parts.append((cold, self._rows(records, ids[cold])))
        for places, part in parts:
            rows.values[places] = part.values
            for key, piece in part.state.items():
                rows.state[key][places] = piece
        return rows

    # ---- checkpoints -----------------------------------------------------------------------------

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        if self.table.rows is not None:
            for start in range(0, self.table.rows, chunk_rows):
                yield self._peek(torch.arange(start, min(start + chunk_rows, self.table.rows)))
            return
        sorted_ids = self.index.core.sorted_ids()
        for ids in sorted_ids.split(chunk_rows):
            if len(ids):
                yield self._peek(ids.clone())

    def restore(self, rows: Rows) -> None:
        self.check_rows(rows)
        rows = self.real_rows(rows)
        for start in range(0, len(rows.ids), self._at_once):
            self._put(rows.select(slice(start, start + self._at_once)))

    def _put(self, rows: Rows) -> None:
        """Rows into slots; the places of those that were cold are free."""
        self.time += 1
        codes = self._codes(rows.ids)
        hot = (codes > 0) & (codes <= self.slots)
        self.used[codes[hot] - 1] = self.time
        cold = codes > self.slots
        self.cold.free(codes[cold] - self.slots - 1)
        self._set_codes(rows.ids[cold], torch.zeros_like(codes[cold]))
        self.held += int((codes == 0).sum())
        codes[~hot] = self._take_slots(int((~hot).sum())) + 1
        slots, order = (codes - 1).sort()
        rows = rows.select(order)
        self.hot.restore(replace(rows, ids=slots))
        self._occupy(rows.ids, slots)

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        for chunk_ids, chunk_values in zip(ids.split(self._at_once), values.split(self._at_once)):
            order = chunk_ids.argsort()
            rows = self._peek(chunk_ids[order])
            self.restore(replace(rows, values=chunk_values[order]))

    def forget(self) -> None:
        self.cold.clear()
        self._clear()

    def shrink(self, rule: Shrink) -> int:
        raise ValueError(
            f"table {self.table.name!r} has rows on a disk (rows.tiers), and such rows are not "
            "dropped: leave out rows.shrink, or rows.tiers"
        )
