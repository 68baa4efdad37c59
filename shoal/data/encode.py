"""Features of a data set as ids and numbers: vocabularies, hashes, transforms, buckets."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from shoal.data.dataset import Column, Dataset, Ragged
from shoal.data.feature_table import FeatureColumn, FeatureTable, fold
from shoal.data.features import Feature


def encode(dataset: Dataset, features: tuple[Feature, ...]) -> FeatureTable:
    """Every feature's values by user id, item id or number of interaction; rows are counted."""
    numbering = _Numbering(dataset, features)
    columns = [_encoded(dataset, feature, numbering) for feature in features if not feature.cross]
    crossed = [
        FeatureColumn(feature, np.zeros(0, np.int64)) for feature in features if feature.cross
    ]
    return FeatureTable(tuple(columns + crossed), dataset.user_field, dataset.item_field)


class _Numbering:
    """Which id a word has in a table. Features that share a table share its vocabulary."""

    def __init__(self, dataset: Dataset, features: tuple[Feature, ...]):
        self.dataset = dataset
        self.words: dict[str, dict[str, int]] = {}
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
                known: dict[str, int] = {}
                for column in dict.fromkeys(f.column for f in ordered):
                    for word in dataset.vocab[column].tolist():
                        known.setdefault(word, len(known))
                self.words[table] = known

    def rows(self, feature: Feature) -> int | None:
        """Rows of the feature's table; None: it grows."""
        if feature.vocabulary == "exact":
            return len(self.words[feature.table])
        return feature.rows

    def ids(self, feature: Feature) -> np.ndarray:
        """The id of every word of the column's vocabulary, int64; 0 for the padding alone."""
        words = self.dataset.vocab[feature.column].tolist()
        if feature.vocabulary == "exact":
            known = self.words[feature.table]
            ids = np.array([known[word] for word in words], np.int64)
        else:
            ids = hashed(words, feature.rows)
        ids[0] = 0
        if feature.default is not None:
            ids[0] = self._default(feature)
        return ids

    def _default(self, feature: Feature) -> int:
        word = str(feature.default)
        if feature.vocabulary != "exact":
            return int(hashed([word], feature.rows)[0])
        if word not in self.words[feature.table]:
            raise ValueError(
                f"data.features.{feature.name}.default: {word!r} is no value of the column"
            )
        return self.words[feature.table][word]


def hashed(words: list[str], rows: int | None) -> np.ndarray:
    """Ids of words, a pure function of their text: 1 to rows - 1, or any of 63 bits from 1."""
    digests = b"".join(hashlib.blake2b(w.encode(), digest_size=8).digest() for w in words)
    return fold(np.frombuffer(digests, "<u8"), rows)


def _encoded(dataset: Dataset, feature: Feature, numbering: _Numbering) -> FeatureColumn:
    column = _column(dataset, feature.side, feature.column)
    if feature.is_sparse and feature.buckets is None:
        feature = replace(feature, rows=numbering.rows(feature))
        if feature.kind == "text":
            return _text(dataset, feature, column)
        values = column.values if isinstance(column, Ragged) else column
        ids = numbering.ids(feature)[values]
        if not isinstance(column, Ragged):
            if feature.is_list:  # one id is a list of one
                return FeatureColumn(feature, ids, np.arange(len(ids) + 1))
            return FeatureColumn(feature, ids)
        return _lists(dataset, feature, ids, column)
    values = _transformed(feature, column)
    if feature.buckets is None:
        if isinstance(column, Ragged):
            return FeatureColumn(feature, _grid(feature, values, column.offsets))
        return FeatureColumn(feature, values)
    limits = feature.buckets
    if isinstance(limits, int):
        shares = np.arange(1, limits) / limits
        part = values if feature.side == "context" else values[1:]  # row 0 is padding
        limits = tuple(np.unique(np.quantile(part, shares)).tolist())
    ids = np.searchsorted(np.array(limits, np.float64), values, side="right") + 1
    return FeatureColumn(replace(feature, rows=len(limits) + 2), ids.astype(np.int64))


