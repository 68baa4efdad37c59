"""Parquet and Arrow files: columns with types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.config.schema import DataSection
from shoal.data import arrow_counts, parquet_counts
from shoal.data.bounded_files import check_expansion
from shoal.data.column_store import EVERYTHING
from shoal.data.sources.tables import Part, TableFormat, TableHeader
from shoal.data.sources.typed import SAMPLE_PLACES, SAMPLE_ROWS, FilePiece
from shoal.files.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

Content = TypeVar("Content")


def read_by_polars(path: Path, format_name: str, read: Callable[[], Content]) -> Content:
    """The result of `read`; ValueError for whatever Polars raises about the file."""
    import polars as pl

    try:
        return read()
    except (pl.exceptions.PolarsError, OSError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as {format_name}: {error}") from None
    except pl.exceptions.PanicException as error:  # of the parser itself; no Exception
        raise ValueError(f"{path} is damaged: not readable as {format_name} ({error})") from None


def check_text(path: Path, frame: pl.DataFrame) -> None:
    """Refuse rows whose text is too many times as long as their file.

    A text that many rows share stands once in memory until something is made of each.
    """
    import polars as pl

    columns = [c.explode() if isinstance(c.dtype, pl.List) else c for c in frame.get_columns()]
    texts = [column for column in columns if column.dtype == pl.String]
    content = sum(int(column.str.len_bytes().cast(pl.UInt64).sum() or 0) for column in texts)
    # Words of a dictionary become a text in each row that names them.
    categories = [column for column in columns if column.dtype in (pl.Categorical, pl.Enum)]
    content += sum(int(column.cat.len_bytes().cast(pl.UInt64).sum() or 0) for column in categories)
    check_expansion(path, path.stat().st_size, content, "the text of its cells")


class Columnar(TableFormat):
    """Files that say which types their columns have."""

    def header(self, path: Path, config: DataSection) -> TableHeader:
        return TableHeader(list(self._schema(path)))

    def sample(self, path: Path, header: TableHeader, config: DataSection) -> pl.DataFrame:
        """Rows of columns whose type does not say how they are read; the others are empty."""
        import polars as pl

        schema = self._schema(path)
        looked_at = [name for name, dtype in schema.items() if dtype == pl.String]
        looked_at += [config.fields.time] * (config.fields.time in schema)
        self.check(path, looked_at)
        frame = self.rows_of(path, list(dict.fromkeys(looked_at)))
        empty_columns = {
            k: pl.lit(None, dtype) for k, dtype in schema.items() if k not in looked_at
        }
        return (
            frame.with_columns(**empty_columns).select(schema.names())
            if looked_at
            else schema.to_frame()
        )

    def _schema(self, path: Path) -> pl.Schema:
        raise NotImplementedError  # every format writes its own

    def rows_of(self, path: Path, names: list[str]) -> pl.DataFrame:
        """A sample of the rows of columns, from several places of the file."""
        raise NotImplementedError  # every format writes its own


def _slices(rows: int) -> list[tuple[int, int]]:
    """First row and length of each place that a sample is of."""
    if rows <= SAMPLE_ROWS:
        return [(0, rows)]
    length = SAMPLE_ROWS // SAMPLE_PLACES
    return [(place * rows // SAMPLE_PLACES, length) for place in range(SAMPLE_PLACES)]


class Parquet(Columnar):
    """Parquet files, read some rows at a time."""

    name = "parquet"
    endings = (".parquet",)
    memory_factor = 13
    reads_all = False

    def check(self, path: Path, columns: list[str]) -> None:
        parquet_counts.check_content(path, columns)

    def rows_of(self, path: Path, names: list[str]) -> pl.DataFrame:
        import polars as pl

        scan = pl.scan_parquet(path, hive_partitioning=False)
        count = read_by_polars(path, "Parquet", lambda: int(scan.select(pl.len()).collect().item()))
        parts = [scan.select(names).slice(first, length) for first, length in _slices(count)]
        return read_by_polars(path, "Parquet", lambda: pl.concat(pl.collect_all(parts)))

    def parts(self, path: Path, header: TableHeader, memory: int) -> Iterator[Part]:
        import polars as pl

        scan = pl.scan_parquet(path, hive_partitioning=False).select(pl.len())
        rows = read_by_polars(path, "Parquet", lambda: int(scan.collect().item()))
        step = rows if memory >= EVERYTHING else 1 << 20
        bytes_of_row = path.stat().st_size / max(1, rows)
        for start in range(0, max(rows, 1), max(step, 1)):
            stop = min(start + step, rows)
            yield Part(path, start, stop, int(bytes_of_row * (stop - start)))

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, columns: list[str]
    ) -> FilePiece:
        import polars as pl

        rows = pl.scan_parquet(part.path, hive_partitioning=False)
        rows = rows.select(columns).slice(part.start, part.stop - part.start)
        frame = read_by_polars(part.path, "Parquet", rows.collect)
        check_text(part.path, frame)
        return FilePiece(str(part.path), frame, first=part.start + 1)

    def _schema(self, path: Path) -> pl.Schema:
        import polars as pl

        parquet_counts.check_counts(path)
        return read_by_polars(path, "Parquet", lambda: pl.Schema(pl.read_parquet_schema(path)))


class Arrow(Columnar):
    """Arrow files and streams, read whole."""

    name = "arrow"
    endings = (".arrow", ".feather", ".ipc")

    def check(self, path: Path, columns: list[str]) -> None:
        arrow_counts.check_content(path)  # of all columns: they are read whole

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, columns: list[str]
    ) -> FilePiece:
        frame = self._frame(part.path)
        check_text(part.path, frame)
        return FilePiece(str(part.path), frame)

    def rows_of(self, path: Path, names: list[str]) -> pl.DataFrame:
        import polars as pl

        frame = self._frame(path).select(names)
        return pl.concat([frame.slice(first, length) for first, length in _slices(len(frame))])

    def _schema(self, path: Path) -> pl.Schema:
        import polars as pl

        with open_regular(path) as source:
            if source.read(6) != b"ARROW1":
                return self._frame(path).schema
        arrow_counts.check_content(path)
        return read_by_polars(path, "Arrow", lambda: pl.Schema(pl.read_ipc_schema(path)))

    def _frame(self, path: Path) -> pl.DataFrame:
        import polars as pl

        def read() -> pl.DataFrame:
            data = path.read_bytes()
            return pl.read_ipc(data) if data.startswith(b"ARROW1") else pl.read_ipc_stream(data)

        arrow_counts.check_content(path)
        return read_by_polars(path, "Arrow", read)
