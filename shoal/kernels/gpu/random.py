"""Initial values and rounding noise inside Triton kernels: the bits of embedding/engines/init.py.

Integers are int64 that wrap, as torch's are there; a logical shift is an arithmetic one with its
sign bits masked off.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.common import rules
from shoal.kernels.common.rules import Recipe, signed

INCREMENT = tl.constexpr(signed(rules.INCREMENT))
MULTIPLIER_1 = tl.constexpr(signed(rules.MULTIPLIER_1))
MULTIPLIER_2 = tl.constexpr(signed(rules.MULTIPLIER_2))
NORMAL_MIDDLE = tl.constexpr(rules.NORMAL_TERMS * 65535)
KINDS = {"uniform": 1, "normal": 2, "constant": 4}  # `initial` has them in numbers


@dataclass(frozen=True)
class Recipes:
    """How rows of several tables begin, on their device: key, factor and kind of each.

    After all keys stand first, factor and rows of each table's numbering, for rounding; 0 rows:
    ids are as they are.
    """

    keys: Tensor  # [4 * tables] int64
    factors: Tensor  # [tables] float32
    kinds: Tensor  # [tables] int32
    every: int  # the kinds that occur, or-ed

    @classmethod
    def of(
        cls,
        recipes: Sequence[Recipe],
        numberings: Sequence[tuple[int, int, int] | None],
        device: torch.device,
    ) -> Recipes:
        """numberings: first, factor and rows of each table's; None: ids are as they are."""
        kinds = [KINDS[one.kind] for one in recipes]
        keys = [signed(one.key) for one in recipes]
        for part in zip(*(one or (0, 1, 0) for one in numberings)):
            keys += part
        return cls(
            torch.tensor(keys, device=device),
            torch.tensor([one.factor for one in recipes], device=device),
            torch.tensor(kinds, dtype=torch.int32, device=device),
            sum(set(kinds)),
        )


# fmt: off
@triton.jit
def mix(x):
    """splitmix64's finaliser."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MULTIPLIER_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MULTIPLIER_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _quarters(word):
    return (word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) + (word >> 48 & 0xFFFF)


@triton.jit
def initial(ids, table, column, recipe_keys, factors, kinds, EVERY: tl.constexpr):
    """Initial values [n, width] of ids [n] of tables [n]; column [width]."""
    row = mix(ids * INCREMENT ^ tl.load(recipe_keys + table))[:, None]
    factor = tl.load(factors + table)[:, None]
    kind = tl.load(kinds + table)[:, None]
    place = column.to(tl.int64)[None, :]
    value = factor + tl.zeros_like(place).to(tl.float32)  # a constant
    if EVERY & 1:
        word = mix(row + (place + 1) * INCREMENT)
        number = ((word >> 40) & 0xFFFFFF) - (1 << 23)
        value = tl.where(kind == 1, number.to(tl.float32) * factor, value)
    if EVERY & 2:
        first = mix(row + (2 * place + 1) * INCREMENT)
        second = mix(row + (2 * place + 2) * INCREMENT)
        number = 2 * (_quarters(first) + _quarters(second)) - NORMAL_MIDDLE
        value = tl.where(kind == 2, number.to(tl.float32) * factor, value)
    return value


@triton.jit
def widen(half):
    """bfloat16 as int16 -> float32."""
    return (half.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def narrow(value, noise):
    """float32 -> bfloat16 as int16: noise is added below the last bit kept."""
    bits = value.to(tl.int32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000  # others must not carry over
    quiet = tl.where((bits & 0x7FFFFF) != 0, 0x40, 0)
    return tl.where(finite, (bits + noise) >> 16, (bits >> 16) | quiet).to(tl.int16)


@triton.jit
def nearest(value):
    """float32 -> bfloat16 as int16, rounded to the nearest, ties to even."""
    bits = value.to(tl.int32, bitcast=True)
    return narrow(value, 0x7FFF + ((bits >> 16) & 1))


@triton.jit
def noise_of(ids, recipe_keys, table, tables, step, column):
    """16 bits for each value [n, width]: a pure function of (table's key, step, id, column)."""
    rows = tl.load(recipe_keys + 3 * tables + table)
    first = tl.load(recipe_keys + tables + table)
    numbered = (ids + first) * tl.load(recipe_keys + 2 * tables + table) % tl.maximum(rows, 1)
    ids = tl.where(rows > 0, numbered, ids)
    step_key = mix(step * INCREMENT + tl.load(recipe_keys + table))
    row = mix(ids * INCREMENT ^ step_key)[:, None]
    place = column.to(tl.int64)[None, :]
    word = mix(row + (place // 4 + 1) * INCREMENT)
    return ((word >> (16 * (place % 4))) & 0xFFFF).to(tl.int32)


@triton.jit
def _write_initial(values, start, count, recipe_keys, factors, kinds, table, padding, pad,
                   DIM: tl.constexpr, PITCH: tl.constexpr, WIDTH: tl.constexpr,
                   BLOCK: tl.constexpr, HALF: tl.constexpr, EVERY: tl.constexpr):
    ids = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    inside = (ids < count)[:, None] & (column < DIM)[None, :]
    value = initial(ids, tl.zeros_like(ids) + table, column, recipe_keys, factors, kinds, EVERY)
    value = tl.where(((ids == padding) & (pad != 0))[:, None], 0.0, value)
    at = (start + ids)[:, None] * PITCH + column[None, :]
    if HALF:
        tl.store(values + at, nearest(value), mask=inside)
    else:
        tl.store(values + at, value, mask=inside)
# fmt: on


def write_initial(
    values: Tensor,
    start: int,
    rows: int,
    dim: int,
    padding: int | None,
    number: int,
    recipes: Recipes,
) -> None:
    """Make the rows of a fixed table, the `number`-th, from row `start` of values [.., dim] on."""
    block = max(1, 2048 // triton.next_power_of_2(dim))
    _write_initial[(triton.cdiv(rows, block),)](
        values,
        start,
        rows,
        recipes.keys,
        recipes.factors,
        recipes.kinds,
        number,
        padding or 0,
        int(padding is not None),
        DIM=dim,
        PITCH=values.stride(0),
        WIDTH=triton.next_power_of_2(dim),
        BLOCK=block,
        HALF=values.dtype == torch.int16,
        EVERY=recipes.every,
    )