def _column(dataset: Dataset, side: str, name: str) -> Column:
    if side == "user":
        return np.arange(dataset.num_users) if name == dataset.user_field else dataset.users[name]
    if side == "item":
        return np.arange(dataset.num_items) if name == dataset.item_field else dataset.items[name]
    return dataset.inter[name]


def _lists(dataset: Dataset, feature: Feature, ids: np.ndarray, column: Ragged) -> FeatureColumn:
    """Lists in the order of time where that is named, the last `length` of each."""
    offsets, weights = column.offsets, None
    places = np.arange(len(ids))
    owner = np.repeat(np.arange(len(column)), np.diff(offsets))
    if feature.time is not None:
        times = _beside(dataset, feature, feature.time, column)
        places = np.lexsort((places, times, owner))
    if feature.weights is not None:
        weights = _beside(dataset, feature, feature.weights, column)
    if feature.length is not None:
        rank_from_end = offsets[1:][owner] - 1 - np.arange(len(ids))
        places = places[rank_from_end < feature.length]
        lengths = np.minimum(np.diff(offsets), feature.length)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    chosen = None if weights is None else weights[places].astype(np.float32)
    return FeatureColumn(feature, ids[places], offsets.astype(np.int64), chosen)


def _beside(dataset: Dataset, feature: Feature, name: str, column: Ragged) -> np.ndarray:
    other = _column(dataset, feature.side, name)
    if not isinstance(other, Ragged) or not np.array_equal(other.offsets, column.offsets):
        raise ValueError(
            f"data.features.{feature.name}: the lists of {name!r} are not as long as those of "
            f"{feature.column!r}; every id needs one value"
        )
    return other.values


def _text(dataset: Dataset, feature: Feature, column: Column) -> FeatureColumn:
    """Words of a cell, in lower case, hashed."""
    texts = dataset.vocab[feature.column].tolist()
    texts[0] = "" if feature.default is None else str(feature.default)
    words = [text.lower().split()[: feature.length] for text in texts]
    each = np.array([len(one) for one in words], np.int64)
    ids = hashed([word for one in words for word in one], feature.rows)
    ends = np.concatenate([[0], np.cumsum(each)])
    values = column.values if isinstance(column, Ragged) else column
    lengths = each[values]
    inner = np.concatenate([[0], np.cumsum(lengths)])
    flat = ids[np.repeat(ends[:-1][values] - inner[:-1], lengths) + np.arange(inner[-1])]
    return FeatureColumn(
        feature, flat, inner[column.offsets] if isinstance(column, Ragged) else inner
    )


def _transformed(feature: Feature, column: Column) -> np.ndarray:
    """float32 values; log is log(1 + x) of what is above 0, normalise gives mean 0, deviation 1."""
    values = (column.values if isinstance(column, Ragged) else column).astype(np.float64)
    for transform in feature.transforms:
        if transform == "log":
            values = np.log1p(np.maximum(values, 0))
        else:
            # Of users and items row 0 is padding and takes no part.
            part = values[1:] if feature.side != "context" and len(values) > 1 else values
            if isinstance(column, Ragged):
                part = values
            spread = part.std() if len(part) else 1.0
            values = (values - (part.mean() if len(part) else 0.0)) / (spread or 1.0)
    return values.astype(np.float32)


def _grid(feature: Feature, values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Lists of numbers as rows of `width`, 0 where a list is shorter."""
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > feature.width:
        raise ValueError(
            f"data.features.{feature.name}.length: {feature.width}, but a row has "
            f"{lengths.max()} numbers; raise it"
        )
    grid = np.zeros((len(lengths), feature.width), np.float32)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    grid[rows, np.arange(len(values)) - offsets[:-1][rows]] = values
    return grid
