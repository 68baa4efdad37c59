"""Parquet: columns are named in the config.

Columns of whole numbers hold ids as they stand; text is an id where it is a whole number, else it
is hashed with the number of the slot, as in csv; lists hold several ids. Null is the id 0, or the
dense value 0. Polars reads the files, and is imported here alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.clicks.delimited import check_columns
from shoal.data.clicks.formats import Block, ClickFormat
from shoal.data.clicks.lines import Cells
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.parquet_counts import check_counts
from shoal.data.sources.columnar import read_by_polars

BLOCK_ROWS = 1 << 16


class FrameBlock:
    """Some rows of a file. They are decoded at once, when the first of them are asked for."""

    def __init__(self, path: Path, first: int, count: int, layout: Layout):
        self.path, self.first, self.count, self.layout = path, first, count, layout

    def __len__(self) -> int:
        return self.count

    def samples(self, start: int, stop: int) -> Samples:
        """The samples of rows start to stop - 1."""
        # Two threads may both decode; the results are the same, and the later one is kept.
        decoded = getattr(self, "_decoded", None)
        if decoded is None:
            frame = _load(self.path, self.first, self.count, self.layout)
            decoded = self._decoded = decode(frame, self.path, self.first, self.layout)
        return decoded.slice(start, stop)

    def sound(self) -> tuple[Samples, int]:
        """The samples of rows whose label and numbers can be read, and how many cannot."""
        frame = _load(self.path, self.first, self.count, self.layout)
        good = _is_label(frame[self.layout.label], self.path)
        for name in self.layout.dense:
            good &= np.isfinite(_numbers(frame[name], self.path))
        kept = frame if good.all() else frame.filter(good)
        return decode(kept, self.path, self.first, self.layout), int((~good).sum())

    @property
    def name(self) -> str:
        return str(self.path)

    def num_bytes(self, start: int, stop: int) -> int:
        """About how many bytes those rows have."""
        width = len(self.layout.slots) * 8 + len(self.layout.dense) * 4 + 4
        return (stop - start) * width


class Parquet(ClickFormat):
    """Columns by their names."""

    name = "parquet"

    def looks_so(self, file: Path, first: bytes) -> bool:
        return file.suffix == ".parquet"

    def count(self, file: Path) -> int:
        import polars as pl

        check_counts(file)
        rows = pl.scan_parquet(file).select(pl.len())
        return int(read_by_polars(file, "Parquet", lambda: rows.collect().item()))

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        import polars as pl

        rows = self.count(file)
        names = list(read_by_polars(file, "Parquet", lambda: pl.read_parquet_schema(file)))
        check_columns(layout, names, str(file))
        for first in range(0, rows, BLOCK_ROWS):
            yield FrameBlock(file, first, min(BLOCK_ROWS, rows - first), layout)


def _load(path: Path, first: int, count: int, layout: Layout) -> Any:
    """The rows as a frame of the columns that are read."""
    import polars as pl

    names = [*dict.fromkeys([layout.label, *layout.slots, *layout.dense])]
    rows = pl.scan_parquet(path).select(names).slice(first, count)
    return read_by_polars(path, "Parquet", rows.collect)


def decode(
    frame: Any, path: Path, first: int, layout: Layout, keep_integers: bool = True
) -> Samples:
    """The samples of a frame, whose first row is row `first` of its file.

    keep_integers: whole numbers are ids as they stand; else their text is hashed as any other.
    """
    given = frame[layout.label]
    if len(odd := np.flatnonzero(~_is_label(given, path))):
        row = int(odd[0])
        raise ValueError(
            f"{path}, row {first + row + 1}: {layout.label} is {given[row]}; a label is 0 or 1; "
            "correct it, or prepare the log with data.bad_rows=skip to leave such rows out"
        )
    labels = _numbers(given, path)
    dense = np.zeros((len(frame), len(layout.dense)), np.float32)
    for k, name in enumerate(layout.dense):
        dense[:, k] = _floats(frame[name], path, first)
    columns = []
    for k, name in enumerate(layout.slots):
        columns.append(_ids(frame[name], k, layout, path, keep_integers))
    slots = len(columns)
    if all(lengths is None for _, lengths in columns):
        ids = (
            np.stack([ids for ids, _ in columns], axis=1) if columns else np.zeros((len(frame), 0))
        )
        return Samples(slots, labels, dense, ids.astype(np.int64))
    every = [np.ones(len(frame), np.int64) if each is None else each for _, each in columns]
    offsets = np.concatenate([[0], np.cumsum(np.stack(every, axis=1).reshape(-1))])
    flat = np.empty(offsets[-1], np.int64)
    for k, (ids, _) in enumerate(columns):
        lengths = every[k]
        inner = np.cumsum(lengths) - lengths
        flat[np.repeat(offsets[k:-1:slots] - inner, lengths) + np.arange(len(ids))] = ids
    return Samples(slots, labels, dense, flat, offsets)


def _is_label(series: Any, path: Path) -> np.ndarray:
    """Whether each of a column is 0 or 1: [n]."""
    values = _numbers(series, path)
    return ((values == 0) | (values == 1)) & ~series.is_null().to_numpy()


def _floats(series: Any, path: Path, first: int) -> np.ndarray:
    values = _numbers(series, path)
    if len(odd := np.flatnonzero(~np.isfinite(values))):
        row = int(odd[0])
        raise ValueError(
            f"{path}, row {first + row + 1}: {series.name} is {series[row]}; it must be finite; "
            "correct it, or prepare the log with data.bad_rows=skip to leave such rows out"
        )
    return values


def _numbers(series: Any, path: Path) -> np.ndarray:
    """A column as float32, null as 0: [n]."""
    if not series.dtype.is_numeric() and str(series.dtype) != "Boolean":
        raise ValueError(f"{path}: column {series.name} is {series.dtype}; it must hold numbers")
    with np.errstate(over="ignore"):
        return series.cast(_float64()).fill_null(0.0).to_numpy().astype(np.float32)


def _float64() -> Any:
    import polars as pl

    return pl.Float64


def _ids(
    series: Any, slot: int, layout: Layout, path: Path, keep_integers: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids one after the other, and how many each row has (None: one each)."""
    import polars as pl

    if isinstance(series.dtype, pl.List):
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        flat = series.filter(pl.Series(lengths > 0)).explode()
        inner, _ = _ids(flat, slot, layout, path, keep_integers)
        ids = np.zeros(int(np.maximum(lengths, 1).sum()), np.int64)
        ids[np.repeat(lengths > 0, np.maximum(lengths, 1))] = inner
        return ids, np.maximum(lengths, 1)
    if series.dtype.is_integer() and not keep_integers:
        series = series.cast(pl.String)
    if series.dtype.is_integer():
        try:
            return layout.fold(series.cast(pl.Int64).fill_null(0).to_numpy().copy()), None
        except pl.exceptions.InvalidOperationError:
            raise ValueError(
                f"{path}: column {series.name} has ids that do not fit 64 bits with a sign"
            ) from None
    if series.dtype in (pl.String, pl.Categorical) or isinstance(series.dtype, pl.Enum):
        tokens = series.cast(pl.String).fill_null("").to_list()
        cells = Cells.of([token.encode() for token in tokens])
        return cells.ids(slice(None), np.array([slot]), layout, keep_integers)[:, 0], None
    raise ValueError(
        f"{path}: column {series.name} is {series.dtype}; a slot holds whole numbers, text, or "
        "lists of them"
    )
