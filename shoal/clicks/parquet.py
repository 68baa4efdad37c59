"""Parquet: columns are named in the config."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.clicks.decode import decode
from shoal.clicks.delimited import check_columns
from shoal.clicks.formats import ClickFormat
from shoal.clicks.layout import Layout
from shoal.clicks.lines import Block, Rows
from shoal.clicks.samples import Samples
from shoal.data.parquet_counts import check_content, check_counts
from shoal.data.sources.columnar import Parquet, check_text, read_by_polars

if TYPE_CHECKING:
    import polars as pl


class FrameBlock(Block):
    """A block of rows of a file, which is read when the first of them are needed."""

    def __init__(self, path: Path, first: int, count: int, layout: Layout):
        self.path = path
        self.first = first
        self.count = count
        self.layout = layout
        self.name = str(path)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The columns that are read."""
        import polars as pl

        names = [*dict.fromkeys([self.layout.label, *self.layout.slots, *self.layout.dense])]
        rows = pl.scan_parquet(self.path).select(names).slice(self.first, self.count)
        frame = read_by_polars(self.path, "Parquet", rows.collect)
        check_text(self.path, frame)
        return frame

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
    """Parquet files, whose columns the config names."""

    name = "parquet"

    def looks_so(self, file: Path, first: bytes) -> bool:
        return file.suffix == ".parquet"

    def count(self, file: Path) -> int:
        import polars as pl

        check_counts(file)
        rows = pl.scan_parquet(file).select(pl.len())
        return int(read_by_polars(file, "Parquet", lambda: rows.collect().item()))

    def sample(self, file: Path, layout: Layout, separator: str) -> pl.DataFrame | None:
        import polars as pl

        schema = read_by_polars(file, "Parquet", lambda: pl.read_parquet_schema(file))
        columns = {layout.label, *layout.slots, *layout.dense}
        check_content(file, columns)
        texts = [name for name in columns if schema.get(name) == pl.String]
        return Parquet().rows_of(file, texts) if texts else None

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        import polars as pl

        names = list(read_by_polars(file, "Parquet", lambda: pl.read_parquet_schema(file)))
        check_columns(layout, names, str(file))
        check_content(file, {layout.label, *layout.slots, *layout.dense})
        rows, step = self.count(file), 1 << 16
        for first in range(0, rows, step):
            yield FrameBlock(file, first, min(step, rows - first), layout)
