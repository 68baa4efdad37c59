"""Columns of tables: which type each has, declared or guessed, and its values, checked.

What is wrong is told with the file and the line, or left out and counted (data.bad_rows: skip).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.dates import doubtful_order, seconds_of_dates
from shoal.data.raw import RawColumn

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

LARGEST = float(np.finfo(np.float32).max)
TYPE_OF: dict[str, FieldType] = {
    "id": "token",
    "text": "token",
    "ids": "token_seq",
    "sequence": "token_seq",
    "number": "float",
    "numbers": "float_seq",
}
OR_SKIP = ", or set data.bad_rows=skip to leave such rows out"
# What people write where there is nothing, in lower case; in ids such a word may be a name.
NOTHING = ("", "-", "--", "–", "—", "?", "n/a", "#n/a", "na", "nan", "nat", "null", "none", r"\n")
IS_ID = re.compile(r"(^|_)ids?$|[a-z]Id$", re.IGNORECASE)


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
    words = values.unique(maintain_order=True).drop_nulls()
    if len(words) == 0:
        return RawColumn(np.full(len(values), -1, np.int64), np.empty(0, object), offsets)
    codes = values.cast(pl.Enum(words)).to_physical().cast(pl.Int64).fill_null(-1)
    return RawColumn(codes.to_numpy(), np.array(words.to_list(), dtype=object), offsets)


def declared_types(config: DataSection, suffix: str) -> tuple[dict[str, FieldType], set[str]]:
    """Column -> type, of those that the config says something of; and those that must be filled."""
    fields = config.fields
    types: dict[str, FieldType] = {}
    for name, said in (config.features or {}).items():
        if "kind" in said:
            types[said.get("column", name)] = TYPE_OF[said["kind"]]
            types |= {said[key]: "float_seq" for key in ("weights", "time") if key in said}
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
    labels = [said.get("column", name) for name, said in (config.labels or {}).items()]
    weight = [] if config.sample_weight is None else [config.sample_weight]
    return {fields.time, fields.rating, fields.label, *labels, *weight}


def guess_type(name: str, series: pl.Series) -> FieldType:
    """What a column looks like: numbers, unless its name ends in id; text and lists of it, ids."""
    import polars as pl

    dtype = series.dtype
    if isinstance(dtype, pl.List | pl.Array):
        return "float_seq" if dtype.inner.is_float() else "token_seq"
    if isinstance(dtype, pl.Enum | pl.Categorical):
        return "token"
    if dtype == pl.String:
        given = _filled(series).drop_nulls()
        found = given.cast(pl.Float64, strict=False).count()
        numbers = found > 0 and found >= 0.9 * len(given)
        return "float" if numbers and not IS_ID.search(name) else "token"
    return "token" if dtype.is_integer() and IS_ID.search(name) else "float"


class Columns:
    """Columns of several files as one, checked; `bad` rows are left out where that is allowed."""

    def __init__(
        self,
        config: DataSection,
        pieces: list[FilePiece],
        filled: set[str],
        suffix: str = "inter",  # of the table, in messages
    ):
        self.config, self.pieces, self.filled, self.suffix = config, pieces, filled, suffix
        self.stops = np.cumsum([len(piece.frame) for piece in pieces])
        self.bad = np.zeros(self.stops[-1], dtype=bool)
        self.problems: dict[str, np.ndarray] = {}  # what is wrong -> the rows that are left out

    def good(
        self, wanted: Mapping[str, FieldType | None]
    ) -> dict[str, tuple[FieldType, RawColumn]]:
        """Columns by name, with their types (None: guessed), without the rows that are `bad`."""
        found = {name: self.column(name, type_) for name, type_ in wanted.items()}
        if self.bad.any():
            rows = np.flatnonzero(~self.bad)
            found = {name: (kind, column.take(rows)) for name, (kind, column) in found.items()}
        return found

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
        guessed = type_ or self._guess(name, series)
        if guessed.endswith("_seq"):
            return guessed, self._lists(name, series, guessed)
        if isinstance(series.dtype, pl.List):
            raise ValueError(
                f"{self.pieces[0].name}: column {name!r} holds lists, and one value is wanted; "
                f"declare it with data.features.{name}.kind: ids"
            )
        if guessed == "token":
            values = _words(name, series, self.pieces[0].name)
            if name in self.filled and values.has_nulls():
                self._drop(name, values, values.is_null().to_numpy(), "is empty")
                values = values.fill_null("")
            return guessed, _coded(values)
        return guessed, _coded(self._numbers(name, series))

    def _guess(self, name: str, series: pl.Series) -> FieldType:
        import polars as pl

        guessed = guess_type(name, series)
        if series.dtype == pl.String and guessed == "float":
            text = _filled(series)
            odd = text.is_not_null() & text.cast(pl.Float64, strict=False).is_null()
            if odd.any():
                row = int(odd.arg_max() or 0)
                raise ValueError(
                    f"{self._where(row)}: column {name!r} has mixed types: {series[row]!r} among "
                    f"numbers; correct it, leave the column out with '--data.unload.{self.suffix}="
                    f"[{name}]', or say what it is with data.features.{name}.kind (id or number)"
                )
        return guessed

    def _numbers(self, name: str, series: pl.Series) -> pl.Series:
        """Float64; dates are seconds since 1970."""
        import polars as pl

        text = series
        if series.dtype.is_temporal() and series.dtype not in (pl.Duration, pl.Time):
            numbers = series.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 1e6
        elif series.dtype == pl.String:
            numbers = text.cast(pl.Float64, strict=False)
            if numbers.null_count() > text.null_count() or numbers.is_nan().any():
                text = _filled(series)
                numbers = text.cast(pl.Float64, strict=False)
            if name == self.config.fields.time and numbers.count() < text.count() / 2:
                numbers = seconds_of_dates(text)
                if doubt := doubtful_order(text, numbers):
                    logger.warning("%s, column %r: %s", self.pieces[0].name, name, doubt)
        elif series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
            numbers = series.cast(pl.Float64).fill_nan(None)
            text = numbers if series.dtype.is_float() else series
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
        problem = "is not a number that fits 32 bits"
        if name == self.config.fields.time and series.dtype == pl.String:
            problem = "is no time that can be read (write dates as 2025-01-31 13:45:00)"
        self._drop(name, series, odd.to_numpy(), problem)
        if name in self.filled and text.has_nulls():
            self._drop(name, series, (text.is_null() & ~odd).to_numpy(), "is empty")
        return numbers.set(odd, None) if odd.any() else numbers

    def _lists(self, name: str, series: pl.Series, type_: FieldType) -> RawColumn:
        import polars as pl

        if not isinstance(series.dtype, pl.List):
            text = series.cast(pl.String).fill_null("")
            series = text.str.split(self.config.seq_separator)
            series = series.list.eval(pl.element().filter(pl.element() != ""))
        series = series.list.drop_nulls()
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = series.filter(pl.Series(lengths > 0)).explode()
        if type_ == "token_seq":
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
        """Rows that cannot be used: the first is told, or all are left out."""
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


def _filled(text: pl.Series) -> pl.Series:
    """Text of numbers or dates without the space around it; null where it says NOTHING."""
    text = text.str.strip_chars()
    return text.set(text.str.to_lowercase().is_in(NOTHING), None)


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
