"""Raw interaction files, some rows at a time: csv with a header, atomic files, MovieLens, Parquet.

Text is cut at line ends into pieces of bounded size, which Polars parses; gzip is unpacked on the
way. Rows come in the order of the files. Nothing else of a file is in memory.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.packed import open_text, plain_name
from shoal.data.parquet_counts import check_counts
from shoal.data.raw import choose_columns
from shoal.data.sources.atomic import read_header
from shoal.data.sources.delimited import Layout, parse

if TYPE_CHECKING:
    import polars as pl

MOVIELENS = {"u.data": "\t", "ratings.dat": "::"}
SUFFIXES = (".inter", ".csv", ".tsv", ".txt", ".parquet")
# Columns of published files, by what they are here.
ALIASES = {"book_id": "item", "userId": "user", "movieId": "item"}
TEXT_BYTES = 1 << 26  # of text at a time, at most
PARQUET_ROWS = 1 << 20


@dataclass
class Input:
    """A file: what its columns are called and hold, and how its text is laid out."""

    path: Path
    types: dict[str, FieldType]  # field -> type of the columns that are wanted
    columns: dict[str, str]  # field -> the column's own name
    layout: Layout | None  # None: Parquet
    header: bool = True

    def pieces(self, memory: int) -> Iterator[tuple[dict[str, pl.Series], int]]:
        """(field -> values, bytes that were read for them) of some rows at a time."""
        if self.layout is None:
            return self._parquet()
        return self._text(self.layout, max(1 << 16, min(TEXT_BYTES, memory // 32)))

    def _text(self, layout: Layout, size: int) -> Iterator[tuple[dict[str, pl.Series], int]]:
        where, line, blank = str(self.path), layout.first_line, 0
        with open_text(self.path) as source:
            if self.header:
                source.readline()
            while body := source.read(size):
                body += source.readline()
                taken, lines = len(body), body.count(b"\n")
                if b"\r" in body:
                    body = body.replace(b"\r\n", b"\n")
                if line == 1:
                    body = body.removeprefix(b"\xef\xbb\xbf")
                rest = body.rstrip(b"\n")
                if blank and rest:  # they may stand at the end of a file, and nowhere else
                    raise ValueError(f"{where}, line {blank}: it is empty; remove it")
                if len(body) - len(rest) > 1 or not rest:
                    blank = blank or line + rest.count(b"\n") + bool(rest)
                if rest:
                    parsed = parse(rest, replace(layout, first_line=line), where)
                    yield {name: parsed[own].values for name, own in self.columns.items()}, taken
                line += lines

    def _parquet(self) -> Iterator[tuple[dict[str, pl.Series], int]]:
        import polars as pl

        frame = pl.scan_parquet(self.path)
        kinds = {"token": pl.String, "float": pl.Float64}
        wanted = frame.select(
            pl.col(own).cast(kinds[self.types[name]]).alias(name)
            for name, own in self.columns.items()
        )
        rows = frame.select(pl.len()).collect().item()
        size = self.path.stat().st_size
        for start in range(0, rows, PARQUET_ROWS):
            part = wanted.slice(start, PARQUET_ROWS).collect()
            for name in self.columns:
                if part[name].null_count():
                    row = start + int(part[name].is_null().arg_max() or 0)
                    raise ValueError(
                        f"{self.path}, row {row}: {name!r} is empty; fill it or remove the row"
                    )
            yield {name: part[name] for name in self.columns}, size * len(part) // rows


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


def open_input(path: Path, config: DataSection) -> Input:
    """How a file is read, from its name and its first line."""
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
        return _named(path, list(schema), config, None)
    head = _first_line(path)
    separator = config.separator
    if separator == "\t":  # not said: the one that the header has
        separator = max(",\t;|", key=head.count)
    return _named(path, head.split(separator), config, separator)


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
    for name in chosen:
        if header[name].endswith("_seq"):
            raise ValueError(
                f"{path}, line 1: {name!r} is a {header[name]} field, and a prepared folder holds "
                f"one value per interaction; leave it out: --data.unload.inter=[{name}]"
            )
    layout = Layout(header, chosen, config.separator, " ", 2, frozenset(chosen))
    return Input(path, {n: header[n] for n in chosen}, {n: n for n in chosen}, layout)


def _named(path: Path, names: list[str], config: DataSection, separator: str | None) -> Input:
    """A file whose first line, or schema, names columns without types."""
    fields = config.fields
    known = {fields.user: "user", fields.item: "item", fields.rating: "rating", fields.time: "time"}
    columns: dict[str, str] = {}
    for own in names:
        role = known.get(own) or ALIASES.get(own)
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
    usual = [name for name in columns if name in known]
    chosen = _chosen(config, list(columns), str(path)) if said else usual
    types: dict[str, FieldType] = {
        name: "token" if name in (fields.user, fields.item) else "float" for name in chosen
    }
    layout = None
    if separator is not None:
        kinds: dict[str, FieldType] = {
            own: next((types[n] for n, o in columns.items() if o == own and n in types), "token")
            for own in names
        }
        wanted_columns = [columns[name] for name in chosen]
        layout = Layout(kinds, wanted_columns, separator, " ", 2, frozenset(wanted_columns))
    return Input(path, types, {name: columns[name] for name in chosen}, layout)


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
