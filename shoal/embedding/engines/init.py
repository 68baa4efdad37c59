"""Initial values: a pure function of (seed, table name, id, column), the same bits everywhere.

A 64-bit key of (seed, name) and the id give a row hash; the row hash and the column give words.
Everything up to the last step is 64-bit integer arithmetic that wraps, so that torch, C++ and a
GPU agree; the last step is one float multiply of an integer below 2^24, which has one right answer.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from shoal.embedding.rows.table import Table
from shoal.kernels.common.rules import INCREMENT, NORMAL_TERMS, Recipe, mix, signed


def recipe(table: Table, seed: int) -> Recipe:
    """The table's kind, key and factor; a growing table counts as rows = 0 for xavier."""
    digest = hashlib.blake2b(f"{seed}/{table.name}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "little")
    kind, scale = table.resolved_init
    if kind == "uniform":
        factor = scale / (1 << 23)
    elif kind == "normal":
        # The integer is twice a sum of NORMAL_TERMS uniforms on 0..65535, centred.
        factor = scale / (2.0 * math.sqrt(NORMAL_TERMS * (65536.0**2 - 1.0) / 12.0))
    elif kind == "constant":
        factor = scale
    else:
        raise ValueError(
            f"table {table.name!r}: initial values of kind {kind!r}; known are uniform, normal, "
            "xavier, xavier_normal, constant"
        )
    return Recipe(kind, key, torch.tensor(factor, dtype=torch.float64).to(torch.float32).item())


def initial_rows(table: Table, seed: int, ids: Tensor) -> Tensor:
    """Initial rows of `ids` [n] int64: [n, dim] float32; the padding id reads as zeros.

    Made where the ids are: integers are the same on every device.
    """
    table_recipe = recipe(table, seed)
    ids = ids.reshape(-1)
    out = torch.empty(len(ids), table.dim, dtype=torch.float32, device=ids.device)
    step = max(1, (1 << 16) // table.dim)  # temporaries then stay in the cache
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        out[start : start + step] = _values(table_recipe, part, table.dim)
    if table.padding is not None:
        out[ids == table.padding] = 0.0
    return out


def _values(recipe_of_table: Recipe, ids: Tensor, dim: int) -> Tensor:
    """Values of one chunk: [n] -> [n, dim] float32."""
    if recipe_of_table.kind == "constant":
        return torch.full(
            (len(ids), dim), recipe_of_table.factor, dtype=torch.float32, device=ids.device
        )
    row = mix(ids * signed(INCREMENT) ^ signed(recipe_of_table.key))[:, None]
    column = torch.arange(dim, dtype=torch.int64, device=ids.device)[None, :]
    if recipe_of_table.kind == "uniform":
        word = mix(row + (column + 1) * signed(INCREMENT))
        integer = (word >> 40 & 0xFFFFFF) - (1 << 23)
    else:
        first = mix(row + (2 * column + 1) * signed(INCREMENT))
        second = mix(row + (2 * column + 2) * signed(INCREMENT))
        integer = 2 * (_quarters(first) + _quarters(second)) - NORMAL_TERMS * 65535
    return integer.to(torch.float32) * recipe_of_table.factor


def rounding_noise(key: int, step: int, ids: Tensor, dim: int) -> Tensor:
    """16 random bits per value [n, dim], a pure function of (table's key, step, id, column)."""
    step_key = mix(torch.tensor([step]) * signed(INCREMENT) + signed(key))
    row = mix(ids * signed(INCREMENT) ^ step_key)[:, None]
    column = torch.arange(dim, dtype=torch.int64)[None, :]
    word = mix(row + (column // 4 + 1) * signed(INCREMENT))
    return (word >> (16 * (column % 4))) & 0xFFFF


def round_bfloat16(values: Tensor, noise: Tensor | None = None) -> Tensor:
    """Values [n, dim] with bfloat16's precision, still float32; by noise, or to the nearest."""
    if noise is None:
        return values.to(torch.bfloat16).to(torch.float32)
    bits = (values.view(torch.int32).to(torch.int64) + noise) & ~0xFFFF
    rounded = ((bits << 32) >> 32).to(torch.int32).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


def _quarters(word: Tensor) -> Tensor:
    """Sum of the four 16-bit parts of each word."""
    mask = 0xFFFF
    return (word & mask) + (word >> 16 & mask) + (word >> 32 & mask) + (word >> 48 & mask)
