"""Columns of tables: which types are declared, how cells are read, and the values, checked.

How cells are read is found in a sample of the table's first file. Training, `shoal prepare` and
click logs look at the same rows, so they decide alike. One question may need more of the table:
whether 05/06/2024 has the day or the month first, if no date of the sample shows it. Then rows are
looked at in their order until one does.

Errors name the file and the line, or bad rows are left out and counted (data.bad_rows: skip).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.column_meaning import seconds_of_numbers
from shoal.data.dataset import FieldType
from shoal.data.dates import DateOrder
from shoal.data.raw_columns import RawColumn
from shoal.data.reading import (
    NO_ID,
    ColumnReading,
    filled,
    find_reading,
    lists_of,
    numbers_of,
    reading_of,
    times_of,
)

if TYPE_CHECKING:
    import polars as pl

# A sample is what stands at some places of a file, the first of which is its beginning.
SAMPLE_PLACES = 8
SAMPLE_ROWS = 10_000  # of all places of Parquet and Arrow
SAMPLE_BYTES = 1 << 20  # of all places of text; of packed text all at its beginning
LARGEST = float(np.finfo(np.float32).max)
FEW = 64  # words that Python numbers sooner than a frame does: those of the rows of a request
TYPE_OF: dict[str, FieldType] = {
    "id": "token",
    "text": "token",
    "ids": "token_seq",
    "sequence": "token_seq",
    "number": "float",
    "numbers": "float_seq",
}
OR_SKIP = ", or set data.bad_rows=skip to leave such rows out"


def find_readings(
    sample: pl.DataFrame,
    types: Mapping[str, FieldType | None],
    config: DataSection,
    where: str,
    rows: Callable[[str], Iterable[pl.Series]],
) -> dict[str, ColumnReading]:
    """Column -> how it is read.

    types: of the columns that are wanted; None: the values say it. where: names the table in
    messages. rows: a column -> its values, part by part, should the sample leave dates open.
    """
    fields, readings = config.fields, {}
    for name, kind in types.items():
        options = (config.cells or {}).get(name, {})
        if name in (fields.user, fields.item) and options.get("kind", "id") != "id":
            raise ValueError(
                f"data.cells.{name}.kind is {options['kind']}: users and items are ids, which are "
                "read as they stand; leave it out"
            )
        is_time = name == fields.time
        readings[name] = find_reading(sample[name], kind, is_time, options, config.seq_separator)
        if readings[name].is_time and not readings[name].order:
            order = _order_of(sample[name], name, where, rows)
            readings[name] = replace(readings[name], order=order)
    return readings


def _order_of(
    values: pl.Series, name: str, where: str, rows: Callable[[str], Iterable[pl.Series]]
) -> str:
    """The order of day and month, where the sample leaves it open: as the first date shows it."""
    import polars as pl

    if values.dtype != pl.String:
        return ""
    text = filled(values).drop_nulls()
    if not text.cast(pl.Float64, strict=False).has_nulls():  # numbers alone
        return ""
    order = DateOrder()
    order.add(text)
    if order.is_open:
        for text in rows(name):
            if text.dtype == pl.String and (first := order.first(filled(text))):
                return first
    order.check(where, name)
    return ""


def typed_reading(kind: FieldType, config: DataSection) -> ColumnReading:
    """The reading of a column whose file, or whose training data, says its type."""
    is_list = kind.endswith("_seq")
    return ColumnReading(kind, separator=config.seq_separator if is_list else "")


@dataclass
class FilePiece:
    """Rows of one file; row k is line lines[k], or k + first where all lines are rows."""

    name: str  # of the file, in messages
    frame: pl.DataFrame
    lines: np.ndarray | None = None
    first: int = 1
    unit: str = "row"
    skipped: int = 0  # bad rows that were left out
    num_lines: int = 0  # of text, blank ones included

    def where(self, row: int) -> str:
        number = row + self.first if self.lines is None else int(self.lines[row])
        return f"{self.name}, {self.unit} {number}"


def _coded(values: pl.Series, offsets: np.ndarray | None = None) -> RawColumn:
    """Numbers, or words that are numbered as they come."""
    import polars as pl

    if values.dtype == pl.Float64:
        return RawColumn(values.fill_null(float("nan")).to_numpy(), None, offsets)
    if len(values) <= FEW:
        return _coded_few(values.to_list(), offsets)
    words = values.unique(maintain_order=True).drop_nulls()
    if len(words) == 0:
        return RawColumn(np.full(len(values), -1, np.int64), np.empty(0, object), offsets)
    codes = values.cast(pl.Enum(words)).to_physical().cast(pl.Int64).fill_null(-1)
    return RawColumn(codes.to_numpy(), np.array(words.to_list(), dtype=object), offsets)


def _coded_few(texts: list[str | None], offsets: np.ndarray | None) -> RawColumn:
    """What `_coded` gives of a few words."""
    words = dict.fromkeys(text for text in texts if text is not None)
    numbers = {word: number for number, word in enumerate(words)}
    codes = np.array([-1 if text is None else numbers[text] for text in texts], np.int64)
    return RawColumn(codes, np.array(list(words), dtype=object), offsets)


def declared_types(config: DataSection, suffix: str) -> tuple[dict[str, FieldType], set[str]]:
    """Column -> type, of those that the config says something of; and those that must be filled."""
    fields = config.fields
    types: dict[str, FieldType] = {}
    for name, settings in (config.features or {}).items():
        if "kind" in settings:
            types[settings.get("column", name)] = TYPE_OF[settings["kind"]]
            types |= {settings[key]: "float_seq" for key in ("weights", "time") if key in settings}
    sides = {"user": [fields.user], "item": [fields.item], "inter": [fields.user, fields.item]}
    ids = sides.get(suffix, [])
    if suffix == "inter":
        types |= dict.fromkeys(filled_numbers(config), "float")
    types |= dict.fromkeys(ids, "token")
    if suffix in ("kg", "link", "net"):
        types |= dict.fromkeys(["head_id", "relation_id", "tail_id", "entity_id"], "token")
        types |= dict.fromkeys(["source", "target", "source_id", "target_id"], "token")
    return types, set(ids)


def filled_numbers(config: DataSection) -> set[str]:
    """Columns of interactions in which an empty cell is a mistake, never an invented value."""
    fields = config.fields
    labels = [settings.get("column", name) for name, settings in (config.labels or {}).items()]
    weight = [] if config.sample_weight is None else [config.sample_weight]
    return {fields.time, fields.rating, fields.label, *labels, *weight}


class Columns:
    """Columns of several files as one, checked; `bad` rows are left out where that is allowed."""

    def __init__(
        self,
        config: DataSection,
        pieces: list[FilePiece],
        filled: set[str],
        suffix: str = "inter",  # of the table, in messages
        readings: Mapping[str, ColumnReading] = MappingProxyType({}),
    ):
        self.config = config
        self.pieces = pieces
        self.filled = filled
        self.suffix = suffix
        self.readings = readings
        self.stops = np.cumsum([len(piece.frame) for piece in pieces])
        self.bad = np.zeros(self.stops[-1], dtype=bool)
        self.problems: dict[str, np.ndarray] = {}  # what is wrong -> the rows that are left out

    def good(self, types: Mapping[str, FieldType | None]) -> dict[str, tuple[FieldType, RawColumn]]:
        """Columns by name, with their types (None: guessed), without the rows that are `bad`."""
        columns = {name: self.column(name, type_) for name, type_ in types.items()}
        if self.bad.any():
            rows = np.flatnonzero(~self.bad)
            columns = {name: (kind, column.take(rows)) for name, (kind, column) in columns.items()}
        return columns

    def column(self, name: str, type_: FieldType | None) -> tuple[FieldType, RawColumn]:
        """Its type, declared or guessed, and its values."""
        import polars as pl

        parts = [piece.frame[name] for piece in self.pieces]
        try:
            series = pl.concat(parts, how="vertical")
        except pl.exceptions.PolarsError:
            kinds = ", ".join(f"{part.dtype} in {p.name}" for part, p in zip(parts, self.pieces))
            raise ValueError(f"column {name!r} has mixed types: {kinds}; give it one") from None
        if isinstance(series.dtype, pl.Array):
            series = series.arr.to_list()
        reading = self._reading(name, type_, series)
        kind = reading.kind
        if kind.endswith("_seq"):
            return kind, self._lists(name, series, reading)
        if isinstance(series.dtype, pl.List):
            raise ValueError(
                f"{self.pieces[0].name}: column {name!r} holds lists, and one value is wanted; "
                f"declare it with data.features.{name}.kind: ids"
            )
        if kind == "token":
            values = _words(name, series, self.pieces[0].name)
            if name in self.filled and values.has_nulls():
                self._drop(name, values, values.is_null().to_numpy(), "is empty")
                values = values.fill_null("")
            is_key = name in (self.config.fields.user, self.config.fields.item)
            is_typed = name not in self.readings  # by its file: then every word is a value
            return kind, _coded(values if is_key or is_typed else _without_nothing(values))
        return kind, _coded(self._numbers(name, series, reading, is_declared=type_ is not None))

    def _reading(self, name: str, type_: FieldType | None, series: pl.Series) -> ColumnReading:
        """How a column is read: as it was found, as data.cells says it, or as its type says."""
        if name in self.readings:
            return self.readings[name]
        if name in (self.config.cells or {}):
            return reading_of((self.config.cells or {})[name])
        return find_reading(series) if type_ is None else typed_reading(type_, self.config)

    def _numbers(
        self, name: str, series: pl.Series, reading: ColumnReading, is_declared: bool
    ) -> pl.Series:
        """Float64; dates are seconds since 1970."""
        import polars as pl

        text, is_time = series, reading.is_time or name == self.config.fields.time
        if series.dtype.is_temporal() and series.dtype not in (pl.Duration, pl.Time):
            numbers = series.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 1e6
        elif series.dtype == pl.String:
            if is_time:
                text = filled(series)
                numbers = times_of(text, reading)
            else:
                numbers = text.cast(pl.Float64, strict=False)
                if numbers.null_count() > text.null_count() or numbers.is_nan().any():
                    text = filled(series)
                    numbers = numbers_of(text, reading)
        elif series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
            numbers = series.cast(pl.Float64).fill_nan(None)
            text = numbers if series.dtype.is_float() else series
            numbers = seconds_of_numbers(numbers, reading.unit) if is_time else numbers
        elif series.dtype == pl.Struct:
            raise ValueError(
                f"{self.pieces[0].name}: column {name!r} holds objects, which no feature is made "
                f"of; leave it out with '--data.unload.{self.suffix}=[{name}]', or name its parts "
                "in columns"
            )
        else:
            raise ValueError(
                f"{self.pieces[0].name}: column {name!r} is {series.dtype}, not numbers; "
                f"declare it with data.features.{name}.kind: id"
            )
        odd = text.is_not_null() & ~(numbers.abs() <= LARGEST).fill_null(False)
        if odd.any() and not is_declared and self.config.bad_rows != "skip":
            self._refuse_mixed(name, series, int(odd.arg_max() or 0), reading)
        problem = "is not a number that fits 32 bits"
        if name == self.config.fields.label and series.dtype == pl.String:
            problem = "is not a number: write labels as 1 and 0"
        if is_time and series.dtype == pl.String:
            which = f", as {shown}" if (shown := reading.shown()) else ""
            problem = f"is no time that can be read{which} (write dates as 2025-01-31 13:45:00)"
        elif shown := reading.shown():
            problem = (
                f"is not a number as the others are ({shown}; data.cells.{name} says otherwise)"
            )
        self._drop(name, series, odd.to_numpy(), problem)
        if name in self.filled and text.has_nulls():
            self._drop(name, series, (text.is_null() & ~odd).to_numpy(), "is empty")
        return numbers.set(odd, None) if odd.any() else numbers

    def _refuse_mixed(self, name: str, series: pl.Series, row: int, reading: ColumnReading) -> None:
        """Raise about the first value that is no number, of a column without a declared type."""
        reading_text = f" ({shown})" if (shown := reading.shown()) else ""
        raise ValueError(
            f"{self._where(row)}: column {name!r} has mixed types: {series[row]!r} among "
            f"numbers{reading_text}; correct it, leave the column out with "
            f"'--data.unload.{self.suffix}="
            f"[{name}]', or say what it is with '--data.cells.{name}.kind=id' (or number{OR_SKIP})"
        )

    def _lists(self, name: str, series: pl.Series, reading: ColumnReading) -> RawColumn:
        import polars as pl

        if not isinstance(series.dtype, pl.List):
            series = lists_of(series.cast(pl.String), reading)
        series = series.list.drop_nulls()
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = series.filter(pl.Series(lengths > 0)).explode()
        if reading.kind == "token_seq":
            return _coded(_words(name, flat, self.pieces[0].name), offsets)
        numbers = flat.cast(pl.Float64, strict=False)
        odd = ~(numbers.abs() <= LARGEST).fill_null(False)
        if odd.any():
            row = int(np.searchsorted(offsets, int(odd.arg_max() or 0), side="right")) - 1
            raise ValueError(
                f"{self._where(row)}: {flat[int(odd.arg_max() or 0)]!r} in {name!r} is not a number"
            )
        return _coded(numbers, offsets)

    def _where(self, row: int) -> str:
        number = int(np.searchsorted(self.stops, row, side="right"))
        return self.pieces[number].where(row - int(self.stops[number - 1] if number else 0))

    def _drop(self, name: str, series: pl.Series, bad: np.ndarray, problem: str) -> None:
        """Raise about the first row that cannot be used, or leave out all such rows."""
        if not bad.any():
            return
        if self.config.bad_rows == "skip":
            self.bad |= bad
            self.problems[f"{name!r} {problem}"] = np.flatnonzero(bad)
            return
        row = int(bad.argmax())
        shown = "" if problem == "is empty" else f"{series[row]!r} in "
        raise ValueError(
            f"{self._where(row)}: {shown}{name!r} {problem}; correct it or remove the row{OR_SKIP}"
        )


def _without_nothing(words: pl.Series) -> pl.Series:
    """Words of a column of categories; null where one says that there is nothing."""
    different = words.unique()
    nothing = different.filter(different.str.to_lowercase().is_in(NO_ID))
    return words.set(words.is_in(nothing.implode()), None) if len(nothing) else words


def _words(name: str, series: pl.Series, path: str) -> pl.Series:
    """Text; whole numbers as such, also where a column became float because cells are missing."""
    import polars as pl

    if series.dtype.is_float():
        filled = series.fill_nan(None)
        whole = filled.cast(pl.Int64, strict=False)
        if bool(((whole.cast(pl.Float64) == filled) | filled.is_null()).all()):
            return whole.cast(pl.String)
        return filled.cast(pl.String)
    if series.dtype == pl.Binary or series.dtype.is_nested():
        raise ValueError(f"{path}: column {name!r} is {series.dtype}; it cannot be ids")
    words = series.cast(pl.String)
    return words.set(words == "", None) if bool((words == "").any()) else words
