"""Triton kernels that bring rows of a table from host memory into slots of GPU memory, and back.

Host memory that is registered with the GPU is read and written by kernels like its own, through the
bus. So which rows are missing, whose slots they get, and the exchange itself are the GPU's affair:
the host waits for nothing and knows nothing of it. A row's values and state lie side by side there.

    slot_of  [rows]   the slot a row is in; AWAY: in host memory; CALLED: it is wanted now
    owner    [slots]  the row of a slot; -1: none
    used     [slots]  when it was last used, in stagings
    heat     [slots]  how often, old uses counting less: each staging adds 2^(time / HALF_LIFE) to a
                      sum, and this is the sum's logarithm

A staging: `call` notes what is used and marks rows that are away, `list` lists them; `age` counts
slots by how cold their rows are; `choose` finds the coldness from which enough of them are;
`dismiss` lists those; `exchange` writes their rows back and reads the others. Lists are made in the
order of rows, but for chance between neighbouring blocks: who lies close together in host memory
is moved at about the same time, and an address need not be looked up for every row. No number
depends on which slot a row has. Rows of a step that is under way stay (LEAST = 2) while those of
the next one come. When that one begins, the same ids are staged once more: a comparison of ids says
mostly that nothing is left to do.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.gpu.lookup import note_wrong
from shoal.kernels.gpu.segments import _append

AWAY, CALLED = tl.constexpr(-1), tl.constexpr(-2)
AGES = tl.constexpr(256)  # steps of coldness
FRESH, FINE = tl.constexpr(100.0), tl.constexpr(12.0)  # that of a row used once, now; of half a use
HALF_LIFE = tl.constexpr(128.0)  # stagings after which a use counts half
SHORT = -(1 << 63)  # noted in place of an id: a step wants more rows than there are slots
LONG_AGO = -(1 << 20)
# What is counted, int64: stagings, rows called, slots older than the bound, the bound; slots listed
# that are older, and as old; over all stagings rows called when they were needed, and ahead; rows
# that found no room; whether ids differ from those before; whether there is nothing to do.
TIME, WANTED, OLDER, BOUND, LISTED, EQUAL, LATE, EARLY, LACKING, DIFFER, DONE = (
    tl.constexpr(k) for k in range(11)
)
PROGRAMS = 264  # that exchange when nobody computes
# And when somebody does: who waits for the bus keeps others of its multiprocessor waiting.
BESIDE = 33
BLOCK = 1024
SCAN = 2048  # rows that one program looks at


@dataclass(frozen=True)
class CacheSlots:
    """Where the rows of one table are."""

    slot_of: Tensor  # [rows] int32
    owner: Tensor  # [slots] int32, or int64 where there are too many rows
    used: Tensor  # [slots] int32
    heat: Tensor  # [slots] float32
    counts: Tensor  # [11] int64
    ages: Tensor  # [AGES] int32
    levels: Tensor  # [slots] uint8: how cold their rows are

    @classmethod
    def make(cls, rows: int, slots: int, device: torch.device) -> CacheSlots:
        number = torch.int32 if rows < 1 << 31 else torch.int64
        return cls(
            torch.full((rows,), AWAY.value, dtype=torch.int32, device=device),
            torch.full((slots,), -1, dtype=number, device=device),
            torch.full((slots,), LONG_AGO, dtype=torch.int32, device=device),
            torch.zeros(slots, device=device),
            torch.zeros(11, dtype=torch.int64, device=device),
            torch.zeros(AGES.value, dtype=torch.int32, device=device),
            torch.zeros(slots, dtype=torch.uint8, device=device),
        )


# fmt: off
@triton.jit
def _compare(ids, before, counts, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    id_ = tl.load(ids + place, mask=place < count, other=0)
    previous = tl.load(before + place, mask=place < count, other=0)
    if tl.max((id_ != previous).to(tl.int32), 0) != 0:
        tl.store(counts + DIFFER, 1)


@triton.jit
def _begin(counts, ages, COMPARED: tl.constexpr):
    """COMPARED: 1 where ids were compared with those before, else 0."""
    done = (tl.load(counts + DIFFER) + tl.load(counts + LACKING) == 0).to(tl.int64) * COMPARED
    tl.store(counts + TIME, tl.load(counts + TIME) + 1 - done)
    tl.store(counts + DONE, done)
    tl.store(counts + DIFFER, 0)
    tl.store(counts + LACKING, 0)
    for k in tl.static_range(1, 6):
        tl.store(counts + k, 0)
    place = tl.arange(0, AGES)
    tl.store(ages + place, place * 0)


@triton.jit
def _call(ids, slot_of, used, counts, wrong, count, rows, padding, BLOCK: tl.constexpr):
    if tl.load(counts + DONE) == 0:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        here = place < count
        id_ = tl.load(ids + place, mask=here, other=0)
        outside = here & ((id_ < 0) | (id_ >= rows))
        note_wrong(wrong, 0 * tl.program_id(0), id_, outside)
        here = here & (outside == 0) & (id_ != padding)
        id_ = tl.where(here, id_, 0)
        slot = tl.load(slot_of + id_, mask=here, other=CALLED)
        now = tl.load(counts + TIME).to(tl.int32)
        tl.store(used + slot, tl.zeros_like(slot) + now, mask=slot >= 0)
        tl.store(slot_of + id_, tl.zeros_like(slot) + CALLED, mask=slot == AWAY)


@triton.jit
def _list(slot_of, wanted, counts, rows, BLOCK: tl.constexpr):
    if tl.load(counts + DONE) == 0:
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        calls = tl.load(slot_of + row, mask=row < rows, other=AWAY) == CALLED
        if tl.max(calls.to(tl.int32), 0) != 0:
            tl.store(wanted + _append(counts + WANTED, calls), row, mask=calls)


@triton.jit
def _warmed(heat, now):
    """The heat of a row that is used now."""
    new = now.to(tl.float32) / HALF_LIFE
    high = tl.maximum(heat, new)
    return high + tl.log2(1.0 + tl.exp2(tl.minimum(heat, new) - high))


@triton.jit
def _age_of(heat, owner, used, counts, slot, slots, LEAST: tl.constexpr):
    """How cold the rows of slots are, their heat, and who is used now; 0: it stays."""
    here = slot < slots
    now = tl.load(counts + TIME).to(tl.int32)
    time = tl.load(used + slot, mask=here, other=0)
    row = tl.load(owner + slot, mask=here, other=-1)
    value = tl.load(heat + slot, mask=here, other=0.0)
    cold = FRESH + FINE * (now.to(tl.float32) / HALF_LIFE - value)
    age = tl.minimum(tl.maximum(cold, 1.0), AGES - 2.0).to(tl.int32)
    age = tl.where(row >= 0, age, AGES - 1)
    return tl.where(here & (now - time >= LEAST), age, 0), value, here & (time == now)


@triton.jit
def _age(heat, owner, used, counts, levels, ages, slots, LEAST: tl.constexpr,
         BLOCK: tl.constexpr):
    if tl.load(counts + WANTED) > 0:
        slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        age, value, is_used = _age_of(heat, owner, used, counts, slot, slots, LEAST)
        tl.store(heat + slot, _warmed(value, tl.load(counts + TIME)), mask=is_used)
        tl.store(levels + slot, age, mask=slot < slots)
        by_age = tl.histogram(age, AGES)
        place = tl.arange(0, AGES)
        tl.atomic_add(ages + place, by_age, mask=by_age > 0)


@triton.jit
def _choose(counts, ages, WHERE: tl.constexpr):
    wanted = tl.load(counts + WANTED)
    place = tl.arange(0, AGES)
    by_age = tl.where(place >= 1, tl.load(ages + place), 0)
    total = tl.sum(by_age, 0)
    older = total - tl.cumsum(by_age, 0)  # than each age
    enough = (older + by_age >= wanted) & (place >= 1)
    bound = tl.maximum(tl.max(tl.where(enough, place, 0), 0), 1)
    tl.store(counts + BOUND, bound.to(tl.int64))
    tl.store(counts + OLDER, tl.sum(tl.where(place == bound, older, 0), 0).to(tl.int64))
    tl.store(counts + WHERE, tl.load(counts + WHERE) + wanted)


@triton.jit
def _dismiss(slot_of, levels, counts, chosen, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS: slots of rows, in their order; else those without one."""
    wanted = tl.load(counts + WANTED)
    bound = tl.load(counts + BOUND).to(tl.int32)
    if wanted > 0:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        slot = place.to(tl.int32)
        if ROWS:
            slot = tl.load(slot_of + place, mask=place < size, other=AWAY)
        age = tl.load(levels + slot, mask=(place < size) & (slot >= 0), other=0).to(tl.int32)
        if not ROWS:
            age = tl.where(age == AGES - 1, age, 0)
        older = age > bound
        tl.store(chosen + _append(counts + LISTED, older), slot, mask=older)
        equal = age == bound
        at = tl.load(counts + OLDER) + _append(counts + EQUAL, equal)
        tl.store(chosen + at, slot, mask=equal & (at < wanted))


