"""Columns of trees: samples as a matrix of numbers, which libraries of decision trees read.

    a feature with one id   one column: its category, or the id as a number
    a feature with lists    a column for each of its most frequent ids, and one for the length
    a dense value           one column: the value

An empty list is NaN where one id is expected, as is a category that training did not see. Id 0,
which stands for a missing value, is a category like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from shoal.data.batch import Batch, Jagged

Kind = Literal["number", "category", "list"]
KINDS: tuple[Kind, ...] = ("number", "category", "list")
NUMBERS_BELOW = 1 << 24  # whole numbers that float32 tells from each other
MOST_COUNTED = 1 << 20  # ids of a feature that are counted at once; rare ones are forgotten
Ids = Tensor | Jagged


def slot_ids(batch: Batch, names: Sequence[str] | None, num_slots: int) -> list[Ids]:
    """The ids of each sparse feature: [b], or a list for every sample.

    names: the fields of the batch; None: the batch has all of them in its field `slots`.
    """
    if not num_slots:
        return []
    if names is not None:
        return [batch.ids[name] for name in names]
    slots = batch.ids["slots"]
    if isinstance(slots, Tensor):
        return list(slots.unbind(1))
    every = np.arange(batch.size) * num_slots
    lists = (every + number for number in range(num_slots))
    return [slots.take(slots.offsets.new_tensor(numbers)) for numbers in lists]


@dataclass
class IdCounts:
    """How often the ids of one feature occur, and how long its longest list is."""

    longest: int = 0
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # sorted
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    waiting: list[np.ndarray] = field(default_factory=list)
    num_waiting: int = 0

    def add(self, ids: Ids) -> None:
        """Count the ids of a batch."""
        if isinstance(ids, Jagged):
            lengths = ids.lengths
            self.longest = max(self.longest, int(lengths.max()) if len(lengths) else 0)
            values = ids.values.numpy()
        else:
            self.longest = max(self.longest, 1)
            values = ids.numpy()
        self.waiting.append(values)
        self.num_waiting += len(values)
        if self.num_waiting > max(1 << 16, len(self.ids)):
            self.merge()

    def merge(self) -> None:
        """Count what was added since the last time."""
        added = np.concatenate([self.ids[:0], *self.waiting])
        added_ids, added_counts = np.unique(added, return_counts=True)
        self.waiting, self.num_waiting = [], 0
        both = np.concatenate([self.ids, added_ids])
        numbers = np.concatenate([self.counts, added_counts])
        self.ids, places = np.unique(both, return_inverse=True)
        self.counts = np.bincount(places, numbers, len(self.ids)).astype(np.int64)
        if len(self.ids) > MOST_COUNTED:
            self._keep(MOST_COUNTED // 2)

    def _keep(self, number: int) -> None:
        """Forget all but the most frequent ids; of equal counts the smaller ids stay."""
        places = np.sort(np.lexsort((self.ids, -self.counts))[:number])
        self.ids, self.counts = self.ids[places], self.counts[places]

    def most_frequent(self, number: int) -> np.ndarray:
        """The most frequent ids, sorted by id."""
        self.merge()
        self._keep(number)
        return self.ids


@dataclass(frozen=True)
class TreeColumns:
    """How samples become a matrix; vocabularies: the sorted ids of each feature that has some."""

    kinds: tuple[Kind, ...]  # of each sparse feature
    vocabularies: tuple[np.ndarray, ...]
    num_dense: int

    @classmethod
    def of_counts(
        cls,
        counts: Iterable[IdCounts],
        num_dense: int,
        categories: bool,
        max_categories: int,
        list_columns: int,
    ) -> TreeColumns:
        """The columns of features whose training ids were counted."""
        kinds: list[Kind] = []
        vocabularies: list[np.ndarray] = []
        for id_counts in counts:
            id_counts.merge()
            if id_counts.longest > 1:
                kinds.append("list")
                vocabularies.append(id_counts.most_frequent(list_columns))
            elif categories and len(id_counts.ids) <= max_categories:
                kinds.append("category")
                vocabularies.append(id_counts.ids)
            else:
                kinds.append("number")
                vocabularies.append(id_counts.ids[:0])
        return cls(tuple(kinds), tuple(vocabularies), num_dense)

    @classmethod
    def of_arrays(
        cls, kinds: np.ndarray, sizes: np.ndarray, ids: np.ndarray, num_slots: int, num_dense: int
    ) -> TreeColumns:
        """The columns that a checkpoint holds, as `arrays` returned them; they are checked."""
        fits = len(kinds) == len(sizes) == num_slots
        fits = fits and bool(((kinds >= 0) & (kinds < len(KINDS))).all())
        fits = fits and bool((sizes >= 0).all()) and int(sizes.sum()) == len(ids)
        if not fits:
            raise ValueError("the columns of the checkpoint are not those of this data")
        vocabularies = tuple(np.split(ids, np.cumsum(sizes)[:-1])) if num_slots else ()
        if any((one[1:] <= one[:-1]).any() for one in vocabularies):
            raise ValueError("the checkpoint has ids of a column that do not rise")
        return cls(tuple(KINDS[kind] for kind in kinds), vocabularies, num_dense)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of the kinds, sizes of the vocabularies, and all their ids: int64 each."""
        kinds = np.array([KINDS.index(kind) for kind in self.kinds], np.int64)
        sizes = np.array([len(one) for one in self.vocabularies], np.int64)
        return kinds, sizes, np.concatenate([np.zeros(0, np.int64), *self.vocabularies])

    @property
    def widths(self) -> list[int]:
        """Columns of each sparse feature."""
        pairs = zip(self.kinds, self.vocabularies)
        return [len(ids) + 1 if kind == "list" else 1 for kind, ids in pairs]

    @property
    def width(self) -> int:
        """All columns: those of sparse features, and the dense values behind them."""
        return sum(self.widths) + self.num_dense

    def __str__(self) -> str:
        number = {kind: self.kinds.count(kind) for kind in KINDS}
        return (
            f"{self.width} columns (features: {number['category']} as categories, "
            f"{number['number']} as numbers, {number['list']} with lists, {self.num_dense} dense "
            "values)"
        )

    @property
    def are_categories(self) -> list[bool]:
        """Whether the numbers of each column are categories."""
        marks: list[bool] = []
        for kind, width in zip(self.kinds, self.widths):
            marks += [kind == "category"] * width
        return marks + [False] * self.num_dense

    def fill(self, matrix: np.ndarray, ids: Sequence[Ids], dense: np.ndarray) -> None:
        """Write samples into their rows, float32 [b, width]; dense [b, num_dense]."""
        first = 0
        for kind, vocabulary, width, values in zip(self.kinds, self.vocabularies, self.widths, ids):
            target: Any = matrix[:, first : first + width]
            if kind == "list":
                target[:] = _list_columns(values, vocabulary)
            else:
                single, is_there = _first_ids(values)
                if kind == "category":
                    number, is_known = _places(single, vocabulary)
                    is_there &= is_known
                else:
                    number = single % NUMBERS_BELOW
                target[:, 0] = np.where(is_there, number, np.nan)
            first += width
        matrix[:, first:] = dense


