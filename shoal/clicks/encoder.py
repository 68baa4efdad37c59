"""Encoders: raw rows -> the batch that a click model reads, as its training data was encoded.

    FeatureEncoder   rows of interactions: users, items and the columns of features
    LogEncoder       rows of a click log: slots and dense values

A row names its user and item; what the training data had for them is looked up. A column of theirs
that a row gives itself comes first, so that rows can describe new users and items. Values
that training did not see are encoded as the features say: hashed ones have an id, others read as an
empty cell does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from shoal.clicks.decode import decode
from shoal.clicks.history import row_history
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine
from shoal.clicks.per_feature import per_feature
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Column, Dataset, FieldType, Ragged
from shoal.data.encode import Encoding, take_of
from shoal.data.feature_table import FeatureColumn, FeatureTable
from shoal.data.features import Feature, Label
from shoal.data.ids import Ids, word_of
from shoal.data.joined import candidates, pack
from shoal.data.manifest import number_defaults
from shoal.data.raw_columns import RawColumn
from shoal.data.sources.typed import Columns, FilePiece
from shoal.data.vocabulary import PAD

if TYPE_CHECKING:
    import polars as pl

SIDES = ("user", "item")
ROWS = "the rows"  # their name in errors


def encoder_of(
    dataset: Dataset,
    table: FeatureTable,
    config: DataSection,
    packed: bool,
    labels: Sequence[Label],
) -> FeatureEncoder:
    """The encoder of the features of a data set."""
    if config.normalize:
        raise ValueError(
            f"data.normalize={config.normalize} scaled columns by their training values, which are "
            "not kept: raw rows cannot be encoded; use `transforms: [normalise]` of data.features"
        )
    sides: dict[str, dict[str, Column]] = {
        "user": dataset.users,
        "item": dataset.items,
        "context": dataset.inter,
    }
    names = {f.column for f in table.features if not f.cross}
    names |= {name for f in table.features for name in (f.weights, f.time) if name is not None}
    defaults = number_defaults(config)
    fills = {
        f.name: defaults[f.column] if f.column in defaults else _fill(sides[f.side][f.column], f)
        for f in table.features
        if f.kind == "number"
    }
    types = {name: dataset.types[name] for name in sorted(names)}
    ids = {name: Ids(dataset.vocab[name]) for name in (table.user_field, table.item_field)}
    # Rows are read as the training data was, whatever their own values look like.
    config = config.model_copy(update={"cells": dataset.cells or None})
    return FeatureEncoder(table, types, fills, ids, config, packed, labels)


def _fill(column: Column, feature: Feature) -> float:
    """What an empty number became when the data was prepared: the mean of the others."""
    assert isinstance(column, np.ndarray)
    values = column if feature.side == "context" else column[1:]
    if not len(values):
        return 0.0
    mean = float(values.mean(dtype=np.float64))
    near = float(values[np.abs(values - mean).argmin()])  # where one was empty, it is this one
    return near if abs(near - mean) <= 1e-5 * max(1.0, abs(mean)) else mean


class FeatureEncoder:
    """Encodes rows of interactions for a model that reads features.

    table   features, and their values of known users and items
    types   column -> its type; fills: feature -> what an empty number is
    ids     the users and the items that are known, by field
    """

    def __init__(
        self,
        table: FeatureTable,
        types: Mapping[str, FieldType],
        fills: Mapping[str, float],
        ids: Mapping[str, Ids],
        config: DataSection,
        packed: bool,
        labels: Sequence[Label] = (),
    ):
        self.table = table
        self.types = types
        self.fills = fills
        self.ids = ids
        self.config = config
        self.packed = packed
        self.labels = labels
        self.fields = {"user": table.user_field, "item": table.item_field}
        features = [feature for feature in table.features if not feature.cross]
        # Histories that are made of interactions: a row may give its own, under their names.
        self.histories = {
            feature.name: cast(FieldType, f"{types[feature.column]}_seq")
            for feature in features
            if feature.kind == "sequence" and not types[feature.column].endswith("_seq")
        }
        self.columns = list(dict.fromkeys([*ids, *types, *self.histories]))
        self.width = sum(feature.width for feature in features)
        # A column that has a name in common with one of another side is not theirs to give.
        self._row_columns = {
            f.name: f.column
            for f in features
            if f.name not in self.histories
            if f.side == "context"
            or f.column == self.fields[f.side]
            or all(feature.side == f.side for feature in features if feature.column == f.column)
        }

    @property
    def encoding(self) -> Encoding:
        """Vocabularies, buckets and other values that were learned from the training data."""
        return self.table.encoding

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """Rows as a frame; ids may be text or numbers."""
        import polars as pl

        columns: dict[str, list[Any]] = {}
        for name in check_names(rows, self.columns):
            values = [row.get(name) for row in rows]
            kind = self.histories.get(name) or self.types.get(name, "token")
            if kind.startswith("token"):
                values = [_words(one) for one in values]
            columns[name] = values
        try:
            return pl.DataFrame(columns)
        except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
            raise ValueError(f"the rows cannot be read: {str(error).splitlines()[0]}") from None

    def batch(self, frame: pl.DataFrame) -> Batch:
        """The samples of these rows; labels where the frame has them all."""
        size = len(frame)
        reader = Columns(self.config, [FilePiece(ROWS, frame)], set())
        numbers = {side: self._numbers(reader, frame, field) for side, field in self.fields.items()}
        ids, dense = self.table.fields(
            {
                name: self._values(column, reader, frame, numbers)
                for name, column in self.table.columns.items()
                if not column.feature.cross
            }
        )
        self.table.cross(ids)
        if self.packed:
            ids, dense = pack(self.table.features, ids, dense, size)
        users = numbers["user"]
        no_users = np.zeros(size, np.int64)
        ids.setdefault(self.fields["user"], torch.from_numpy(no_users if users is None else users))
        return Batch(size, ids, dense)

    def batch_of_pairs(self, frame: pl.DataFrame, rows: np.ndarray, items: np.ndarray) -> Batch:
        """Samples of a row, which names no item, and an item by number; samples share few rows.

        frame [r]: encoded once, however many items each row is paired with. rows [n]: places in it;
        items [n].
        """
        reader = Columns(self.config, [FilePiece(ROWS, frame)], set())
        users = self._numbers(reader, frame, self.fields["user"])
        numbers = {"user": users, "item": None}
        places = torch.from_numpy(rows)
        values: dict[str, Tensor | Jagged] = {}
        for name, column in self.table.columns.items():
            feature = column.feature
            if feature.cross:
                continue
            is_given = self._row_columns.get(name) in frame.columns
            if feature.side == "item" and name not in self.histories and not is_given:
                values[name] = column.take(items)
                continue
            of_rows = self._values(column, reader, frame, numbers)
            value = of_rows.take(places) if isinstance(of_rows, Jagged) else of_rows[places]
            if feature.side == "item" and name not in self.histories:  # an empty cell: as the item
                empty = frame[feature.column].is_null().to_numpy()[rows]
                value = _chosen(value, column.take(items), empty) if empty.any() else value
            values[name] = value
        ids, dense = self.table.fields(values)
        self.table.cross(ids)
        if self.packed:
            ids, dense = pack(self.table.features, ids, dense, len(items))
        user_ids = np.zeros(len(items), np.int64) if users is None else users[rows]
        ids.setdefault(self.fields["user"], torch.from_numpy(user_ids))
        return Batch(len(items), ids, dense)

    def with_baseline_row(self, row: Mapping[str, Any]) -> tuple[Batch, list[Feature]]:
        """The sample of a row and, behind it, one of which nothing is known; their features."""
        no_id = torch.zeros(1, dtype=torch.int64)
        baseline = candidates(self.table, no_id, no_id, self.packed, no_id.device)
        baseline.ids.setdefault(self.fields["user"], no_id)
        pair = together([self.batch(self.frame([row])), baseline])
        return pair, list(self.table.features)

    def labelled(self, frame: pl.DataFrame) -> Batch:
        """The samples of these rows with labels, which the rows must have."""
        filled = {one.column for one in self.labels}
        limits = self.config.threshold or {}
        reader = Columns(self.config, [FilePiece(ROWS, frame)], filled | {*limits})
        label_values = []
        for label in self.labels:
            source = next(iter(limits), None)
            if label.column in frame.columns:
                values = reader.column(label.column, "float")[1].values
            elif source in frame.columns and label.column == self.config.fields.label:
                assert source is not None
                values = reader.column(source, "float")[1].values >= limits[source]
            else:
                raise ValueError(
                    f"the rows have no label {label.column!r}; they have "
                    f"{', '.join(frame.columns)}{did_you_mean(label.column, frame.columns)}"
                )
            label_values.append(torch.from_numpy(values.astype(np.float32)))
        labels = label_values[0] if len(label_values) == 1 else torch.stack(label_values, 1)
        return replace(self.batch(frame), labels=labels)

    def unknown(self, frame: pl.DataFrame) -> dict[str, int]:
        """Column -> rows whose value training did not see: users, items, ids with a vocabulary."""
        vocabularies = dict(self.ids)
        for feature in self.table.features:
            exact = feature.kind == "id" and feature.table in self.encoding.words
            if exact and not feature.cross and self.types[feature.column] == "token":
                vocabularies.setdefault(feature.column, self.encoding.words[feature.table])
        unseen: dict[str, int] = {}
        for name, vocabulary in vocabularies.items():
            if name in frame.columns:
                values = frame[name].drop_nulls()
                different = values.unique()
                odd = different.filter(vocabulary.find(different.to_list()) == 0)
                missing = int(values.is_in(odd.implode()).sum())
                unseen |= {name: missing} if missing else {}
        return unseen

    def _numbers(self, reader: Columns, frame: pl.DataFrame, field: str) -> np.ndarray | None:
        if field not in frame.columns:
            return None
        raw = reader.column(field, "token")[1]
        assert raw.words is not None
        numbers = np.append(self.ids[field].find(raw.words.tolist()), 0)  # the last: empty
        return numbers[raw.values]

    def _values(
        self,
        column: FeatureColumn,
        reader: Columns,
        frame: pl.DataFrame,
        numbers: Mapping[str, np.ndarray | None],
    ) -> Tensor | Jagged:
        """One feature of all rows: as they give it, else as their user or item has it."""
        feature = column.feature
        stored = None
        if feature.name in self.histories:  # what the user took, where a row does not say
            return self._history(column, reader, frame, numbers["user"])
        if feature.side in SIDES:
            rows = numbers[feature.side]
            stored = None if rows is None else column.take(rows)
            if self._row_columns.get(feature.name) not in frame.columns:
                if stored is None:
                    field = self.fields[feature.side]
                    if field == feature.column:
                        raise _absent(field, frame)
                    raise ValueError(
                        f"the rows have neither {field!r} nor {feature.column!r}, which "
                        f"the model reads; they have {', '.join(frame.columns)}"
                    )
                return stored
        elif feature.column not in frame.columns:
            if feature.is_of_time:  # the time may be left out
                return _unknown_time(column.feature, len(frame))
            raise _absent(feature.column, frame)
        encoded = self._encoded(feature, reader, frame)
        empty = frame[feature.column].is_null().to_numpy()
        if stored is None or feature.column == self.fields[feature.side] or not empty.any():
            return encoded
        return _chosen(encoded, stored, empty)

    def _history(
        self, column: FeatureColumn, reader: Columns, frame: pl.DataFrame, users: np.ndarray | None
    ) -> Tensor | Jagged:
        """Histories of rows: as they give them, else as their users have them."""
        feature, stored = column.feature, None
        if users is not None:
            stored = column.take(users) if column.of_users is None else column.ahead(users)
        # Times and labels of a history have names that begin with the name of its items.
        item_features = {f.name for f in self.table.features if f.column == self.fields["item"]}
        items = next(
            n
            for n in self.histories
            if n in item_features and f"{feature.name}_".startswith(f"{n}_")
        )
        if items not in frame.columns:
            if stored is None or feature.name in frame.columns:
                raise _absent(self.fields["user"] if stored is None else items, frame)
            return stored
        if feature.name not in frame.columns:
            raise _absent(feature.name, frame)
        raw = reader.column(feature.name, self.histories[feature.name])[1]
        lengths = frame[items].list.len().fill_null(0).to_numpy().astype(np.int64)
        history = row_history(feature, items, raw, lengths, self.encoding)
        empty = frame[items].is_null().to_numpy()
        return history if stored is None or not empty.any() else _chosen(history, stored, empty)

    def _encoded(self, feature: Feature, reader: Columns, frame: pl.DataFrame) -> Tensor | Jagged:
        raw = reader.column(feature.column, self.types[feature.column])[1]
        extra_columns: dict[str, Column] = {}
        for name in (feature.time, feature.weights):
            if name is not None:
                if name not in frame.columns:
                    raise ValueError(f"the rows have {feature.column!r}, but not {name!r}")
                extra_columns[name] = _column(reader.column(name, self.types[name])[1])
        texts: list[str] = []
        ids = None
        if raw.words is not None:
            words = [PAD, *raw.words.tolist()]
            if feature.kind == "text":
                texts = words
            else:
                ids = self.encoding.ids(feature, words)
            column = _column(RawColumn(raw.values + 1, None, raw.offsets))
        else:
            column = _column(raw)
            if isinstance(column, np.ndarray):
                if feature.column != self.config.fields.time and not feature.is_of_time:
                    column = column.astype(np.float32)
                column[np.isnan(column)] = self.fills.get(feature.name, 0.0)
        learned = self.encoding.numbers.get(feature.name)
        take = take_of(feature, column, ids, learned, extra_columns, texts)
        return FeatureColumn(feature, take).take(np.arange(len(frame)))


def _unknown_time(feature: Feature, size: int) -> Tensor:
    """What a feature of a time is in rows that do not say it: the id 0, or the mean."""
    return torch.zeros(size, dtype=torch.int64 if feature.is_sparse else torch.float32)


def _column(raw: RawColumn) -> Column:
    return raw.values.copy() if raw.offsets is None else Ragged(raw.values, raw.offsets)


def _words(value: Any) -> Any:
    """An id, or a list of them, as text."""
    if isinstance(value, list):
        return [word_of(one) for one in value]
    return None if value is None else word_of(value)


def check_names(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The columns that rows have, in the order of `names`; another one is refused."""
    allowed = set(names)
    present: set[str] = set()
    for row in rows:
        present |= row.keys()
        odd = row.keys() - allowed
        if odd:
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ValueError(f"no column is named {min(odd)[:80]!r}; there are {shown}")
    return [name for name in names if name in present]


