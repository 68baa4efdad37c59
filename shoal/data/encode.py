"""Features of a data set as ids and numbers: vocabularies, hashes, transforms, buckets.

Columns stay where they are: what is taken of them is encoded then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.data.dataset import Column, Dataset, Ragged
from shoal.data.feature_table import FeatureColumn, FeatureTable, Taken, fold
from shoal.data.features import LENGTH, Feature, is_history
from shoal.data.history import Earlier
from shoal.data.raw import gather

CHUNK = 1 << 20  # values at a time where a column is passed over
Take = Callable[[np.ndarray], Taken]
Change = Callable[[np.ndarray], np.ndarray]


def encode(dataset: Dataset, features: tuple[Feature, ...]) -> FeatureTable:
    """Every feature's values by user id, item id or number of interaction; rows are counted."""
    numbering = _Numbering(dataset, features)
    columns = [_encoded(dataset, feature, numbering) for feature in features if not feature.cross]
    crossed = [FeatureColumn(feature, _crossed) for feature in features if feature.cross]
    return FeatureTable(tuple(columns + crossed), dataset.user_field, dataset.item_field)


def _crossed(rows: np.ndarray) -> Taken:
    raise AssertionError("a cross is made of the features that it names")


class _Numbering:
    """Which id a word has in a table. Features that share a table share its vocabulary."""

    def __init__(self, dataset: Dataset, features: tuple[Feature, ...]):
        self.dataset = dataset
        self.columns: dict[str, list[str]] = {}  # exact table -> the columns whose words it numbers
        self.words: dict[str, dict[str, int]] = {}  # their words, of several columns
        of_table: dict[str, list[Feature]] = {}
        for feature in features:
            if feature.is_sparse and not feature.cross and feature.buckets is None:
                of_table.setdefault(feature.table, []).append(feature)
        for table, sharing in of_table.items():
            ways = {(f.vocabulary, f.rows if f.vocabulary == "hashed" else None) for f in sharing}
            dims = {f.dim for f in sharing}
            if len(ways) > 1 or len(dims) > 1:
                names = ", ".join(f.name for f in sharing)
                raise ValueError(
                    f"data.features: {names} share the table {table!r}, so they need the same "
                    "vocabulary, rows and dim; give them the same, or tables of their own"
                )
            if sharing[0].vocabulary == "exact":
                # Users and items come first: their id is then the number of their row.
                first = (dataset.user_field, dataset.item_field)
                ordered = sorted(sharing, key=lambda f: f.column not in first)
                columns = list(dict.fromkeys(f.column for f in ordered))
                self.columns[table] = columns
                if len(columns) > 1:
                    known: dict[str, int] = {}
                    for column in columns:
                        for word in dataset.vocab[column].tolist():
                            known.setdefault(word, len(known))
                    self.words[table] = known

    def rows(self, feature: Feature) -> int | None:
        """Rows of the feature's table; None: it grows."""
        if feature.vocabulary != "exact":
            return feature.rows
        if feature.table in self.words:
            return len(self.words[feature.table])
        return len(self.dataset.vocab[feature.column])

    def ids(self, feature: Feature) -> np.ndarray | None:
        """The id of every word of the column's vocabulary, int64; None: they are numbered so."""
        exact, table = feature.vocabulary == "exact", feature.table
        if exact and table not in self.words and feature.default is None:
            return None
        words = self.dataset.vocab[feature.column].tolist()
        if not exact:
            ids = hashed(words, feature.rows)
        elif table in self.words:
            ids = np.array([self.words[table][word] for word in words], np.int64)
        else:
            ids = np.arange(len(words))
        ids[0] = 0 if feature.default is None else self._default(feature, words)
        return ids

    def _default(self, feature: Feature, words: list[str]) -> int:
        word = str(feature.default)
        if feature.vocabulary != "exact":
            return int(hashed([word], feature.rows)[0])
        known = self.words.get(feature.table) or {one: k for k, one in enumerate(words)}
        if word not in known:
            raise ValueError(
                f"data.features.{feature.name}.default: {word!r} is no value of the column"
            )
        return known[word]


