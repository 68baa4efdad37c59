"""Items of a pipeline: one number for each item of all its stages, and the items' attributes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.data.dataset import Ragged
from shoal.data.ids import Ids, word_of
from shoal.data.reading import NO_ID, filled, find_reading, numbers_of, times_of
from shoal.serving.pipeline.table_rows import read_rows

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("shoal")
SHOWN = 20  # values or columns that an error lists


@dataclass(frozen=True)
class ItemGroups:
    """The values of an attribute: codes of each item, and the word of each code."""

    codes: Ragged  # int64 values, offsets [num_items + 1]
    words: list[str]

    def of(self, items: np.ndarray) -> list[np.ndarray]:
        """The codes of each of these items."""
        offsets = self.codes.offsets
        return [self.codes.values[offsets[item] : offsets[item + 1]] for item in items]

    @cached_property
    def is_single(self) -> bool:
        """Whether no item has more than one value."""
        return bool((np.diff(self.codes.offsets) <= 1).all())

    def single(self, items: np.ndarray) -> np.ndarray:
        """The code of each of these items, where none has more than one; -1: it has none."""
        starts, ends = self.codes.offsets[items], self.codes.offsets[items + 1]
        has_one = starts < ends
        codes = np.full(len(items), -1)
        codes[has_one] = self.codes.values[starts[has_one]]
        return codes

    def members(self, words: Sequence[str]) -> np.ndarray:
        """The items that have one of these values, bool [num_items]."""
        chosen = np.isin(self.words, words)[self.codes.values]
        places = np.repeat(np.arange(len(self.codes.offsets) - 1), np.diff(self.codes.offsets))
        mask = np.zeros(len(self.codes.offsets) - 1, bool)
        mask[places[chosen]] = True
        return mask


@dataclass
class PipelineItems:
    """Items by number (0 is none), their attributes, and vectors of those that sources have.

    ids      the items of all sources, and those of the table alone
    table    a row for each item, ids in the first column; None: the pipeline has no attributes
    vectors  source -> vectors of length 1 [num_items, dim], zeros where it does not know an item
    """

    ids: Ids
    table: pl.DataFrame | None = None
    file: Path | None = None
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)
    _groups: dict[str, ItemGroups] = field(default_factory=dict)
    _numbers: dict[str, np.ndarray] = field(default_factory=dict)
    _members: dict[tuple[str, tuple[str, ...]], np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, ids: Sequence[Any]) -> np.ndarray:
        """Numbers of the items that are known; a warning names the others, an error all."""
        numbers = self.ids.find(ids)
        unknown = [word_of(name) for name, number in zip(ids, numbers.tolist()) if not number]
        if len(unknown) == len(ids):
            raise ValueError(f"no stage and no row of items knows {unknown[0]!r}{_more(unknown)}")
        if unknown:
            log.warning(
                "%d of %d items of a rule are not known, such as %r",
                len(unknown),
                len(ids),
                unknown[0],
            )
        return numbers[numbers > 0]

    def groups(self, attribute: str) -> ItemGroups:
        """An attribute whose values are words; a list holds several of an item."""
        if attribute not in self._groups:
            self._groups[attribute] = self._read_groups(attribute)
        return self._groups[attribute]

    def members(self, attribute: str, values: Sequence[Any]) -> np.ndarray:
        """The items that have one of these values of an attribute, bool [num_items]."""
        groups = self.groups(attribute)
        words = tuple(_word(value) for value in values)
        if (attribute, words) in self._members:
            return self._members[attribute, words]
        for word, value in zip(words, values):
            if word not in groups.words:
                shown = ", ".join(groups.words[:SHOWN]) + ", ..." * (len(groups.words) > SHOWN)
                hint = did_you_mean(word, groups.words)
                if isinstance(value, bool):
                    hint = "; YAML reads yes and no as true and false: put words in quotes"
                raise ValueError(f"no item has {attribute} {word!r}; there are {shown}{hint}")
        self._members[attribute, words] = groups.members(words)
        return self._members[attribute, words]

    def numbers(self, attribute: str) -> np.ndarray:
        """An attribute that is a number, float64 [num_items]; nan where it is not known."""
        if attribute not in self._numbers:
            self._numbers[attribute] = self._read_numbers(attribute)
        return self._numbers[attribute]

    def times(self, attribute: str) -> np.ndarray:
        """An attribute that is a date or seconds since 1970, as seconds, float64 [num_items]."""
        key = f"{attribute} as a time"
        if key not in self._numbers:
            self._numbers[key] = self._read_times(attribute)
        return self._numbers[key]

    # ---- the table ------------------------------------------------------------------------------

    def column(self, attribute: str) -> pl.Series:
        """A column of the table; an error says which there are."""
        if self.table is None:
            raise ValueError(
                f"reads {attribute!r}, and the file names no `items:`, a table of attributes with "
                "a row for each item"
            )
        names = self.table.columns[1:]
        if attribute not in names:
            shown = ", ".join(names[:SHOWN]) or "none"
            hint = did_you_mean(attribute, names)
            raise ValueError(f"{self.file} has no attribute {attribute!r}; it has {shown}{hint}")
        return self.table[attribute]

    @cached_property
    def _row_items(self) -> np.ndarray:
        """The item of each row of the table, int64 [rows]."""
        assert self.table is not None
        return self.ids.find(self.table[self.table.columns[0]].to_list())

    def _read_groups(self, attribute: str) -> ItemGroups:
        import polars as pl

        column = _without_nothing(self.column(attribute))
        is_list = isinstance(column.dtype, pl.List)
        rows = column.to_list() if is_list else [[value] for value in column.to_list()]
        codes: dict[str, int] = {}
        lists: list[list[int]] = [[] for _ in range(len(self))]
        for item, values in zip(self._row_items.tolist(), rows):
            words = [_word(value) for value in values or () if value is not None]
            lists[item] = [codes.setdefault(word, len(codes)) for word in dict.fromkeys(words)]
        lists[0] = []
        offsets = np.cumsum([0, *map(len, lists)])
        flat = np.array([code for codes_of_item in lists for code in codes_of_item], np.int64)
        return ItemGroups(Ragged(flat, offsets), list(codes))

    def _read_numbers(self, attribute: str) -> np.ndarray:
        import polars as pl

        column = self.column(attribute)
        if not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.String)):
            raise ValueError(f"{attribute!r} of {self.file} holds {column.dtype}, not numbers")
        if column.dtype == pl.String:  # read as the columns of data are
            text = filled(column)
            values = numbers_of(text, find_reading(column, "float"))
        else:
            text, values = column, column.cast(pl.Float64, strict=False)
        odd = column.filter(text.is_not_null() & ~values.is_finite().fill_null(False))
        if len(odd):
            raise ValueError(f"{attribute!r} of {self.file} holds {odd[0]!r}, which is no number")
        return self._of_items(values.to_numpy())

    def _read_times(self, attribute: str) -> np.ndarray:
        import polars as pl

        column = self.column(attribute)
        if column.dtype.is_numeric():
            return self.numbers(attribute)
        if column.dtype in (pl.Date, pl.Datetime):
            seconds = column.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
            return self._of_items(seconds.cast(pl.Float64).to_numpy())
        if column.dtype != pl.String:
            raise ValueError(f"{attribute!r} of {self.file} holds {column.dtype}, not times")
        text = filled(column)
        values = times_of(text, find_reading(column, "float", is_time=True))
        odd = column.filter(text.is_not_null() & values.is_null())
        if len(odd):
            raise ValueError(
                f"{attribute!r} of {self.file} holds {odd[0]!r}, which is no date, or one whose "
                "day and month could be the other way round; write 2024-01-31 or 2024-01-31T18:00"
            )
        return self._of_items(values.to_numpy())

    def _of_items(self, rows: np.ndarray) -> np.ndarray:
        """Values of rows as values of items."""
        values = np.full(len(self), np.nan)
        values[self._row_items] = rows
        values[0] = np.nan
        return values


def read_items(file: Path) -> pl.DataFrame:
    """A table with a row for each item, whose ids stand in its first column."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    table = read_rows(file)
    ids = table[table.columns[0]]
    words = [None if value is None else word_of(value) for value in ids.to_list()]
    if None in words:
        raise ValueError(
            f"{file}: row {words.index(None) + 1} has no id in its first column, {ids.name!r}; "
            "remove it"
        )
    first_rows: dict[str | None, int] = {}
    for row, word in enumerate(words, start=1):
        if first_rows.setdefault(word, row) < row:
            raise ValueError(
                f"{file}: {ids.name!r} of the rows {first_rows[word]} and {row} is {word!r}; the "
                "first column holds the ids of items, each once: remove one of them"
            )
    return table


def _without_nothing(column: pl.Series) -> pl.Series:
    """A column of words without those that stand for nothing, such as NULL or n/a."""
    import polars as pl

    if column.dtype != pl.String:
        return column
    return column.set(column.str.strip_chars().str.to_lowercase().is_in(NO_ID), None)


def _word(value: Any) -> str:
    """The text of a value; that of YAML's true is true."""
    return str(value).lower() if isinstance(value, bool) else word_of(value)


def _more(names: Sequence[str]) -> str:
    return f", nor {len(names) - 1} others" if len(names) > 1 else ""