def _chosen(
    first: Tensor | Jagged, second: Tensor | Jagged, use_second: np.ndarray
) -> Tensor | Jagged:
    """Row k of the first, or of the second where use_second[k]."""
    mask = torch.from_numpy(use_second)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.where(mask.view(-1, *[1] * (first.dim() - 1)), second, first)
    assert isinstance(first, Jagged) and isinstance(second, Jagged)
    return Jagged.cat([first, second]).take(torch.arange(len(use_second)) + len(use_second) * mask)


def together(batches: Sequence[Batch]) -> Batch:
    """The samples of all, one batch after the other."""
    if len(batches) == 1:
        return batches[0]
    ids: dict[str, Tensor | Jagged] = {}
    for name in batches[0].ids:
        parts = [one.ids[name] for one in batches]
        if all(isinstance(one, Tensor) for one in parts):
            ids[name] = torch.cat(parts)  # type: ignore[arg-type]
        else:  # an id is a list of one
            lists = [one if isinstance(one, Jagged) else Jagged.of_single(one) for one in parts]
            ids[name] = Jagged.cat(lists)
    dense = {name: torch.cat([one.dense[name] for one in batches]) for name in batches[0].dense}
    return Batch(sum(one.size for one in batches), ids, dense)


def _absent(name: str, frame: pl.DataFrame) -> ValueError:
    return ValueError(
        f"the rows have no column {name!r}, which the model reads; they have "
        f"{', '.join(frame.columns)}{did_you_mean(name, frame.columns)}"
    )