def hashed(words: list[str], rows: int | None) -> np.ndarray:
    """Ids of words, a pure function of their text: 1 to rows - 1, or any of 63 bits from 1."""
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in words)
    return fold(np.frombuffer(digests, "<u8"), rows)


def _encoded(dataset: Dataset, feature: Feature, numbering: _Numbering) -> FeatureColumn:
    column = _column(dataset, feature.side, feature.column)
    if feature.is_sparse and feature.buckets is None:
        feature = replace(feature, rows=numbering.rows(feature))
        if feature.kind == "text":
            return FeatureColumn(feature, _text(dataset, feature, column))
        ids = numbering.ids(feature)
        if is_history(feature, dataset):
            earlier = Earlier(dataset, feature.length or LENGTH)
            return FeatureColumn(
                feature, _taken(earlier.of_rows, ids), _taken(earlier.of_users, ids)
            )
        if isinstance(column, Ragged):
            return FeatureColumn(feature, _lists(dataset, feature, ids, column))
        return FeatureColumn(feature, _single(feature, ids, column))
    change = _transforms(feature, column)
    if feature.buckets is None:
        if isinstance(column, Ragged):
            return FeatureColumn(feature, _grid(feature, column, change))
        return FeatureColumn(feature, _numbers(column, change))
    assert isinstance(column, np.ndarray)
    numbers = column
    limits = feature.buckets
    if isinstance(limits, int):
        shares = np.arange(1, limits) / limits
        part = numbers if feature.side == "context" else numbers[1:]  # row 0 is padding
        limits = tuple(np.unique(np.quantile(change(part), shares)).tolist())
    bounds = np.array(limits, np.float64)

    def bucket(rows: np.ndarray) -> Taken:
        ids = np.searchsorted(bounds, change(numbers[rows]), side="right") + 1
        return ids.astype(np.int64, copy=False), None, None

    return FeatureColumn(replace(feature, rows=len(limits) + 2), bucket)


def _column(dataset: Dataset, side: str, name: str) -> Column:
    if side == "user":
        return np.arange(dataset.num_users) if name == dataset.user_field else dataset.users[name]
    if side == "item":
        return np.arange(dataset.num_items) if name == dataset.item_field else dataset.items[name]
    return dataset.inter[name]


def _numbered(ids: np.ndarray | None, codes: np.ndarray) -> np.ndarray:
    """Ids of words by their numbers, int64: on disk these are shorter."""
    return codes.astype(np.int64, copy=False) if ids is None else ids[codes]


def _taken(lists: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], ids: Any) -> Take:
    """Lists of items as lists of ids."""

    def take(rows: np.ndarray) -> Taken:
        items, offsets = lists(rows)
        return _numbered(ids, items), offsets, None

    return take


def _single(feature: Feature, ids: np.ndarray | None, column: np.ndarray) -> Take:
    def take(rows: np.ndarray) -> Taken:
        one = np.arange(len(rows) + 1) if feature.is_list else None  # one id is a list of one
        return _numbered(ids, column[rows]), one, None

    return take


def _lists(dataset: Dataset, feature: Feature, ids: np.ndarray | None, column: Ragged) -> Take:
    """Lists in the order of time where that is named, the last `length` of each."""
    beside = {
        key: _beside(dataset, feature, name, column)
        for key, name in (("time", feature.time), ("weights", feature.weights))
        if name is not None
    }

    def take(rows: np.ndarray) -> Taken:
        codes, offsets = gather(column.values, column.offsets, rows, 0)
        assert offsets is not None
        others = {k: gather(v, column.offsets, rows, 0)[0] for k, v in beside.items()}
        weights = others.get("weights")
        if feature.time is not None or feature.length is not None:
            places, owner = np.arange(len(codes)), np.repeat(np.arange(len(rows)), np.diff(offsets))
            if feature.time is not None:
                places = np.lexsort((places, others["time"], owner))
            if feature.length is not None:
                places = places[offsets[1:][owner] - 1 - np.arange(len(codes)) < feature.length]
                lengths = np.minimum(np.diff(offsets), feature.length)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            codes = codes[places]
            weights = None if weights is None else weights[places]
        weights = None if weights is None else weights.astype(np.float32, copy=False)
        return _numbered(ids, codes), offsets, weights

    return take


