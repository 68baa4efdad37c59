"""Dataset: prepared interactions with remapped ids, side features, vocabularies and splits.

Everything is a numpy array (possibly memory-mapped), so training needs neither the raw files nor
the library that parsed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shoal.config.data_section import CellOptions
from shoal.config.schema import SplitSection
from shoal.data.pairs import SPLITS, Pairs, count_pairs

FieldType = Literal["token", "token_seq", "float", "float_seq"]
SplitName = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Ragged:
    """A column of lists, flattened: list i is values[offsets[i]:offsets[i + 1]]."""

    values: np.ndarray
    offsets: np.ndarray  # int64 [rows + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1


Column = np.ndarray | Ragged
Columns = dict[str, Column]


@dataclass
class Dataset:
    """One prepared data set.

    inter       columns of the interactions, in file order; token fields hold remapped int64 ids
                (0 is padding), float fields float32 (the time field float64)
    users/items side features; row i belongs to id i, row 0 is padding
    extra       further files by suffix (kg, link, net and additional ones), as columns
    types       field -> type as the header of its file states it
    vocab       token field -> its words, array of str or mapped; vocab[f][0] is "[PAD]"
    splits      split -> int64 row numbers of `inter`; every kept row is in exactly one split
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
        """What is there twice, and in several splits; counted once."""
        if self.pairs is None:
            split_of_row = np.zeros(self.num_inter, np.int8)
            for number, split in enumerate(SPLITS):
                split_of_row[self.splits[split]] = number
            users, items = (np.asarray(self.inter[f]) for f in (self.user_field, self.item_field))
            self.pairs = count_pairs(users, items, split_of_row, self.num_items)
        return self.pairs

    def flat(self, name: str) -> np.ndarray:
        """A column of the interactions that holds no lists."""
        column = self.inter[name]
        assert isinstance(column, np.ndarray)
        return column

    def history(self, splits: tuple[SplitName, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Items of these splits by user, in order, and offsets [users + 1]; None: not kept so."""
        if not self.kept or splits != SPLITS[: len(splits)]:
            return None
        return self.kept[f"history-{len(splits)}"], self.kept[f"offsets-{len(splits)}"]

    def seen(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Keys and starts of the training pairs as `Seen.sorted` takes them; None: not kept so."""
        return (self.kept["seen"], self.kept["seen-starts"]) if self.kept else None

    def user_ids(self, split: SplitName) -> np.ndarray:
        """User ids of one split's interactions, in the order of the split."""
        return self._ids("user", self.user_field, split)

    def item_ids(self, split: SplitName) -> np.ndarray:
        """Item ids of one split's interactions, in the order of the split."""
        return self._ids("item", self.item_field, split)

    def _ids(self, side: str, field: str, split: SplitName) -> np.ndarray:
        """Kept ones of training as they lie on disk, int32: they are the many."""
        if not self.kept:
            return self.flat(field)[self.splits[split]]
        ids = self.kept[f"{side}-{split}"]
        return ids if split == "train" else ids.astype(np.int64)
