"""Negatives by the native core; the definition of a draw, in numpy, is in data/sampler.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.kernels.core import load_core

_core = load_core()


class KnownPairs(NamedTuple):
    """Which items users have seen: as bits, or as sorted keys user * num_items + item."""

    num_users: int
    num_items: int
    bitmap: np.ndarray | None
    keys: np.ndarray  # int64
    starts: np.ndarray  # int64 [users + 1]


def draw_negatives(
    known_pairs: KnownPairs,
    key: int,
    alias_table: tuple[np.ndarray, np.ndarray] | None,
    column_bits: int,
    max_attempts: int,
    users: np.ndarray,
    index: np.ndarray,
    num: int,
) -> tuple[np.ndarray, int] | None:
    """Negatives [n, num] of users [n] and samples index [n], int64, 0 where none was found in
    `max_attempts`; and how many those are, -1: a user is unknown. None: there is no core.

    alias_table: float64 [items], int64 [items]; None: all items alike.
    """
    if _core is None:
        return None
    drawn = np.empty((len(users), num), dtype=np.int64)
    pairs = [
        known_pairs.num_users,
        known_pairs.num_items,
        0 if known_pairs.bitmap is None else _at(known_pairs.bitmap),
        _at(known_pairs.keys),
        _at(known_pairs.starts),
    ]
    left = _core.draw_negatives(
        pairs,
        key,
        [0, 0] if alias_table is None else [_at(part) for part in alias_table],
        column_bits,
        max_attempts,
        _at(users),
        _at(index),
        len(users),
        num,
        _at(drawn),
    )
    return drawn, left


def _at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
