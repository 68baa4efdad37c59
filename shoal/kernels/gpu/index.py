"""Triton kernels of a hash index in GPU memory: ids of growing tables -> rows of an arena.

Open addressing with linear probing, at most half full. Every table has a stretch of places of its
own, a power of two of them; bases [tables + 1] says where. A place holds an id and the row it has
(-1: none yet).

Ids are entered by compare-and-swap, so their places depend on who came first, and so do the rows
they get. Nothing that is read or learned depends on either: gradients of an id are summed in order
of arrival wherever its row lies, and exports are sorted by id.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.gpu.lookup import ABSENT, UNKNOWN, TableLookup, note_wrong, table_of
from shoal.kernels.gpu.random import INCREMENT, mix
from shoal.kernels.gpu.segments import Segments

EMPTY = tl.constexpr(-(1 << 63))  # in place of an id; as an id it is refused
BLOCK = 256


@dataclass
class Index:
    """Where the ids of several growing tables are, and who has a row."""

    bases: Tensor  # [tables + 1] int64
    ids: Tensor  # [places] int64
    rows: Tensor  # [places] int32
    entries: Tensor  # [tables] int32: places that are taken

    @classmethod
    def make(cls, sizes: list[int], device: torch.device) -> Index:
        """An empty one; sizes are powers of two, one for each table."""
        bases = torch.tensor([0, *sizes]).cumsum(0)
        places = int(bases[-1])
        if places >= 1 << 31:
            raise ValueError(
                f"an index of {places} places: growing tables on a GPU have fewer than 2^30 ids"
            )
        return cls(
            bases.to(device),
            torch.full((places,), EMPTY.value, dtype=torch.int64, device=device),
            torch.full((places,), -1, dtype=torch.int32, device=device),
            torch.zeros(len(sizes), dtype=torch.int32, device=device),
        )


# fmt: off
@triton.jit
def _home(id_, mask):
    return (mix(id_ + INCREMENT) >> 20) & mask


@triton.jit
def _enter(ids, id_, base, mask, active):
    """Places of ids [n], entered where they are new; and which were entered by us."""
    at = _home(id_, mask)
    won = active & (id_ != id_)
    while tl.max(active.to(tl.int32), 0) > 0:
        cell = ids + base + at
        there = tl.load(cell, mask=active, other=0)
        free = active & (there == EMPTY)
        if tl.max(free.to(tl.int32), 0) > 0:
            # Who does not want a place exchanges nothing for nothing.
            nothing = tl.zeros_like(id_) + EMPTY
            old = tl.atomic_cas(cell, nothing, tl.where(free, id_, nothing))
            won = won | (free & (old == EMPTY))
            there = tl.where(free, tl.where(old == EMPTY, id_, old), there)
        active = active & (there != id_)
        at = tl.where(active, (at + 1) & mask, at)
    return base + at, won


@triton.jit
def _ids_of(ids, starts, bases, paddings, has_padding, wrong, BLOCK: tl.constexpr):
    """A block of a table: places in the lookup, which of them are there, ids, which of these are
    looked up, and base and mask of the table's index."""
    table = tl.program_id(0)
    place = tl.load(starts + table) + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < tl.load(starts + table + 1)
    id_ = tl.load(ids + place, mask=here, other=0)
    base = tl.load(bases + table)
    mask = tl.load(bases + table + 1) - base - 1
    outside = here & (id_ == EMPTY)
    note_wrong(wrong, table, id_, outside)
    padding = (id_ == tl.load(paddings + table)) & (tl.load(has_padding + table) != 0)
    return place, here, id_, here & (outside == 0) & (padding == 0), base, mask


@triton.jit
def _find(ids, starts, paddings, has_padding, wrong, bases, index_ids, index_rows, rows,
          BLOCK: tl.constexpr):
    place, here, id_, active, base, mask = _ids_of(ids, starts, bases, paddings, has_padding,
                                                   wrong, BLOCK)
    at = _home(id_, mask)
    row = tl.where(active, UNKNOWN, ABSENT)
    while tl.max(active.to(tl.int32), 0) > 0:
        there = tl.load(index_ids + base + at, mask=active, other=EMPTY)
        hit = active & (there == id_)
        stored_row = tl.load(index_rows + base + at, mask=hit, other=-1)
        row = tl.where(stored_row >= 0, stored_row, row)
        active = active & (there != id_) & (there != EMPTY)
        at = (at + 1) & mask
    tl.store(rows + place, row, mask=here)


