"""What a source returns: columns as read, before filters, id remapping and splits.

Token columns come as codes into the distinct words of the column, so that everything after the
source works on integers and no source needs more than numpy to take part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.config.data_section import CellOptions
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType


@dataclass
class RawColumn:
    """One column, or one column of lists when it has offsets (list i is offsets[i]:offsets[i+1]).

    words None: float64 values, NaN is an empty cell.
    words set:  int64 codes into words (distinct str), -1 is an empty cell.
    """

    values: np.ndarray
    words: np.ndarray | None = None
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def take(self, rows: np.ndarray) -> RawColumn:
        """The given rows, in that order; row -1 is an empty cell or list."""
        empty = np.nan if self.words is None else -1
        values, offsets = gather(self.values, self.offsets, rows, empty)
        return RawColumn(values, self.words, offsets)


def gather(
    values: np.ndarray, offsets: np.ndarray | None, rows: np.ndarray, empty: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows (int64) of a column or of a column of lists; row -1 becomes `empty` or an empty list."""
    missing = rows < 0
    if offsets is None:
        taken = values[rows]
        if missing.any():
            taken[missing] = empty
        return taken, None
    lengths = np.where(missing, 0, offsets[rows + 1] - offsets[rows])
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # Place of each output value in the input: the start of its list, plus its place in the list.
    start = np.repeat(offsets[:-1][rows] - ends[:-1], lengths)
    return values[start + np.arange(ends[-1])], ends


@dataclass
class RawTable:
    """One file's columns, all of equal length; `where` names the file in messages."""

    where: str
    types: dict[str, FieldType]
    columns: dict[str, RawColumn]
    cells: dict[str, CellOptions] = field(default_factory=dict)  # how cells were read

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: np.ndarray) -> RawTable:
        """The given rows of every column."""
        return RawTable(
            self.where,
            self.types,
            {name: c.take(rows) for name, c in self.columns.items()},
            self.cells,
        )


@dataclass
class Raw:
    """All tables of a data set by suffix; parts: split (0, 1, 2) of each row of pre-split files.

    left_out: config key -> rows of interactions that it left out.
    """

    inter: RawTable
    side: dict[str, RawTable] = field(default_factory=dict)
    parts: np.ndarray | None = None
    left_out: dict[str, int] = field(default_factory=dict)


def choose_columns(config: DataSection, suffix: str, available: list[str], where: str) -> list[str]:
    """Columns of one file that data.load and data.unload leave, in the order of the file."""
    load = (config.load or {}).get(suffix)
    unload = (config.unload or {}).get(suffix)
    if load is not None and unload is not None:
        raise ValueError(
            f"data.load and data.unload both name {suffix!r}; name its columns in one of them"
        )
    for option, names in (("load", load), ("unload", unload)):
        for name in names or []:
            if name not in available and name != "*":
                raise ValueError(
                    f"data.{option}.{suffix}: {where} has no column {name!r}; it has "
                    f"{', '.join(available)}{did_you_mean(name, available)}"
                )
    if load is not None and "*" not in load:
        return [name for name in available if name in load]
    return [name for name in available if name not in (unload or [])]


def interaction_columns(config: DataSection, where: str) -> tuple[dict[str, FieldType], list[str]]:
    """The four columns of a source of plain interactions: name -> type, and those to load."""
    fields = config.fields
    named = [*(config.load or {}), *(config.unload or {}), *config.extra_suffixes]
    extra = [suffix for suffix in named if suffix != "inter"]
    if extra or config.presplit is not None:
        raise ValueError(
            f"{where} holds interactions in one file only: take {', '.join(extra) or 'the parts'} "
            "out of data.load, data.unload, data.extra_suffixes or data.presplit, or use atomic "
            "files"
        )
    kinds: dict[str, FieldType] = {
        fields.user: "token",
        fields.item: "token",
        fields.rating: "float",
        fields.time: "float",
    }
    load = choose_columns(config, "inter", list(kinds), where)
    for needed in (fields.user, fields.item):
        if needed not in load:
            raise ValueError(
                f"data.load leaves out {needed!r} of {where}, which is needed; add it to "
                "data.load.inter or take it out of data.unload.inter"
            )
    return kinds, load


def number_defaults(config: DataSection) -> dict[str, float]:
    """Column -> what an empty number is, where data.features says so."""
    return {
        settings.get("column", name): float(default)
        for name, settings in (config.features or {}).items()
        if isinstance(default := settings.get("default"), int | float)
        and settings.get("kind") in ("number", "numbers")
    }
