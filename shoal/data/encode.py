"""Features of a data set as ids and numbers: vocabularies, hashes, transforms, buckets.

Columns stay where they are: what is taken of them is encoded then. What was learned from the data
on the way (`Encoding`) encodes the same columns of other rows, see clicks/encoder.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

import numpy as np

from shoal.config.data_section import Transform
from shoal.data.column_meaning import DAY, MILLISECONDS, hour, weekday
from shoal.data.column_store import chunks
from shoal.data.dataset import Column, Dataset, Ragged
from shoal.data.feature_table import FeatureColumn, FeatureTable, Taken, fold
from shoal.data.features import LENGTH, Feature
from shoal.data.history import EarlierEvents
from shoal.data.ids import Ids, Words
from shoal.data.raw_columns import gather

Take = Callable[[np.ndarray], Taken]
Change = Callable[[np.ndarray], np.ndarray]
Lists = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # row numbers, and offsets


Step = tuple[float, float] | Literal["hour", "weekday"] | None


@dataclass(frozen=True)
class Numbers:
    """How the numbers of a feature are changed.

    steps   a transform each: (mean, deviation) to normalise by, None for log(1 + x), or the part of
            a time
    bounds  limits of buckets; None: there are none
    """

    steps: tuple[Step, ...] = ()
    bounds: tuple[float, ...] | None = None

    def change(self, values: np.ndarray) -> np.ndarray:
        """float32 values; log is log(1 + x) of what is above 0."""
        return _changed(values, self.steps).astype(np.float32)

    def buckets(self, values: np.ndarray) -> np.ndarray:
        """The bucket of each number, from 1; of one that is missing 0."""
        bounds = np.array(self.bounds, np.float64)
        changed = self.change(values)
        bucket_numbers = np.searchsorted(bounds, changed, side="right") + 1
        return np.where(np.isnan(changed), 0, bucket_numbers).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Encoding:
    """What encoding depends on besides a value itself: learned from the training data once.

    words    exact table -> its words, by id
    numbers  feature -> how its numbers are changed
    """

    words: dict[str, Ids] = field(default_factory=dict)
    numbers: dict[str, Numbers] = field(default_factory=dict)

    def ids(self, feature: Feature, words: Sequence[str]) -> np.ndarray:
        """The id of every word, int64; words[0] stands for an empty cell.

        A word that an exact table does not have reads as an empty cell does.
        """

        def find(tokens: Sequence[str]) -> np.ndarray:
            if feature.vocabulary == "exact":
                return self.words[feature.table].find(tokens)
            return hashed(tokens, feature.rows)

        ids, empty = find(words), 0
        if feature.default is not None:
            empty = int(find([str(feature.default)])[0])
            if not empty:
                raise ValueError(
                    f"data.features.{feature.name}.default: {feature.default!r} is no value of the "
                    "column"
                )
        ids[0] = 0
        ids[ids == 0] = empty
        return ids


def encode(
    dataset: Dataset, features: tuple[Feature, ...], all_labels: bool = False
) -> FeatureTable:
    """Every feature's values by user id, item id or number of interaction; rows are counted.

    all_labels: histories hold all that the user did, not only what was positive.
    """
    encoding = Encoding(_tables(dataset, features))
    earlier = cache(
        partial(EarlierEvents, dataset, all_labels=all_labels)
    )  # one for all features of histories
    columns = [
        _of_dataset(dataset, feature, encoding, earlier)
        for feature in features
        if not feature.cross
    ]
    crossed = [FeatureColumn(feature, _crossed) for feature in features if feature.cross]
    return FeatureTable(columns + crossed, dataset.user_field, dataset.item_field, encoding)


def _crossed(rows: np.ndarray) -> Taken:
    raise AssertionError("a cross is made of the features that it names")


def _tables(dataset: Dataset, features: tuple[Feature, ...]) -> dict[str, Ids]:
    """Exact table -> its words, by id. Features that share a table share its vocabulary."""
    of_table: dict[str, list[Feature]] = {}
    for feature in features:
        if feature.is_sparse and not feature.cross and feature.buckets is None:
            of_table.setdefault(feature.table, []).append(feature)
    ids_by_table: dict[str, Ids] = {}
    for table, sharing in of_table.items():
        ways = {(f.vocabulary, f.rows if f.vocabulary == "hashed" else None) for f in sharing}
        if len(ways) > 1 or len({f.dim for f in sharing}) > 1:
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
            words: Words = dataset.vocab[columns[0]]
            if len(columns) > 1:
                vocabularies = (dataset.vocab[name].tolist() for name in columns)
                words = list(
                    dict.fromkeys(word for vocabulary in vocabularies for word in vocabulary)
                )
            ids_by_table[table] = Ids(words)
    return ids_by_table


def _of_dataset(
    dataset: Dataset, feature: Feature, encoding: Encoding, earlier: Callable[[int], EarlierEvents]
) -> FeatureColumn:
    """One feature of a data set; what is learned from it is left in `encoding`."""
    column = _column(dataset, feature.side, feature.column)
    if feature.kind == "sequence" and isinstance(column, np.ndarray):
        return _of_interactions(dataset, feature, encoding, earlier(feature.length or LENGTH))
    extra_columns = {
        name: _column(dataset, feature.side, name)
        for name in (feature.time, feature.weights)
        if name is not None
    }
    if feature.is_sparse and feature.buckets is None:
        feature = _counted(feature, encoding)
        if feature.kind == "text":
            texts = dataset.vocab[feature.column].tolist()
            return FeatureColumn(feature, take_of(feature, column, texts=texts))
        ids = _ids_of_words(dataset, feature, encoding)
        return FeatureColumn(feature, take_of(feature, column, ids, extra_columns=extra_columns))
    encoding.numbers[feature.name] = numbers = _learn(feature, column)
    if numbers.bounds is not None:
        feature = replace(feature, rows=len(numbers.bounds) + 2)
    return FeatureColumn(feature, take_of(feature, column, None, numbers))


def _counted(feature: Feature, encoding: Encoding) -> Feature:
    """The feature with the number of rows of its table, where the table has a vocabulary."""
    table = encoding.words.get(feature.table)
    return feature if table is None else replace(feature, rows=len(table))


def _ids_of_words(dataset: Dataset, feature: Feature, encoding: Encoding) -> np.ndarray | None:
    """The id of every word of a feature's column; None: a word's number is its id."""
    table, words = encoding.words.get(feature.table), dataset.vocab[feature.column]
    shares_words = table is not None and table.words is words and feature.default is None
    return None if shares_words else encoding.ids(feature, words.tolist())


def _of_interactions(
    dataset: Dataset, feature: Feature, encoding: Encoding, earlier: EarlierEvents
) -> FeatureColumn:
    """A column of the interactions that the user had before each: a list for each of them."""
    column = dataset.flat(feature.column)
    change: Change
    if feature.column == dataset.time_field:
        take_rows, take_users = _times(column, earlier)
        return FeatureColumn(feature, take_rows, take_users)
    if dataset.types[feature.column] == "float":
        encoding.numbers[feature.name] = numbers = _learn(feature, column)
        feature = replace(feature, rows=len(numbers.bounds or ()) + 2)
        change = numbers.buckets
    else:
        feature = _counted(feature, encoding)
        change = partial(_numbered, _ids_of_words(dataset, feature, encoding))

    def values_of(lists: Lists) -> Take:
        def take(keys: np.ndarray) -> Taken:
            rows, offsets = lists(keys)
            return change(column[rows]), offsets, None

        return take

    return FeatureColumn(feature, values_of(earlier.of_rows), values_of(earlier.of_users))


def _times(column: np.ndarray, earlier: EarlierEvents) -> tuple[Take, Take]:
    """How times of histories are taken, in seconds: for interactions, and for users.

    The time of the interaction itself stands behind those of its history. An interaction that has
    not happened yet is as late as the last one.
    """

    def of_rows(rows: np.ndarray) -> Taken:
        events, offsets = earlier.of_rows(rows)
        return take(events, offsets, column[rows])

    def of_users(users: np.ndarray) -> Taken:
        events, offsets = earlier.of_users(users)
        has_events = np.diff(offsets) > 0
        now = np.zeros(len(users))
        now[has_events] = column[events[offsets[1:][has_events] - 1]]
        return take(events, offsets, now)

    def take(events: np.ndarray, offsets: np.ndarray, closing_times: np.ndarray) -> Taken:
        times = np.insert(column[events], offsets[1:], closing_times).astype(np.int64)
        return times, offsets + np.arange(len(offsets)), None

    return of_rows, of_users


def take_of(
    feature: Feature,
    column: Column,
    ids: np.ndarray | None = None,
    numbers: Numbers | None = None,
    extra_columns: Mapping[str, Column] | None = None,
    texts: Sequence[str] = (),
) -> Take:
    """What gives a feature's values at some rows of its column.

    ids: of every word of the column (None: a word's number is its id); numbers: how numbers are
    changed; extra_columns: further columns that the feature names; texts: the words of a column of
    text.
    """
    if numbers is not None:
        if isinstance(column, Ragged):
            return _grid(feature, column, numbers.change)
        changed = numbers.change if numbers.bounds is None else numbers.buckets
        return lambda rows: (changed(column[rows]), None, None)
    if feature.kind == "text":
        return _text(feature, column, texts)
    if isinstance(column, Ragged):
        return _lists(feature, ids, column, extra_columns or {})
    return _single(feature, ids, column)


def hashed(words: Sequence[str], rows: int | None) -> np.ndarray:
    """Ids of words, a pure function of their text: 1 to rows - 1, or any of 63 bits from 1."""
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in words)
    return fold(np.frombuffer(digests, "<u8"), rows)


def _column(dataset: Dataset, side: str, name: str) -> Column:
    if side == "user":
        return np.arange(dataset.num_users) if name == dataset.user_field else dataset.users[name]
    if side == "item":
        return np.arange(dataset.num_items) if name == dataset.item_field else dataset.items[name]
    return dataset.inter[name]


def _numbered(ids: np.ndarray | None, codes: np.ndarray) -> np.ndarray:
    """Ids of words by their numbers, int64: on disk these are shorter."""
    return codes.astype(np.int64, copy=False) if ids is None else ids[codes]


def _single(feature: Feature, ids: np.ndarray | None, column: np.ndarray) -> Take:
    def take(rows: np.ndarray) -> Taken:
        offsets = np.arange(len(rows) + 1) if feature.is_list else None  # one id is a list of one
        return _numbered(ids, column[rows]), offsets, None

    return take


def _lists(
    feature: Feature, ids: np.ndarray | None, column: Ragged, columns: Mapping[str, Column]
) -> Take:
    """Lists in the order of time where that is named, the last `length` of each."""
    extra_values = {
        key: _aligned_values(feature, name, columns[name], column)
        for key, name in (("time", feature.time), ("weights", feature.weights))
        if name is not None
    }

    def take(rows: np.ndarray) -> Taken:
        codes, offsets = gather(column.values, column.offsets, rows, 0)
        assert offsets is not None
        extras = {k: gather(v, column.offsets, rows, 0)[0] for k, v in extra_values.items()}
        weights = extras.get("weights")
        if feature.time is not None or feature.length is not None:
            places, owner = np.arange(len(codes)), np.repeat(np.arange(len(rows)), np.diff(offsets))
            if feature.time is not None:
                places = np.lexsort((places, extras["time"], owner))
            if feature.length is not None:
                places = places[offsets[1:][owner] - 1 - np.arange(len(codes)) < feature.length]
                lengths = np.minimum(np.diff(offsets), feature.length)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            codes = codes[places]
            weights = None if weights is None else weights[places]
        weights = None if weights is None else weights.astype(np.float32, copy=False)
        return _numbered(ids, codes), offsets, weights

    return take


def _aligned_values(
    feature: Feature, name: str, extra_column: Column, column: Ragged
) -> np.ndarray:
    if not isinstance(extra_column, Ragged) or not np.array_equal(
        extra_column.offsets, column.offsets
    ):
        raise ValueError(
            f"data.features.{feature.name}: the lists of {name!r} are not as long as those of "
            f"{feature.column!r}; every id needs one value"
        )
    return extra_column.values


def _text(feature: Feature, column: Column, words_of_cells: Sequence[str]) -> Take:
    """Words of a cell, in lower case, hashed."""
    texts = list(words_of_cells)
    texts[0] = "" if feature.default is None else str(feature.default)
    words = [text.lower().split()[: feature.length] for text in texts]
    lengths = np.array([len(text_words) for text_words in words], np.int64)
    ids = hashed([word for text_words in words for word in text_words], feature.rows)
    ends = np.concatenate([[0], np.cumsum(lengths)])

    def take(rows: np.ndarray) -> Taken:
        if isinstance(column, Ragged):
            texts, offsets = gather(column.values, column.offsets, rows, 0)
        else:
            texts, offsets = column[rows], None
        values, inner = gather(ids, ends, texts.astype(np.int64, copy=False), 0)
        assert inner is not None
        return values, inner if offsets is None else inner[offsets], None

    return take


def _learn(feature: Feature, column: Column) -> Numbers:
    """How the numbers of a column are changed."""
    values = column.values if isinstance(column, Ragged) else column
    if feature.side != "context" and len(values) > 1 and not isinstance(column, Ragged):
        values = values[1:]  # of users and items row 0 is padding and takes no part
    steps: list[Step] = []
    for transform in feature.transforms:
        steps.append(_learn_step(transform, values, tuple(steps)))
    limits = feature.buckets
    if isinstance(limits, int):
        shares = np.arange(1, limits) / limits
        limits = tuple(
            np.unique(np.quantile(Numbers(tuple(steps)).change(values), shares)).tolist()
        )
    return Numbers(tuple(steps), limits)


def _learn_step(transform: Transform, values: np.ndarray, steps: tuple[Step, ...]) -> Step:
    """A transform of a column, as it is after the steps before."""
    if transform == "normalise":
        return _normal(values, steps)
    if transform == "age":  # in days, up to the newest
        newest = float(values.max(initial=-np.inf)) if len(values) else 0.0
        return newest, -DAY * (1000.0 if newest > MILLISECONDS else 1.0)
    return None if transform == "log" else transform


def _changed(values: np.ndarray, steps: Sequence[Step]) -> np.ndarray:
    values = values.astype(np.float64)
    for step in steps:
        if step is None:
            values = np.log1p(np.maximum(values, 0))
        elif isinstance(step, str):
            values = (hour if step == "hour" else weekday)(values)
        else:
            values = (values - step[0]) / step[1]
    return values


def _normal(values: np.ndarray, steps: Sequence[Step]) -> tuple[float, float]:
    """Mean and deviation of a column, which is passed over in parts, not held."""
    count = max(len(values), 1)
    parts = [values[part] for part in chunks(len(values))]
    mean = sum(_changed(part, steps).sum() for part in parts) / count
    squares = sum(np.square(_changed(part, steps) - mean).sum() for part in parts)
    return float(mean), float(np.sqrt(squares / count)) or 1.0


def _grid(feature: Feature, column: Ragged, change: Change) -> Take:
    """Lists of numbers as rows of `width`, 0 where a list is shorter."""
    longest = int(np.diff(column.offsets).max(initial=0))
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
