"""Counts of (user, item) pairs by part: what is there twice, and in two parts of a split.

They add up over groups of users, so that data of any size is counted some users at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

SPLITS = ("train", "valid", "test")
BY_SPLIT = ("users", "pairs", "earlier")


@dataclass
class Pairs:
    """Numbers of rows, and by split of users, of different pairs, and of those met before."""

    rows: int = 0
    repeated: int = 0  # rows whose pair another row has already
    users: list[int] = field(default_factory=lambda: [0, 0, 0])
    pairs: list[int] = field(default_factory=lambda: [0, 0, 0])
    earlier: list[int] = field(default_factory=lambda: [0, 0, 0])  # pairs that a split before has

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> Pairs:
        """The counts in a manifest; TypeError where it holds something else."""
        lists = {name: [*counts_of(dict(zip(SPLITS, entry[name]))).values()] for name in BY_SPLIT}
        return cls(**counts_of({n: entry[n] for n in ("rows", "repeated")}), **lists)  # type: ignore[arg-type]

    def __add__(self, other: Pairs) -> Pairs:
        """The counts of both, which have no user in common."""
        sums = {
            name: [a + b for a, b in zip(getattr(self, name), getattr(other, name))]
            for name in BY_SPLIT
        }
        return Pairs(self.rows + other.rows, self.repeated + other.repeated, **sums)


def counts_of(counts: dict[str, Any]) -> dict[str, int]:
    """The values by name if all are counts; else TypeError."""
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise TypeError(f"{counts} are no counts")
    return {str(key): count for key, count in counts.items()}


def count_pairs(
    users: np.ndarray, items: np.ndarray, split_of_row: np.ndarray, num_items: int
) -> Pairs:
    """Counts of rows: users and items int [n], split_of_row [n] of 0, 1 and 2.

    >>> import numpy as np
    >>> users, items = np.array([1, 1, 1, 2]), np.array([7, 7, 8, 7])
    >>> pairs = count_pairs(users, items, np.array([0, 2, 0, 1]), 10)
    >>> pairs.repeated, pairs.pairs, pairs.earlier
    (1, [2, 1, 1], [0, 0, 1])
    """
    # Rows of one pair come together, those of earlier splits first: one sort is enough.
    keys = np.sort((users.astype(np.int64) * num_items + items) << 2 | split_of_row)
    keys = keys[_first(keys)]
    pairs, split = keys >> 2, keys & 3
    before, owner = ~_first(pairs), pairs // num_items
    return Pairs(
        len(users),
        len(users) - int((~before).sum()),
        [int(_first(owner[split == n]).sum()) for n in range(len(SPLITS))],
        np.bincount(split, minlength=len(SPLITS)).tolist(),
        np.bincount(split[before], minlength=len(SPLITS)).tolist(),
    )


def _first(values: np.ndarray) -> np.ndarray:
    """Which of sorted values are not there before: bool [n]."""
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