class LogEncoder:
    """Encodes rows of a click log. features: name -> column, where a model has a table for each."""

    def __init__(self, layout: Layout, form: str, features: Mapping[str, str]):
        self.layout = layout
        self.form = form
        self.features = features
        self.columns = [*layout.slots, *dict.fromkeys(layout.dense)]
        self.width = len(layout.slots) + len(layout.dense)

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """Rows as a frame; slots and dense values that a row leaves out are 0."""
        import polars as pl

        check_names(rows, self.columns)
        columns: dict[str, Any] = {}
        for name in self.columns:
            values = [row.get(name) for row in rows]
            if any(isinstance(one, list) for one in values):
                values = [one if isinstance(one, list) or one is None else [one] for one in values]
            empty = pl.Int64 if name in self.layout.slots else pl.Float64
            nothing = all(one is None or one == [] for one in values)
            try:
                columns[name] = pl.Series(
                    name, [None] * len(rows) if nothing else values, empty if nothing else None
                )
            except (pl.exceptions.PolarsError, TypeError, OverflowError):
                raise ValueError(f"{name}: ids are whole numbers of 64 bits, or text") from None
        return pl.DataFrame(columns)

    def batch(self, frame: pl.DataFrame) -> Batch:
        """The samples of these rows."""
        import polars as pl

        for name in self.columns:
            if name not in frame.columns:
                raise _absent(name, frame)
        raw = self.form == "criteo"  # numbers as they stand in the log, and text that is hashed
        whole = self.form not in ("criteo", "csv", "parquet")  # as the lines of such a log have it
        for name in self.layout.slots if whole else ():
            if frame[name].dtype == pl.String:
                raise ValueError(f"{name}: ids of this log are whole numbers, not text")
        frame = frame.with_columns(pl.lit(0).alias(self.layout.label))
        try:
            samples = decode(frame, self.layout, raw)
        except BadLine as error:
            raise ValueError(f"row {error.index + 1} of {ROWS}: {error}") from None
        return per_feature(samples.batch(), self.layout, self.features)

    def with_baseline_row(self, row: Mapping[str, Any]) -> tuple[Batch, list[Feature]]:
        """The sample of a row and, behind it, one of zeros; their features."""
        pair = self.batch(self.frame([row, {}]))
        if "slots" in pair.ids:
            ids, numbers = list(self.layout.slots), list(dict.fromkeys(self.layout.dense))
        else:
            ids, numbers = list(pair.ids), list(pair.dense)
        count = self.layout.dense.count
        features = [Feature(name, "id") for name in ids]
        features += [Feature(name, "numbers", length=max(1, count(name))) for name in numbers]
        return pair, features