def _beside(dataset: Dataset, feature: Feature, name: str, column: Ragged) -> np.ndarray:
    other = _column(dataset, feature.side, name)
    if not isinstance(other, Ragged) or not np.array_equal(other.offsets, column.offsets):
        raise ValueError(
            f"data.features.{feature.name}: the lists of {name!r} are not as long as those of "
            f"{feature.column!r}; every id needs one value"
        )
    return other.values


def _text(dataset: Dataset, feature: Feature, column: Column) -> Take:
    """Words of a cell, in lower case, hashed."""
    texts = dataset.vocab[feature.column].tolist()
    texts[0] = "" if feature.default is None else str(feature.default)
    words = [text.lower().split()[: feature.length] for text in texts]
    each = np.array([len(one) for one in words], np.int64)
    ids = hashed([word for one in words for word in one], feature.rows)
    ends = np.concatenate([[0], np.cumsum(each)])

    def take(rows: np.ndarray) -> Taken:
        if isinstance(column, Ragged):
            texts, offsets = gather(column.values, column.offsets, rows, 0)
        else:
            texts, offsets = column[rows], None
        values, inner = gather(ids, ends, texts.astype(np.int64, copy=False), 0)
        assert inner is not None
        return values, inner if offsets is None else inner[offsets], None

    return take


def _transforms(feature: Feature, column: Column) -> Change:
    """float32 values; log is log(1 + x) of what is above 0, normalise gives mean 0, deviation 1."""
    steps: list[Change] = []

    def changed(values: np.ndarray) -> np.ndarray:
        values = values.astype(np.float64)
        for step in steps:
            values = step(values)
        return values

    every = column.values if isinstance(column, Ragged) else column
    if feature.side != "context" and len(every) > 1 and not isinstance(column, Ragged):
        every = every[1:]  # of users and items row 0 is padding and takes no part
    for transform in feature.transforms:
        if transform == "log":
            steps.append(lambda values: np.log1p(np.maximum(values, 0)))
        else:
            steps.append(_normal(lambda: (changed(part) for part in _parts(every)), len(every)))
    return lambda values: changed(values).astype(np.float32)


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def _normal(parts: Callable[[], Iterator[np.ndarray]], count: int) -> Change:
    """What gives values mean 0 and deviation 1; they are passed over in parts, not held."""
    mean = sum(part.sum() for part in parts()) / max(count, 1)
    spread = float(np.sqrt(sum(np.square(part - mean).sum() for part in parts()) / max(count, 1)))
    return lambda values: (values - mean) / (spread or 1.0)


def _numbers(column: np.ndarray, change: Change) -> Take:
    return lambda rows: (change(column[rows]), None, None)


def _grid(feature: Feature, column: Ragged, change: Change) -> Take:
    """Lists of numbers as rows of `width`, 0 where a list is shorter."""
    longest = max((int(np.diff(part).max()) for part in _pairs(column.offsets)), default=0)
    if longest > feature.width:
        raise ValueError(
            f"data.features.{feature.name}.length: {feature.width}, but a row has "
            f"{longest} numbers; raise it"
        )

    def take(rows: np.ndarray) -> Taken:
        values, offsets = gather(column.values, column.offsets, rows, 0)
        assert offsets is not None
        owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
        grid = np.zeros((len(rows), feature.width), np.float32)
        grid[owner, np.arange(len(values)) - offsets[:-1][owner]] = change(values)
        return grid, None, None

    return take


def _pairs(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of offsets that overlap by one."""
    for start in range(0, len(offsets) - 1, CHUNK):
        yield offsets[start : start + CHUNK + 1]
