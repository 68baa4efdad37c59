"""Triton kernels that read rows of many tables in one launch.

The tables of one width lie in one arena, values [rows, dim]. Ids of all tables come in one tensor,
table after table:

    ids      3 8 8 | 5 | 2 9 4        starts 0 3 4 7: where each table's begin
    rows     the row of each in the arena; ABSENT for padding, UNKNOWN for an id without a row

`locate` finds the rows of fixed tables (gpu_index.find those of growing ones), `gather` reads them,
and `gather_bags` their sums over bags of ids (embedding/rows/bags.py), each in order of its ids.
Nothing waits for the device: an id outside its table is noted there and reads as zeros.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.gpu.optim import EXACT
from shoal.kernels.gpu.random import Recipes, initial, nearest, widen

ABSENT, UNKNOWN = tl.constexpr(-1), tl.constexpr(-2)
BLOCK = 1024  # ids that one program locates
READERS = 792  # programs that read rows: six for each multiprocessor of a large GPU, so that there
# is room beside them for those that sort


@dataclass(frozen=True)
class TableLookup:
    """Ids of several tables, table after table, on their device."""

    ids: Tensor  # [n] int64
    starts: Tensor  # [tables + 1] int32
    counts: tuple[int, ...]  # how many each table has

    def grid(self, block: int) -> tuple[int, int]:
        """One row of programs for each table."""
        return len(self.counts), max(1, triton.cdiv(max(self.counts), block))


# fmt: off
@triton.jit
def table_of(place, starts, tables):
    """The table that each place [n] lies in, by where tables start."""
    table_number = tl.zeros_like(place).to(tl.int32)
    for table in range(1, tables):
        table_number += (place >= tl.load(starts + table)).to(tl.int32)
    return table_number


@triton.jit
def note_wrong(wrong, table, id_, outside):
    """The first who comes notes its table + 1 and an id that it cannot have."""
    if tl.max(outside.to(tl.int32), 0) != 0:
        nobody = table.to(tl.int64) * 0
        if tl.atomic_cas(wrong, nobody, nobody + table + 1) == 0:
            tl.store(wrong + 1, tl.max(tl.where(outside, id_, -(1 << 63)), 0))


@triton.jit
def _locate(ids, starts, bases, paddings, has_padding, rows, wrong, BLOCK: tl.constexpr):
    table = tl.program_id(0)
    end = tl.load(starts + table + 1)
    place = tl.load(starts + table) + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < end
    id_ = tl.load(ids + place, mask=here, other=0)
    base = tl.load(bases + table)
    outside = here & ((id_ < 0) | (id_ >= tl.load(bases + table + 1) - base))
    padding = (id_ == tl.load(paddings + table)) & (tl.load(has_padding + table) != 0)
    row = tl.where(outside | padding, ABSENT, base + id_)
    tl.store(rows + place, row.to(rows.dtype.element_ty), mask=here)
    note_wrong(wrong, table, id_, outside)


@triton.jit
def read_rows(values, row, here, column, DIM: tl.constexpr, HALF: tl.constexpr):
    """float32 rows [n, width]; zeros where not here."""
    at = row.to(tl.int64)[:, None] * DIM + column[None, :]
    inside = here[:, None] & (column < DIM)[None, :]
    if HALF:
        return widen(tl.load(values + at, mask=inside, other=0))
    else:
        return tl.load(values + at, mask=inside, other=0.0)


@triton.jit
def _read(values, row, ids, starts, tables, place, here, column, recipe_keys, factors, kinds,
          DIM: tl.constexpr, HALF: tl.constexpr, GROWS: tl.constexpr, EVERY: tl.constexpr):
    value = read_rows(values, row, row >= 0, column, DIM, HALF)
    if GROWS:
        unknown = row == UNKNOWN
        if tl.max(unknown.to(tl.int32), 0) != 0:
            id_ = tl.load(ids + place, mask=here, other=0)
            table = table_of(place, starts, tables)
            first = initial(id_, table, column, recipe_keys, factors, kinds, EVERY)
            if HALF:
                first = widen(nearest(first))
            value = tl.where(unknown[:, None], first, value)
    return value


@triton.jit
def _gather(values, rows, ids, starts, tables, count, recipe_keys, factors, kinds, out,
            DIM: tl.constexpr, HALF: tl.constexpr, GROWS: tl.constexpr, EVERY: tl.constexpr,
            WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, WIDTH)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + place, mask=place < count, other=ABSENT)
    for _ in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        here = place < count
        following = place + tl.num_programs(0) * BLOCK
        next_row = tl.load(rows + following, mask=following < count, other=ABSENT)
        value = _read(values, row, ids, starts, tables, place, here, column, recipe_keys, factors,
                      kinds, DIM, HALF, GROWS, EVERY)
        inside = here[:, None] & (column < DIM)[None, :]
        tl.store(out + place[:, None] * DIM + column[None, :], value, mask=inside)
        place, row = following, next_row


@triton.jit
def _gather_bags(values, rows, ids, starts, tables, count, recipe_keys, factors, kinds, offsets,
                 weights, out, DIM: tl.constexpr, HALF: tl.constexpr, GROWS: tl.constexpr,
                 EVERY: tl.constexpr, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr,
                 BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    column = tl.arange(0, WIDTH)
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        bag = block * BLOCK + tl.arange(0, BLOCK)
        here = bag < count
        begin = tl.load(offsets + bag, mask=here, other=0)
        end = tl.load(offsets + bag + 1, mask=here, other=0)
        final = tl.maximum(end - 1, 0)
        sums = tl.zeros([BLOCK, WIDTH], tl.float32)
        longest = tl.max(end - begin, 0)
        for k in range(0, longest, AHEAD):  # added one after the other, read AHEAD at once
            for more in tl.static_range(AHEAD):
                place = begin + k + more
                inside = place < end
                place = tl.minimum(place, final)
                row = tl.where(inside, tl.load(rows + place), ABSENT)
                value = _read(values, row, ids, starts, tables, place, inside, column, recipe_keys,
                              factors, kinds, DIM, HALF, GROWS, EVERY)
                if WEIGHTED:
                    value = value * tl.load(weights + place)[:, None]
                sums += value
        stored = here[:, None] & (column < DIM)[None, :]
        tl.store(out + bag.to(tl.int64)[:, None] * DIM + column[None, :], sums, mask=stored)


# fmt: on


def locate(
    lookup: TableLookup,
    bases: Tensor,
    paddings: tuple[Tensor, Tensor],
    wrong: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Rows [n] of ids of fixed tables, whose rows begin at bases [tables + 1] in the arena.

    wrong [2] int64 becomes table + 1 and id where a table has no row for an id.
    """
    rows = torch.empty(len(lookup.ids), dtype=dtype, device=lookup.ids.device)
    if len(rows):
        _locate[lookup.grid(BLOCK)](
            lookup.ids, lookup.starts, bases, *paddings, rows, wrong, BLOCK=BLOCK
        )
    return rows


