"""What a source returns: columns as read, before filters, id remapping and splits.

Token columns come as codes into the distinct words of the column, so that everything after the
source works on integers and no source needs more than numpy to take part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.config.data_section import CellOptions
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

    left_out: config key -> rows of interactions that it left out. cuts_valid: the files have no
    valid part, and data.split cuts it from their train part.
    """

    inter: RawTable
    side: dict[str, RawTable] = field(default_factory=dict)
    parts: np.ndarray | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    cuts_valid: bool = False
