"""Raw interaction files, some rows at a time: csv with a header, atomic files, MovieLens, Parquet.

Text is cut at line ends into parts of bounded size, which Polars parses, here or wherever an engine
has them parsed; gzip is unpacked on the way. Rows come in the order of the files. Nothing else of a
file is in memory.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.packed import LONGEST_LINE, is_packed, open_text, plain_name
from shoal.data.parquet_counts import check_counts
from shoal.data.prepared.engine import Engine
from shoal.data.raw import RawColumn, choose_columns
from shoal.data.sources.atomic import read_header
from shoal.data.sources.delimited import Layout, ParsedColumn, join, parse
from shoal.data.sources.typed import declared_types, guess_type
from shoal.world.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

MOVIELENS = {"u.data": "\t", "ratings.dat": "::"}
SUFFIXES = (".inter", ".csv", ".tsv", ".txt", ".parquet")
# Columns of published files, by what they are here.
ALIASES = {"book_id": "item", "userId": "user", "movieId": "item"}
TEXT_BYTES = 1 << 26  # of text at a time, at most
PARQUET_ROWS = 1 << 20
SAMPLE_BYTES = 1 << 16


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
    quote: bytes = b""  # what quotes cells, which are not read here

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
            self._refuse_quotes(body, line)
            return [parse(body, replace(self.layout, first_line=line), str(self.path))], 0
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

    def _refuse_quotes(self, body: bytes, line: int) -> None:
        if self.quote and (place := body.find(self.quote)) >= 0:
            line += body.count(b"\n", 0, place)
            raise ValueError(
                f"{self.path}, line {line}: quoted cells of "
                "interactions are not read; write them without quotes, or as Parquet, or set "
                "data.quote=null where quotes belong to the values"
            )

    def parse_parquet(self, part: Part) -> Piece:
        """The rows of a range."""
        import polars as pl

        scan = pl.scan_parquet(self.path)
        schema = scan.collect_schema()
        wanted = scan.select(
            _cast(pl.col(own), schema[own], self.types[name]).alias(name)
            for name, own in self.columns.items()
        )
        found = wanted.slice(part.start, part.stop - part.start).collect()
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


def expand(names: list[str]) -> list[Path]:
    """Files, the files of folders, and those that patterns stand for, sorted by name in each."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            some = [p for p in sorted(path.iterdir()) if plain_name(p).suffix in SUFFIXES]
        elif path.exists():
            some = [path]
        else:
            some = [Path(one) for one in sorted(glob.glob(name))]
        if not some:
            raise ValueError(
                f"{name} is no file, no folder with {', '.join(SUFFIXES)} files and no pattern of "
                "files; name the raw files to prepare"
            )
        found += some
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise ValueError(f"{twice} is named twice; its rows would count twice: name it once")
    return found


def open_input(
    path: Path, config: DataSection, known: Mapping[str, FieldType] = MappingProxyType({})
) -> Input:
    """How a file is read, from its name and its first line; known: types that a folder has."""
    found = _open(path, config, known)
    found.ids = frozenset((config.fields.user, config.fields.item))
    found.skip = config.bad_rows == "skip"
    return found


def _open(path: Path, config: DataSection, known: Mapping[str, FieldType]) -> Input:
    name = plain_name(path).name
    if name in MOVIELENS:
        fields = config.fields
        types: dict[str, FieldType] = {fields.user: "token", fields.item: "token"}
        types |= {fields.rating: "float", fields.time: "float"}
        chosen = _chosen(config, list(types), str(path))
        layout = Layout(types, chosen, MOVIELENS[name], " ", 1, frozenset(types))
        return Input(path, {n: types[n] for n in chosen}, {n: n for n in chosen}, layout, False)
    if plain_name(path).suffix == ".inter":
        return _atomic(path, config)
    if path.suffix == ".parquet":
        import polars as pl

        check_counts(path)
        try:
            schema = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ValueError(f"{path} is no Parquet file: {error}") from error
        return _named(path, list(schema), config, None, known, pl.DataFrame(schema=schema))
    head = _first_line(path)
    separator = config.separator
    if separator == "\t":  # not said: the one that the header has
        separator = max(",\t;|", key=head.count)
    names = head.split(separator)
    return _named(path, names, config, separator, known, _sample(path, names, separator))


