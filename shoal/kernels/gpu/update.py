"""Triton kernels that sum gradients of equal rows and update each row once, in a fixed order.

One pass over segments of equal keys (gpu_segments): the gradients of a row are added in order of
arrival and the optimizer is applied before they leave the chip. A long segment is summed in its
pieces first, and by them then: no program walks it alone, and the sum is always made in the same
order. No float is added by atomics.

How much there is to do is known on the device alone: programs are as many as keep it busy, and each
takes pieces of work in turn with the others.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common.rules import RowRule
from shoal.kernels.gpu.lookup import read_rows, table_of
from shoal.kernels.gpu.optim import EXACT, constants, step
from shoal.kernels.gpu.random import Recipes, initial, narrow, nearest, noise_of, widen
from shoal.kernels.gpu.segments import WINDOW, Segments

PARTS = 64  # windows of a long segment that are added at once
SUMMERS = 2112  # programs that look for long segments, of which there may be none


@dataclass(frozen=True)
class Arena:
    """Rows of all tables of one width, and their state."""

    values: Tensor  # [rows, dim] float32, or bfloat16 as int16
    state: dict[str, Tensor]  # each [rows] or [rows, dim] float32
    numbers: Tensor  # [4] float32: see gpu_optim
    steps: Tensor  # [1] int64: the step that is made
    bases: Tensor  # [tables + 1] int64: where the keys of each table begin
    recipes: Recipes


# fmt: off
@triton.jit
def _load_grads(grads, order, weights, place, here, column, DIM: tl.constexpr,
                WEIGHTED: tl.constexpr):
    """Gradients [n, width] of the occurrences at places of the sorted order; zeros if not here.

    Every place must be one: with masks Triton 3.6 fails to compile tiles of many narrow rows.
    """
    row = tl.load(order + place).to(tl.int64)
    inside = here[:, None] & (column < DIM)[None, :]
    grad = tl.load(grads + row[:, None] * DIM + column[None, :], mask=inside, other=0.0)
    if WEIGHTED:
        grad = grad * tl.load(weights + place)[:, None]
    return grad


@triton.jit
def _sum_pieces(order, weights, pieces, totals, grads, parts, DIM: tl.constexpr,
                WIDTH: tl.constexpr, WINDOW: tl.constexpr, WEIGHTED: tl.constexpr):
    column = tl.arange(0, WIDTH)
    for piece in range(tl.program_id(0), tl.load(totals), tl.num_programs(0)):
        begin = tl.load(pieces + 2 * piece)
        end = tl.load(pieces + 2 * piece + 1)
        place = begin + tl.arange(0, WINDOW)
        grad = _load_grads(grads, order, weights, tl.minimum(place, end - 1), place < end, column,
                           DIM, WEIGHTED)
        part = 2 * (begin // WINDOW) + (begin % WINDOW != 0).to(tl.int32)
        tl.store(parts + part.to(tl.int64) * DIM + column, tl.sum(grad, 0), mask=column < DIM)


@triton.jit
def _open_rows(values, state_1, state_2, segment_rows, segment, key, here, column,
               BEGIN: tl.constexpr, STATES: tl.constexpr, GROWS: tl.constexpr, HALF: tl.constexpr,
               KIND: tl.constexpr, DIM: tl.constexpr):
    """Rows of segments [n]: where they are, who is new, who has one; values and state [n, width].

    Read before gradients are: both are under way at once.
    """
    row = key.to(tl.int64)
    fresh = key < key
    if GROWS:  # segment_rows: the row; -1: none; below that: a new row, -2 - row
        row = tl.load(segment_rows + segment, mask=here, other=-1).to(tl.int64)
        fresh = row < -1
        here = here & (row != -1)
        row = tl.where(fresh, -2 - row, row)
    existing = here & (fresh == 0)
    inside = existing[:, None] & (column < DIM)[None, :]
    at = row[:, None] * DIM + column[None, :]
    value = read_rows(values, row, existing, column, DIM, HALF)
    first = value
    second = value
    if KIND == "rowwise_adagrad":
        first = tl.load(state_1 + row, mask=existing, other=BEGIN)
    elif STATES >= 1:
        first = tl.load(state_1 + at, mask=inside, other=BEGIN)
    if STATES >= 2:
        second = tl.load(state_2 + at, mask=inside, other=0.0)
    return row, fresh, here, value, first, second


@triton.jit
def _close_rows(values, state_1, state_2, numbers, steps, bases, tables, index_ids, key, row,
                fresh, here, value, first, second, grad, column, recipe_keys, factors, kinds,
                STATES: tl.constexpr, GROWS: tl.constexpr, HALF: tl.constexpr,
                EVERY: tl.constexpr, KIND: tl.constexpr, DIM: tl.constexpr, REST_1: tl.constexpr,
                REST_2: tl.constexpr, MOMENTUM: tl.constexpr, L1: tl.constexpr, L2: tl.constexpr,
                BETA: tl.constexpr, DECAY: tl.constexpr, CLIP: tl.constexpr):
    """A step of opened rows by grad [n, width], and back with them."""
    inside = here[:, None] & (column < DIM)[None, :]
    at = row[:, None] * DIM + column[None, :]
    if GROWS | HALF:
        table = table_of(key, bases, tables)
        if GROWS:
            id_ = tl.load(index_ids + key, mask=here, other=0)
        else:
            id_ = row - tl.load(bases + table)
        if GROWS:  # noqa: SIM102  (one is known when the kernel is compiled)
            if tl.max(fresh.to(tl.int32), 0) != 0:
                begun = initial(id_, table, column, recipe_keys, factors, kinds, EVERY)
                if HALF:
                    begun = widen(nearest(begun))
                value = tl.where(fresh[:, None], begun, value)
    value, first, second = step(value, first, second, grad, numbers, KIND, DIM, REST_1, REST_2,
                                MOMENTUM, L1, L2, BETA, DECAY, CLIP)
    if HALF:
        noise = noise_of(id_, recipe_keys, table, tables, tl.load(steps), column)
        tl.store(values + at, narrow(value, noise), mask=inside)
    else:
        tl.store(values + at, value, mask=inside)
    if KIND == "rowwise_adagrad":
        tl.store(state_1 + row, first, mask=here)
    elif STATES >= 1:
        tl.store(state_1 + at, first, mask=inside)
    if STATES >= 2:
        tl.store(state_2 + at, second, mask=inside)


@triton.jit
def _update_long(keys, order, weights, starts, total, long, totals, grads, parts, values, state_1,
                 state_2, numbers, steps, bases, tables, index_ids, segment_rows, recipe_keys,
                 factors, kinds, WIDTH: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr,
                 BEGIN: tl.constexpr, STATES: tl.constexpr, GROWS: tl.constexpr,
                 HALF: tl.constexpr, EVERY: tl.constexpr, KIND: tl.constexpr, DIM: tl.constexpr,
                 REST_1: tl.constexpr, REST_2: tl.constexpr, MOMENTUM: tl.constexpr,
                 L1: tl.constexpr, L2: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr,
                 CLIP: tl.constexpr):
    column = tl.arange(0, WIDTH)
    zero = tl.zeros([1], tl.int32)
    for k in range(tl.program_id(0), tl.load(totals + 1), tl.num_programs(0)):
        segment = tl.load(long + k)
        begin = tl.load(starts + segment)
        end = tl.load(starts + segment + 1)
        key = zero + tl.load(keys + begin)
        row, fresh, here, value, first, second = _open_rows(
            values, state_1, state_2, segment_rows, zero + segment, key, zero == 0, column, BEGIN,
            STATES, GROWS, HALF, KIND, DIM)
        window = begin // WINDOW
        second_part = (begin % WINDOW != 0).to(tl.int32)  # another segment's lies before
        stop = (end - 1) // WINDOW + 1
        sums = tl.zeros([PARTS, WIDTH], tl.float32)
        for start in range(window, stop, PARTS):
            windows = start + tl.arange(0, PARTS)
            part = 2 * windows + tl.where(windows == window, second_part, 0)
            inside = (windows < stop)[:, None] & (column < DIM)[None, :]
            sums += tl.load(parts + part.to(tl.int64)[:, None] * DIM + column[None, :],
                            mask=inside, other=0.0)
        _close_rows(values, state_1, state_2, numbers, steps, bases, tables, index_ids, key, row,
                    fresh, here, value, first, second, tl.sum(sums, 0)[None, :], column,
                    recipe_keys, factors, kinds, STATES, GROWS, HALF, EVERY, KIND, DIM, REST_1,
                    REST_2, MOMENTUM, L1, L2, BETA, DECAY, CLIP)


@triton.jit
def _update(keys, order, weights, starts, total, long, totals, grads, parts, values, state_1,
            state_2, numbers, steps, bases, tables, index_ids, segment_rows, recipe_keys, factors,
            kinds, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
            BLOCK: tl.constexpr, AHEAD: tl.constexpr, BEGIN: tl.constexpr,
            STATES: tl.constexpr, GROWS: tl.constexpr, HALF: tl.constexpr, EVERY: tl.constexpr,
            KIND: tl.constexpr, DIM: tl.constexpr, REST_1: tl.constexpr, REST_2: tl.constexpr,
            MOMENTUM: tl.constexpr, L1: tl.constexpr, L2: tl.constexpr, BETA: tl.constexpr,
            DECAY: tl.constexpr, CLIP: tl.constexpr):
    count = tl.load(total)
    column = tl.arange(0, WIDTH)
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        segment = block * BLOCK + tl.arange(0, BLOCK)
        here = segment < count
        begin = tl.load(starts + segment, mask=here, other=0)
        end = tl.load(starts + segment + 1, mask=here, other=0)
        key = tl.load(keys + begin, mask=here, other=-1)
        here = here & (end - begin <= WINDOW) & (key >= 0)
        final = tl.where(here, end - 1, begin)  # of others nothing is stored
        grad = _load_grads(grads, order, weights, begin, here, column, DIM, WEIGHTED)
        row, fresh, here, value, first, second = _open_rows(
            values, state_1, state_2, segment_rows, segment, key, here, column, BEGIN, STATES,
            GROWS, HALF, KIND, DIM)
        longest = tl.max(final - begin, 0) + 1
        for k in range(1, longest, AHEAD):  # added one after the other, read AHEAD at once
            for more in tl.static_range(AHEAD):
                place = begin + k + more
                grad += _load_grads(grads, order, weights, tl.minimum(place, final),
                                    place <= final, column, DIM, WEIGHTED)
        _close_rows(values, state_1, state_2, numbers, steps, bases, tables, index_ids, key, row,
                    fresh, here, value, first, second, grad, column, recipe_keys, factors, kinds,
                    STATES, GROWS, HALF, EVERY, KIND, DIM, REST_1, REST_2, MOMENTUM, L1, L2, BETA,
                    DECAY, CLIP)
# fmt: on


def update(
    segments: Segments,
    grads: Tensor,
    arena: Arena,
    optimizer: RowRule,
    index_ids: Tensor | None = None,
    segment_rows: Tensor | None = None,
    long_stream: torch.cuda.Stream | None = None,
) -> None:
    """One step of the rows of all segments by grads [n, dim], or those of bags [bags, dim].

    long_stream: where long segments are taken, whose rows are no others'.

    Keys are rows of the arena. Of growing tables they are places of the index: index_ids [places]
    has their ids, segment_rows [segments] their rows (see gpu_index.assign_rows).
    """
    n, dim = len(segments.keys), grads.shape[1]
    windows = len(segments.long)
    parts = torch.empty(2 * windows, dim, device=grads.device)
    gradients = _gradient_arguments(segments, grads, parts)
    rows = _row_arguments(segments, arena, index_ids, segment_rows)
    summing = {"WIDTH": triton.next_power_of_2(dim), "WINDOW": WINDOW.value}
    weighted = {"WEIGHTED": segments.weights is not None}
    learning: dict[str, Any] = {
        "BEGIN": next(iter(optimizer.initial_state().values()), 0.0),
        "STATES": len(arena.state),
        "GROWS": segment_rows is not None,
        "HALF": arena.values.dtype == torch.int16,
        "EVERY": arena.recipes.every,
        **constants(optimizer, dim),
    }
    # Long segments: their pieces are summed window by window, then each is one step.
    if long_stream is not None:
        long_stream.wait_stream(torch.cuda.current_stream())
    with nullcontext() if long_stream is None else torch.cuda.stream(long_stream):
        _sum_pieces[(min(2 * windows, SUMMERS),)](
            segments.order,
            _or_unread(segments.weights, segments),
            segments.pieces,
            segments.totals,
            grads,
            parts,
            DIM=dim,
            **summing,
            **weighted,
            **EXACT,
        )
        _update_long[(min(windows, SUMMERS),)](
            *gradients, *rows, PARTS=PARTS, **summing, **learning, **EXACT
        )
    # All others: a program sums the gradients of some segments and takes the steps of their rows.
    shape = dict(update_shape(dim))
    programs = shape.pop("PROGRAMS")
    _update[(min(triton.cdiv(n, shape["BLOCK"]), programs),)](
        *gradients, *rows, **weighted, **summing, **learning, **shape, **EXACT
    )
    if long_stream is not None:
        torch.cuda.current_stream().wait_stream(long_stream)


def _gradient_arguments(segments: Segments, grads: Tensor, parts: Tensor) -> list[Any]:
    """What is summed, in the order of the first parameters of `_update` and `_update_long`."""
    return [
        segments.keys,
        segments.order,
        _or_unread(segments.weights, segments),
        segments.starts,
        segments.count,
        segments.long,
        segments.totals,
        grads,
        parts,
    ]


def _row_arguments(
    segments: Segments, arena: Arena, index_ids: Tensor | None, segment_rows: Tensor | None
) -> list[Any]:
    """What is updated, in the order of the further parameters of `_update` and `_update_long`."""
    state = list(arena.state.values())
    return [
        arena.values,
        _or_unread(state[0] if len(state) > 0 else None, segments),
        _or_unread(state[1] if len(state) > 1 else None, segments),
        arena.numbers,
        arena.steps,
        arena.bases,
        len(arena.bases) - 1,
        _or_unread(index_ids, segments),
        _or_unread(segment_rows, segments),
        arena.recipes.keys,
        arena.recipes.factors,
        arena.recipes.kinds,
    ]


def _or_unread(tensor: Tensor | None, segments: Segments) -> Tensor:
    """The tensor; without one, some pointer that the kernel takes and never reads."""
    return segments.keys if tensor is None else tensor


def update_shape(dim: int) -> dict[str, int]:
    """How many segments a program takes at a time, by how many warps; gradients read at once."""
    width = triton.next_power_of_2(dim)
    return {"BLOCK": max(1, 1024 // width), "num_warps": 4, "AHEAD": 2, "PROGRAMS": 8192}
