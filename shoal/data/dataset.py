"""Dataset: interactions with remapped ids, side features, vocabularies and splits.

Everything is a numpy array (possibly memory-mapped), so training needs neither the raw files nor
the library that parsed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shoal.config.data_section import CellOptions
from shoal.config.schema import SplitSection

FieldType = Literal["token", "token_seq", "float", "float_seq"]
Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Ragged:
    """A column of lists, flattened: list i is values[offsets[i]:offsets[i + 1]]."""

    values: np.ndarray
    offsets: np.ndarray  # int64 [rows + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1


Column = np.ndarray | Ragged
Columns = dict[str, Column]


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


def count_pairs(users: np.ndarray, items: np.ndarray, splits: np.ndarray, num_items: int) -> Pairs:
    """Counts of rows: users and items int [n], splits [n] of 0, 1 and 2.

    >>> import numpy as np
    >>> users, items = np.array([1, 1, 1, 2]), np.array([7, 7, 8, 7])
    >>> pairs = count_pairs(users, items, np.array([0, 2, 0, 1]), 10)
    >>> pairs.repeated, pairs.pairs, pairs.earlier
    (1, [2, 1, 1], [0, 0, 1])
    """
    # Rows of one pair come together, those of earlier splits first: one sort is enough.
    keys = np.sort((users.astype(np.int64) * num_items + items) << 2 | splits)
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


@dataclass
class Dataset:
    """One prepared data set.

    inter       columns of the interactions, in file order; token fields hold remapped int64 ids
                (0 is padding), float fields float32 (the time field float64)
    users/items side features; row i belongs to id i, row 0 is padding
    extra       further files by suffix (kg, link, net and additional ones), as columns
    types       field -> type as the header of its file states it
    vocab       token field -> its words, array of str or mapped; vocab[f][0] is "[PAD]"
    splits      split -> int64 row numbers of `inter`; every kept row is in exactly one split, or
    context     row numbers of what stands before items to find, in sessions that are tested; such
                rows are in no split, and evaluation alone reads them
    missing     file suffix -> column -> empty cells that it had
    left_out    config key -> rows of the files that it left out
    cells       column -> how its cells were read, where that is not as they stand
    """

    name: str
    user_field: str
    item_field: str
    time_field: str | None
    label_field: str | None
    inter: Columns
    types: dict[str, FieldType]
    vocab: dict[str, np.ndarray]
    splits: dict[str, np.ndarray]
    users: Columns = field(default_factory=dict)
    items: Columns = field(default_factory=dict)
    extra: dict[str, Columns] = field(default_factory=dict)
    missing: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    cells: dict[str, CellOptions] = field(default_factory=dict)
    pairs: Pairs | None = None  # see counted
    split: SplitSection | None = None  # how data.split made `splits`, without auto
    # of a prepared folder: ids by split, histories and pairs of its view (prepared/views.py)
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    # SHA-256 of `interactions` and `splits`, where they are known without reading them all
    digests: dict[str, str] = field(default_factory=dict)
    context: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    encoded: dict[str, str] = field(default_factory=dict)  # column -> hash of texts and encoder

    @property
    def num_users(self) -> int:
        """Number of user ids, the padding included."""
        return len(self.vocab[self.user_field])

    @property
    def num_items(self) -> int:
        """Number of item ids, the padding included."""
        return len(self.vocab[self.item_field])

    @property
    def num_inter(self) -> int:
        return len(self.inter[self.user_field])

    def counted(self) -> Pairs:
        """Counts of pairs that are there twice, or in several splits; they are counted once."""
        if self.pairs is None:
            numbers = np.full(self.num_inter, -1, np.int8)  # of rows of context it stays
            for number, split in enumerate(SPLITS):
                numbers[self.splits[split]] = number
            rows = numbers >= 0
            users, items = (self.flat(name)[rows] for name in (self.user_field, self.item_field))
            self.pairs = count_pairs(users, items, numbers[rows], self.num_items)
        return self.pairs

    def flat(self, name: str) -> np.ndarray:
        """A column of the interactions that holds no lists."""
        column = self.inter[name]
        assert isinstance(column, np.ndarray)
        return column

    def history(self, splits: tuple[Split, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Items of these splits by user, in order, and offsets [users + 1]; None: not kept so."""
        if not self.kept or splits != SPLITS[: len(splits)]:
            return None
        return self.kept[f"history-{len(splits)}"], self.kept[f"offsets-{len(splits)}"]

    def seen(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Keys and starts of the training pairs as `Seen.sorted` takes them; None: not kept so."""
        return (self.kept["seen"], self.kept["seen-starts"]) if self.kept else None

    def user_ids(self, split: Split) -> np.ndarray:
        """User ids of one split's interactions, in the order of its rows."""
        return self._ids("user", self.user_field, split)

    def item_ids(self, split: Split) -> np.ndarray:
        """Item ids of one split's interactions, in the order of its rows."""
        return self._ids("item", self.item_field, split)

    def _ids(self, side: str, field: str, split: Split) -> np.ndarray:
        """Kept ones of training as they lie on disk, int32: they are the many."""
        if not self.kept:
            return self.flat(field)[self.splits[split]]
        ids = self.kept[f"{side}-{split}"]
        return ids if split == "train" else ids.astype(np.int64)