def gather(
    values: Tensor,
    rows: Tensor,
    lookup: TableLookup,
    recipes: Recipes,
    grows: bool,
    shape: dict[str, int] | None = None,
) -> Tensor:
    """Rows of the arena: values [rows, dim], float32 or bfloat16 as int16 -> [n, dim] float32."""
    out = torch.empty(len(rows), values.shape[1], device=rows.device)
    if len(rows):
        shape = shape or read_shape(values.shape[1])
        programs = min(READERS, triton.cdiv(len(rows), shape["BLOCK"]))
        _gather[(programs,)](
            *_reading(values, rows, lookup, len(rows), recipes),
            out,
            **_constants(values, recipes, grows),
            **shape,
        )
    return out


def gather_bags(
    values: Tensor,
    rows: Tensor,
    lookup: TableLookup,
    recipes: Recipes,
    grows: bool,
    offsets: Tensor,
    weights: Tensor | None,
    shape: dict[str, int] | None = None,
) -> Tensor:
    """Sums of rows over bags, offsets [bags + 1], times weights [n]: [bags, dim] float32."""
    count = len(offsets) - 1
    if not len(rows) or not count:
        return torch.zeros(count, values.shape[1], device=rows.device)
    out = torch.empty(count, values.shape[1], device=rows.device)
    shape = shape or bag_shape(values.shape[1])
    programs = min(READERS, triton.cdiv(count, shape["BLOCK"]))
    _gather_bags[(programs,)](
        *_reading(values, rows, lookup, count, recipes),
        offsets,
        rows if weights is None else weights,
        out,
        WEIGHTED=weights is not None,
        **_constants(values, recipes, grows),
        **shape,
        **EXACT,
    )
    return out


def bag_shape(dim: int) -> dict[str, int]:
    """How many bags a program sums at a time, how many rows of each it reads at once."""
    return {**read_shape(dim), "AHEAD": 4}


def read_shape(dim: int) -> dict[str, int]:
    """How many rows a program reads, and by how many warps; measured on an H200."""
    width = triton.next_power_of_2(dim)
    return {"WIDTH": width, "BLOCK": max(1, 1024 // width), "num_warps": 4}


def _reading(
    values: Tensor, rows: Tensor, lookup: TableLookup, count: int, recipes: Recipes
) -> tuple[Any, ...]:
    """What kernels read, in the order of their first parameters."""
    return (
        values,
        rows,
        lookup.ids,
        lookup.starts,
        len(lookup.counts),
        count,
        recipes.keys,
        recipes.factors,
        recipes.kinds,
    )


def _constants(values: Tensor, recipes: Recipes, grows: bool) -> dict[str, Any]:
    half = values.dtype == torch.int16
    return {"DIM": values.shape[1], "HALF": half, "GROWS": grows, "EVERY": recipes.every}