def _places(ids: np.ndarray, vocabulary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where ids stand in a vocabulary, and whether they do."""
    if not len(vocabulary):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    places = np.searchsorted(vocabulary, ids).clip(max=len(vocabulary) - 1)
    return places, vocabulary[places] == ids


def _first_ids(ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    """One id of each sample, and whether it has one: [b] each."""
    if isinstance(ids, Tensor):
        return ids.numpy(), np.ones(len(ids), bool)
    offsets, values = ids.offsets.numpy(), ids.values.numpy()
    is_there = offsets[1:] > offsets[:-1]
    single = np.zeros(len(is_there), np.int64)
    single[is_there] = values[offsets[:-1][is_there]]
    return single, is_there


def _list_columns(ids: Ids, vocabulary: np.ndarray) -> np.ndarray:
    """How much each id of the vocabulary is in the lists, and their lengths: [b, ids + 1]."""
    lists = Jagged.of_single(ids) if isinstance(ids, Tensor) else ids
    num_columns, size = len(vocabulary) + 1, len(lists)
    lengths = lists.lengths.numpy()
    places, is_known = _places(lists.values.numpy(), vocabulary)
    owners = np.repeat(np.arange(size), lengths)
    weights = np.ones(len(owners)) if lists.weights is None else lists.weights.double().numpy()
    cells = (owners * num_columns + places)[is_known]
    columns = np.bincount(cells, weights[is_known], size * num_columns)
    columns = columns.reshape(size, num_columns)
    columns[:, -1] = lengths
    return columns
