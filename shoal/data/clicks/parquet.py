"""Parquet: columns are named in the config."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.data.clicks.decode import decode
from shoal.data.clicks.delimited import check_columns
from shoal.data.clicks.formats import ClickFormat
from shoal.data.clicks.lines import Block, Rows
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.parquet_counts import check_counts
from shoal.data.sources.columnar import read_by_polars

if TYPE_CHECKING:
    import polars as pl


class FrameBlock(Block):
    """Some rows of a file, which are read when the first of them are asked for."""

    def __init__(self, path: Path, first: int, count: int, layout: Layout):
        self.path, self.first, self.count, self.layout = path, first, count, layout
        self.name = str(path)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The columns that are read."""
        import polars as pl

        names = [*dict.fromkeys([self.layout.label, *self.layout.slots, *self.layout.dense])]
        rows = pl.scan_parquet(self.path).select(names).slice(self.first, self.count)
        return read_by_polars(self.path, "Parquet", rows.collect)

    def __len__(self) -> int:
        return self.count

    def parse(self, rows: Rows) -> Samples:
        return decode(self.frame[rows], self.layout)

    def where(self, index: int) -> str:
        return f"row {self.first + index + 1}"

    def num_bytes(self, rows: Rows) -> int:
        width = len(self.layout.slots) * 8 + len(self.layout.dense) * 4 + 4
        return len(self.frame[rows]) * width


class ParquetClicks(ClickFormat):
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

        rows, step = self.count(file), 1 << 16
        names = list(read_by_polars(file, "Parquet", lambda: pl.read_parquet_schema(file)))
        check_columns(layout, names, str(file))
        for first in range(0, rows, step):
            yield FrameBlock(file, first, min(step, rows - first), layout)
