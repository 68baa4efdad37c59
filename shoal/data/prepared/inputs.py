"""Raw interaction files, some rows at a time: csv with a header, atomic files, MovieLens, Parquet.

Text is cut at line ends into parts of bounded size, which Polars parses, here or wherever an engine
has them parsed; gzip is unpacked on the way. Rows come in the order of the files. Nothing else of a
file is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from shoal.data.dataset import FieldType
from shoal.data.packed import LONGEST_LINE, is_packed, open_text
from shoal.data.prepared.engine import Engine
from shoal.data.raw import RawColumn
from shoal.data.sources.delimited import Layout, ParsedColumn, join, parse
from shoal.data.sources.quotes import Cells
from shoal.data.sources.text import decoded, is_utf8, wrong_row
from shoal.world.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

TEXT_BYTES = 1 << 26  # of text at a time, at most
PARQUET_ROWS = 1 << 20
BETWEEN = "\x1f"  # cells, where the separator stands in some


@dataclass
class Input:
    """A file: what its columns are called and hold, and how its text is laid out."""

    path: Path
    types: dict[str, FieldType]  # field -> type of the columns that are wanted
    columns: dict[str, str]  # field -> the column's own name
    layout: Layout | None  # None: Parquet
    header: bool = True
    ids: frozenset[str] = frozenset()  # the fields of users and items
    skip: bool = False  # bad rows are left out and counted; else the first ends it
    cells: Cells | None = None  # of csv: how they are quoted
    encoding: str = "utf-8"

    def parts(self, memory: int) -> Iterator[Part]:
        """The file in parts of bounded size, each of which can be parsed by itself."""
        if self.layout is None:
            import polars as pl

            rows = pl.scan_parquet(self.path).select(pl.len()).collect().item()
            bytes_of_row = self.path.stat().st_size / max(1, rows)
            for start in range(0, rows, PARQUET_ROWS):
                stop = min(start + PARQUET_ROWS, rows)
                yield Part(self, start, stop, int(bytes_of_row * (stop - start)))
            return
        size = max(1 << 16, min(TEXT_BYTES, memory // 32))
        with open_text(self.path) as source:
            start = len(self._line(source)) if self.header else 0
            if is_packed(self.path):  # where a part of it begins is known to who reads it all
                while body := source.read(size):
                    body += self._line(source)
                    yield Part(self, start, start + len(body), len(body), body)
                    start += len(body)
                return
            end = self.path.stat().st_size
            while start < end:
                source.seek(min(start + size, end))
                self._line(source)
                stop = source.tell()
                yield Part(self, start, stop, stop - start)
                start = stop

    def _line(self, source: BinaryIO) -> bytes:
        """The rest of a line; one without an end would fill memory."""
        line = source.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{self.path}: a line has more than {LONGEST_LINE} bytes; is it text with a row on "
                "every line?"
            )
        return line

    def parse_text(self, part: Part, line: int) -> Piece:
        """The rows of lines; `line` is the number of the first."""
        assert self.layout is not None
        body = part.body
        if body is None:
            with open_regular(self.path) as source:
                source.seek(part.start)
                body = source.read(part.stop - part.start)
        lines = body.count(b"\n")
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        if part.start == 0:
            body = body.removeprefix(b"\xef\xbb\xbf")
        rest = body.rstrip(b"\n")
        if not is_utf8(self.encoding):
            rest = decoded(rest, self.encoding, self.path, line)
        empty = None
        if len(body) - len(rest) > 1 or not rest:
            empty = rest.count(b"\n") + bool(rest)
        parsed, skipped = self._parse(rest, line)
        if not parsed:
            return Piece({}, lines, empty, skipped)
        columns = {
            name: join([one[own] for one in parsed], self.types[name])
            for name, own in self.columns.items()
        }
        return Piece(columns, lines, empty, skipped)

    def _parse(self, body: bytes, line: int) -> tuple[list[dict[str, ParsedColumn]], int]:
        """The columns of lines, and how many bad ones were left out: found by halving."""
        assert self.layout is not None
        if not body.strip(b"\n"):
            return [], 0
        try:
            layout = replace(self.layout, first_line=line)
            if self.cells is not None and self.cells.marked(body):
                body, layout = self._unquoted(body, layout)
            return [parse(body, layout, str(self.path))], 0
        except ValueError:
            if not self.skip:
                raise
        cut = body.find(b"\n", len(body) // 2)
        cut = body.rfind(b"\n") if cut < 0 else cut
        if cut < 0:
            return [], 1
        first, before = self._parse(body[:cut], line)
        second, after = self._parse(body[cut + 1 :], line)
        return first + second, before + after

    def _unquoted(self, body: bytes, layout: Layout) -> tuple[bytes, Layout]:
        """The same rows without quotes, and how they are laid out: row by row where need be."""
        assert self.cells is not None
        plain = self.cells.without_quotes(body)
        if plain is not None:
            return plain, layout
        names, kept = list(layout.fields), []
        for number, row in self.cells.rows(body, len(names)):
            if isinstance(row, list) and len(row) == len(names) and not _outside(row):
                kept.append(BETWEEN.join(row))
                continue
            problem = "a cell goes over the end of its line; write such files as Parquet"
            if not isinstance(row, list) or len(row) != len(names):
                problem = wrong_row(row, names, self.cells)
            raise ValueError(f"{self.path}, line {layout.first_line + number - 1}: {problem}")
        return "\n".join(kept).encode(), replace(layout, separator=BETWEEN)

    def parse_parquet(self, part: Part) -> Piece:
        """The rows of a range."""
        import polars as pl

        scan = pl.scan_parquet(self.path)
        schema = scan.collect_schema()
        wanted = scan.select(
            _cast(pl.col(own), schema[own], self.types[name]).alias(name)
            for name, own in self.columns.items()
        )
        try:
            found = wanted.slice(part.start, part.stop - part.start).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ValueError(f"{self.path} cannot be read as Parquet: {error}") from None
        required = [n for n in self.columns if self.types[n] == "float" or n in self.ids]
        bad = found.select(
            pl.any_horizontal(pl.col(n).is_null() for n in required).alias("bad")
        ).to_series()
        if bad.any() and not self.skip:
            row = int(bad.arg_max() or 0)
            name = next(n for n in required if found[n][row] is None)
            raise ValueError(
                f"{self.path}, row {part.start + row + 1}: {name!r} is empty; fill it, remove the "
                "row, or set data.bad_rows=skip to leave such rows out"
            )
        found = found.filter(~bad)
        columns = {name: join([_flat(found[name])], self.types[name]) for name in self.columns}
        return Piece(columns if len(found) else {}, skipped=int(bad.sum()))


def _outside(row: list[str]) -> bool:
    """Whether a cell cannot stand between others on one line."""
    return any("\n" in cell or BETWEEN in cell for cell in row)


def _cast(column: pl.Expr, given: pl.DataType, kind: FieldType) -> pl.Expr:
    """A column of Parquet as text or numbers; dates are seconds since 1970."""
    import polars as pl

    value: type[pl.DataType] = pl.String if kind.startswith("token") else pl.Float64
    if kind.endswith("_seq"):
        return column.cast(pl.List(value))
    if kind == "float" and given in (pl.Date, pl.Datetime):
        return column.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    return column.cast(value)


def _flat(series: pl.Series) -> ParsedColumn:
    """A column; lists one after the other, and where each ends."""
    import polars as pl

    if not isinstance(series.dtype, pl.List):
        return ParsedColumn(series)
    series = series.list.drop_nulls()
    lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    values = series.filter(pl.Series(lengths > 0)).explode()
    return ParsedColumn(values, np.concatenate([[0], np.cumsum(lengths)]))


@dataclass(frozen=True)
class Part:
    """Bytes of text, or rows of Parquet, from `start` to `stop`."""

    input: Input
    start: int
    stop: int
    size: int  # in bytes
    body: bytes | None = None  # the text, where the file is packed


@dataclass
class Piece:
    """Rows of a part: numbers, and words numbered as they come in it."""

    columns: dict[str, RawColumn]  # none: it has no rows
    lines: int = 0
    empty: int | None = None  # lines before those at its end that are empty
    skipped: int = 0  # bad rows that were left out


def parse_part(part: Part, line: int | None = None) -> Piece | None:
    """Parse a part; None where that cannot be and nobody knows by which line to tell it."""
    try:
        if part.input.layout is None:
            return part.input.parse_parquet(part)
        return part.input.parse_text(part, line or 0)
    except ValueError:
        if line is None:
            return None
        raise


def read_in_order(inputs: list[Input], memory: int, engine: Engine) -> Iterator[tuple[Piece, Part]]:
    """Rows of all files in their order, and what they were read of; a mistake is told."""
    line, blank, last = 0, 0, None
    for part, piece in engine.map(parse_part, chain.from_iterable(f.parts(memory) for f in inputs)):
        one = part.input
        if one.path != last:
            line, blank, last = one.layout.first_line if one.layout else 1, 0, one.path
        # Empty lines may stand at the end of a file alone.
        if blank and not one.skip and (piece is None or piece.columns):
            raise ValueError(f"{one.path}, line {blank}: it is empty; remove it")
        piece = piece or parse_part(part, line)
        assert piece is not None
        if piece.empty is not None:
            blank = blank or line + piece.empty
        line += piece.lines
        yield piece, part