@triton.jit
def _exchange(slot_of, heat, owner, used, counts, chosen, wanted, values, state_1, state_2, host,
              KIND_1: tl.constexpr, STATES: tl.constexpr, DIM: tl.constexpr, PITCH: tl.constexpr,
              WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows `wanted` come from the host into the slots `chosen`, whose own rows go there.

    For each block of rows: which row comes into which slot, and which goes; values and state are
    exchanged; who is where is written down.
    """
    count = tl.load(counts + WANTED)
    free = tl.load(counts + OLDER) + tl.load(counts + EQUAL)
    if (tl.program_id(0) == 0) & (count > free):
        tl.store(counts + LACKING, count - free)
    now = tl.load(counts + TIME)
    column = tl.arange(0, WIDTH)
    wide = (column < DIM)[None, :]
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK).to(tl.int32), tl.num_programs(0)):
        # Which row comes into which slot; rows without a slot stay away.
        place = block * BLOCK + tl.arange(0, BLOCK)
        here = place < count
        row = tl.load(wanted + place, mask=here, other=0).to(tl.int64)
        without = here & (place >= free)
        tl.store(slot_of + row, tl.zeros_like(place) + AWAY, mask=without)
        here = here & (place < free)
        slot = tl.load(chosen + place, mask=here, other=0).to(tl.int64)
        # The row that was there, if any, goes.
        old = tl.load(owner + slot, mask=here, other=-1).to(tl.int64)
        goes = here & (old >= 0)
        to = old[:, None] * PITCH + column[None, :]
        at = slot[:, None] * DIM + column[None, :]
        come = row[:, None] * PITCH + column[None, :]
        out = goes[:, None] & wide
        into = here[:, None] & wide
        # Both ways are read before either is written: the bus goes both ways at once.
        new = tl.load(host + come, mask=into, other=0.0)
        if STATES >= 1:
            if KIND_1:
                new_1 = tl.load(host + DIM + come, mask=into, other=0.0)
            else:
                new_1 = tl.load(host + DIM + row * PITCH, mask=here, other=0.0)
        if STATES >= 2:
            new_2 = tl.load(host + 2 * DIM + come, mask=into, other=0.0)
        old_value = tl.load(values + at, mask=out, other=0.0)
        tl.debug_barrier()  # before any thread of the program writes where another still reads
        tl.store(host + to, old_value, mask=out)
        tl.store(values + at, new, mask=into)
        if STATES >= 1:
            if KIND_1:
                old_1 = tl.load(state_1 + at, mask=out, other=0.0)
                tl.debug_barrier()
                tl.store(host + DIM + to, old_1, mask=out)
                tl.store(state_1 + at, new_1, mask=into)
            else:
                old_1 = tl.load(state_1 + slot, mask=goes, other=0.0)
                tl.debug_barrier()
                tl.store(host + DIM + old * PITCH, old_1, mask=goes)
                tl.store(state_1 + slot, new_1, mask=here)
        if STATES >= 2:
            old_2 = tl.load(state_2 + at, mask=out, other=0.0)
            tl.debug_barrier()
            tl.store(host + 2 * DIM + to, old_2, mask=out)
            tl.store(state_2 + at, new_2, mask=into)
        # Who is where now, and when it was last used.
        tl.store(slot_of + old, tl.zeros_like(place) + AWAY, mask=goes)
        tl.store(slot_of + row, slot.to(tl.int32), mask=here)
        tl.store(owner + slot, row, mask=here)
        tl.store(used + slot, tl.zeros_like(slot).to(tl.int32) + now.to(tl.int32), mask=here)
        fresh = now.to(tl.float32) / HALF_LIFE
        tl.store(heat + slot, tl.zeros_like(slot).to(tl.float32) + fresh, mask=here)


@triton.jit
def _find(ids, slot_of, out, wrong, count, rows, padding, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    id_ = tl.load(ids + place, mask=here, other=0).to(tl.int64)
    valid = here & (id_ >= 0) & (id_ < rows) & (id_ != padding)
    slot = tl.load(slot_of + tl.where(valid, id_, 0), mask=valid, other=AWAY)
    tl.store(out + place, slot, mask=here)
    note_wrong(wrong, 0 * tl.program_id(0), id_ * 0 + (-(1 << 63)), valid & (slot < 0))


@triton.jit
def _peek(ids, slot_of, values, host, out, count, rows, padding, DIM: tl.constexpr,
          PITCH: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    here = place < count
    id_ = tl.load(ids + place, mask=here, other=0)
    valid = here & (id_ >= 0) & (id_ < rows) & (id_ != padding)
    id_ = tl.where(valid, id_, 0)
    slot = tl.load(slot_of + id_, mask=valid, other=AWAY).to(tl.int64)
    wide = (column < DIM)[None, :]
    hot = (valid & (slot >= 0))[:, None] & wide
    cold = (valid & (slot < 0))[:, None] & wide
    value = tl.load(values + slot[:, None] * DIM + column[None, :], mask=hot, other=0.0)
    value += tl.load(host + id_[:, None] * PITCH + column[None, :], mask=cold, other=0.0)
    tl.store(out + place[:, None] * DIM + column[None, :], value, mask=here[:, None] & wide)
# fmt: on


def stage(
    ids: Tensor,
    slots: CacheSlots,
    hot: list[Tensor],
    host: Tensor,
    wrong: Tensor,
    padding: int,
    ahead: bool = False,
    before: Tensor | None = None,
) -> None:
    """Rows of ids [n] into slots. hot: values and pieces of state; host [rows, pitch]: all of them.

    ahead: for a step to come; rows that the staging before called stay. Where room is short, some
    do not come. before: ids of the staging before, which may be the same.
    """
    n, number, rows = len(ids), len(slots.owner), len(slots.slot_of)
    wanted = torch.empty(n, dtype=slots.owner.dtype, device=ids.device)
    chosen = torch.empty(n, dtype=torch.int32, device=ids.device)  # slots whose rows go
    least, where = (2, EARLY) if ahead else (1, LATE)
    # 1. Which rows are called and away. Where ids are those of the staging before, nothing is.
    compared = before is not None and before.shape == ids.shape
    if compared:
        _compare[(triton.cdiv(n, SCAN),)](ids, before, slots.counts, n, BLOCK=SCAN)
    _begin[(1,)](slots.counts, slots.ages, COMPARED=int(compared))
    _call[(triton.cdiv(n, BLOCK),)](
        ids,
        slots.slot_of,
        slots.used,
        slots.counts,
        wrong,
        n,
        rows,
        padding,
        BLOCK=BLOCK,
    )
    in_order = (triton.cdiv(rows, SCAN),)
    _list[in_order](slots.slot_of, wanted, slots.counts, rows, BLOCK=SCAN)
    # 2. How cold the rows in slots are, and from which coldness on enough of them go.
    every = (triton.cdiv(number, BLOCK),)
    _age[every](
        slots.heat,
        slots.owner,
        slots.used,
        slots.counts,
        slots.levels,
        slots.ages,
        number,
        LEAST=least,
        BLOCK=BLOCK,
    )
    _choose[(1,)](slots.counts, slots.ages, WHERE=where.value)
    # 3. Slots that are given up: those without a row, then those of cold rows in the rows' order.
    _dismiss[every](
        slots.slot_of, slots.levels, slots.counts, chosen, number, ROWS=False, BLOCK=BLOCK
    )
    _dismiss[in_order](
        slots.slot_of, slots.levels, slots.counts, chosen, rows, ROWS=True, BLOCK=SCAN
    )
    # 4. Their rows are written to the host, and the rows that were called are read.
    launch_shape = exchange_shape(hot[0].shape[1])
    programs = min(triton.cdiv(n, launch_shape["BLOCK"]), BESIDE if ahead else PROGRAMS)
    unread = slots.owner  # stands for state that the optimizer does not have
    _exchange[(programs,)](
        slots.slot_of,
        slots.heat,
        slots.owner,
        slots.used,
        slots.counts,
        chosen,
        wanted,
        hot[0],
        hot[1] if len(hot) > 1 else unread,
        hot[2] if len(hot) > 2 else unread,
        host,
        KIND_1=len(hot) > 1 and hot[1].dim() == 2,
        STATES=len(hot) - 1,
        DIM=hot[0].shape[1],
        PITCH=host.shape[1],
        **launch_shape,
    )


def find(ids: Tensor, slots: CacheSlots, wrong: Tensor, padding: int) -> Tensor:
    """Slots [n] int32 of ids that were staged; -1 for padding.

    `wrong` notes that a row is in none: there was too little room.
    """
    out = torch.empty(len(ids), dtype=torch.int32, device=ids.device)
    _find[(triton.cdiv(len(ids), BLOCK),)](
        ids, slots.slot_of, out, wrong, len(ids), len(slots.slot_of), padding, BLOCK=BLOCK
    )
    return out


def peek(ids: Tensor, slots: CacheSlots, values: Tensor, host: Tensor, padding: int) -> Tensor:
    """Rows of ids, wherever they are and stay: [n, dim]."""
    out = torch.empty(len(ids), values.shape[1], device=ids.device)
    launch_shape = exchange_shape(values.shape[1])
    _peek[(triton.cdiv(len(ids), launch_shape["BLOCK"]),)](
        ids,
        slots.slot_of,
        values,
        host,
        out,
        len(ids),
        len(slots.slot_of),
        padding,
        DIM=values.shape[1],
        PITCH=host.shape[1],
        **launch_shape,
    )
    return out


def exchange_shape(dim: int) -> dict[str, Any]:
    """Rows that a program moves at a time."""
    width = triton.next_power_of_2(dim)
    return {"WIDTH": width, "BLOCK": max(1, 2048 // width), "num_warps": 4}
