"""Parquet and Arrow files: columns with types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.config.schema import DataSection
from shoal.data.parquet_counts import check_counts
from shoal.data.passes import EVERYTHING
from shoal.data.sources.table import Part, TableFormat, TableHeader
from shoal.data.sources.typed import FilePiece

if TYPE_CHECKING:
    import polars as pl

Made = TypeVar("Made")


def read_by_polars(path: Path, what: str, read: Callable[[], Made]) -> Made:
    """What `read` makes of a file; ValueError for whatever Polars says of it."""
    import polars as pl

    try:
        return read()
    except (pl.exceptions.PolarsError, OSError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from None
    except pl.exceptions.PanicException as error:  # of the parser itself; no Exception
        raise ValueError(f"{path} is damaged: not readable as {what} ({error})") from None


class Columnar(TableFormat):
    """Files that say which types their columns have."""

    def header(self, path: Path, config: DataSection) -> TableHeader:
        return TableHeader(list(self._schema(path)))

    def sample(self, path: Path, header: TableHeader, config: DataSection) -> pl.DataFrame:
        import polars as pl

        return pl.DataFrame(schema=self._schema(path))

    def _schema(self, path: Path) -> pl.Schema:
        raise NotImplementedError  # every format writes its own


class Parquet(Columnar):
    """Read some rows at a time."""

    name = "parquet"
    endings = (".parquet",)

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
        self, part: Part, header: TableHeader, config: DataSection, first: int, wanted: list[str]
    ) -> FilePiece:
        import polars as pl

        rows = pl.scan_parquet(part.path, hive_partitioning=False)
        rows = rows.select(wanted).slice(part.start, part.stop - part.start)
        frame = read_by_polars(part.path, "Parquet", rows.collect)
        return FilePiece(str(part.path), frame, first=part.start + 1)

    def _schema(self, path: Path) -> pl.Schema:
        import polars as pl

        check_counts(path)
        return read_by_polars(path, "Parquet", lambda: pl.Schema(pl.read_parquet_schema(path)))


class Arrow(Columnar):
    """Read whole: files and streams."""

    name = "arrow"
    endings = (".arrow", ".feather", ".ipc")

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, wanted: list[str]
    ) -> FilePiece:
        return FilePiece(str(part.path), self._frame(part.path))

    def _schema(self, path: Path) -> pl.Schema:
        return self._frame(path).schema

    def _frame(self, path: Path) -> pl.DataFrame:
        import polars as pl

        def read() -> pl.DataFrame:
            data = path.read_bytes()
            return pl.read_ipc(data) if data.startswith(b"ARROW1") else pl.read_ipc_stream(data)

        return read_by_polars(path, "Arrow", read)