@triton.jit
def _insert(ids, starts, paddings, has_padding, wrong, bases, index_ids, entries, places,
            BLOCK: tl.constexpr):
    place, here, id_, active, base, mask = _ids_of(ids, starts, bases, paddings, has_padding,
                                                   wrong, BLOCK)
    at, won = _enter(index_ids, id_, base, mask, active)
    tl.store(places + place, tl.where(active, at, ABSENT).to(tl.int32), mask=here)
    new = tl.sum(won.to(tl.int32), 0)
    if new > 0:
        tl.atomic_add(entries + tl.program_id(0), new)


@triton.jit
def _assign_rows(keys, starts, total, index_rows, free, used, segment_rows, BLOCK: tl.constexpr):
    count = tl.load(total)
    if tl.program_id(0) * BLOCK < count:
        segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        here = segment < count
        begin = tl.load(starts + segment, mask=here, other=0)
        place = tl.load(keys + begin, mask=here, other=-1)
        here = here & (place >= 0)
        row = tl.load(index_rows + place, mask=here, other=-1)
        fresh = here & (row < 0)
        new = tl.sum(fresh.to(tl.int32), 0)
        result = row
        if new > 0:
            first = tl.atomic_add(used, new)
            rank = first + tl.cumsum(fresh.to(tl.int32), 0) - 1
            new_row = tl.load(free + rank, mask=fresh, other=0)
            tl.store(index_rows + place, new_row, mask=fresh)
            result = tl.where(fresh, -2 - new_row, row)
        tl.store(segment_rows + segment, result, mask=segment < count)


@triton.jit
def _move(old_bases, old_ids, old_rows, keep, places, tables, bases, ids, rows, entries,
          KEEP: tl.constexpr, BLOCK: tl.constexpr):
    """Enter a block of places of another index. A block has places of one table alone."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    id_ = tl.load(old_ids + place, mask=place < places, other=EMPTY)
    active = id_ != EMPTY
    if KEEP:
        active = active & (tl.load(keep + place, mask=active, other=0) != 0)
    table = tl.max(table_of(place, old_bases, tables), 0)
    base = tl.load(bases + table)
    at, won = _enter(ids, id_, base, tl.load(bases + table + 1) - base - 1, active)
    tl.store(rows + at, tl.load(old_rows + place, mask=active, other=-1), mask=active)
    tl.atomic_add(entries + table, tl.sum(won.to(tl.int32), 0))
# fmt: on


def find(
    index: Index, lookup: TableLookup, paddings: tuple[Tensor, Tensor], wrong: Tensor
) -> Tensor:
    """Rows [n] int32 of ids; UNKNOWN where an id has none. Nothing is entered."""
    rows = torch.empty(len(lookup.ids), dtype=torch.int32, device=lookup.ids.device)
    if len(rows):
        _find[lookup.grid(BLOCK)](
            lookup.ids,
            lookup.starts,
            *paddings,
            wrong,
            index.bases,
            index.ids,
            index.rows,
            rows,
            BLOCK=BLOCK,
        )
    return rows


def insert(
    index: Index, lookup: TableLookup, paddings: tuple[Tensor, Tensor], wrong: Tensor
) -> Tensor:
    """Places [n] int32 of ids, entered where they are new; there must be room for them."""
    places = torch.empty(len(lookup.ids), dtype=torch.int32, device=lookup.ids.device)
    if len(places):
        _insert[lookup.grid(BLOCK)](
            lookup.ids,
            lookup.starts,
            *paddings,
            wrong,
            index.bases,
            index.ids,
            index.entries,
            places,
            BLOCK=BLOCK,
        )
    return places


def assign_rows(index: Index, segments: Segments, free: Tensor, used: Tensor) -> Tensor:
    """Rows for the ids of segments (keys are places) that have none yet.

    free [rows] int32 lists rows, from used [1] on those without an owner.
    Returns [segments] int32: the row; -1 for none; -2 - row for one that is new.
    """
    n = len(segments.keys)
    segment_rows = torch.empty(n, dtype=torch.int32, device=segments.keys.device)
    _assign_rows[(triton.cdiv(n, BLOCK),)](
        segments.keys,
        segments.starts,
        segments.count,
        index.rows,
        free,
        used,
        segment_rows,
        BLOCK=BLOCK,
    )
    return segment_rows


def rebuild(index: Index, sizes: list[int], keep: Tensor | None = None) -> Index:
    """An index of other sizes with the entries of this one, or those to keep, [places] bool."""
    rebuilt = Index.make(sizes, index.ids.device)
    places = len(index.ids)
    _move[(triton.cdiv(places, BLOCK),)](
        index.bases,
        index.ids,
        index.rows,
        index.ids if keep is None else keep.to(torch.int8),
        places,
        len(sizes),
        rebuilt.bases,
        rebuilt.ids,
        rebuilt.rows,
        rebuilt.entries,
        KEEP=keep is not None,
        BLOCK=BLOCK,
    )
    return rebuilt