def _first_line(path: Path) -> str:
    try:
        with open_text(path) as source:
            line = source.readline(1 << 20)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    head = line.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").rstrip("\r\n")
    if not head.strip():
        raise ValueError(f"{path} is empty; its first line must name the columns")
    return head


def _atomic(path: Path, config: DataSection) -> Input:
    head = _first_line(path)
    header = read_header(head.encode(), config.separator, str(path))
    chosen = _chosen(config, list(header), str(path))
    needed = {config.fields.user, config.fields.item}  # other tokens may be missing
    needed |= {name for name in chosen if header[name] == "float"}
    layout = Layout(header, chosen, config.separator, config.seq_separator, 2, frozenset(needed))
    return Input(path, {n: header[n] for n in chosen}, {n: n for n in chosen}, layout)


def _named(
    path: Path,
    names: list[str],
    config: DataSection,
    separator: str | None,
    known: Mapping[str, FieldType],
    sample: pl.DataFrame,
) -> Input:
    """A file whose first line, or schema, names columns without types; sample: its first rows."""
    fields = config.fields
    roles = {fields.user: "user", fields.item: "item", fields.rating: "rating", fields.time: "time"}
    columns: dict[str, str] = {}
    for own in names:
        role = roles.get(own) or ALIASES.get(own)
        field = getattr(fields, role) if role else own
        if field not in columns or own == field:
            columns[field] = own
    for role in ("user", "item"):
        wanted = getattr(fields, role)
        if wanted not in columns:
            raise ValueError(
                f"{path}: no column {wanted!r}; it has {', '.join(names)}; name the id columns "
                f"with --data.fields.user and --data.fields.item{did_you_mean(wanted, names)}"
            )
    said = (config.load or {}).get("inter") or (config.unload or {}).get("inter")
    declared, _ = declared_types(config, "inter")
    usual = [name for name in columns if name in declared]
    chosen = _chosen(config, list(columns), str(path)) if said else usual
    types = {
        name: declared.get(name) or known.get(name) or guess_type(name, sample[columns[name]])
        for name in chosen
    }
    layout, quote = None, b""
    if separator is not None:
        of_own = {columns[name]: kind for name, kind in types.items()}
        kinds: dict[str, FieldType] = {own: of_own.get(own, "token") for own in names}
        needed = {columns[name] for name, kind in types.items() if kind == "float"}
        needed |= {columns[fields.user], columns[fields.item]}
        load = [columns[name] for name in chosen]
        layout = Layout(kinds, load, separator, config.seq_separator, 2, frozenset(needed))
        quote = (config.quote or "").encode()
    own_names = {name: columns[name] for name in chosen}
    return Input(path, types, own_names, layout, quote=quote)


def _sample(path: Path, names: list[str], separator: str) -> pl.DataFrame:
    """The first rows of text, to guess the types of columns that nobody declared."""
    import polars as pl

    with open_text(path) as source:
        source.readline(LONGEST_LINE)
        lines = source.read(SAMPLE_BYTES).decode(errors="replace").splitlines()
    cells = [line.split(separator) for line in lines[: -1 if len(lines) > 1 else None]]
    rows = [row for row in cells if len(row) == len(names)]
    return pl.DataFrame(rows, dict.fromkeys(names, pl.String), orient="row")


def _chosen(config: DataSection, available: list[str], where: str) -> list[str]:
    """The columns to load; those of users and items must be among them."""
    chosen = choose_columns(config, "inter", available, where)
    for needed in (config.fields.user, config.fields.item):
        if needed not in chosen:
            raise ValueError(
                f"{where}: no column {needed!r} among {', '.join(chosen)}; name the id columns in "
                "data.fields.user and data.fields.item, and load them"
            )
    return chosen
