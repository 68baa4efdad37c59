"""Raw files of `shoal prepare`: which they are, and their rows some at a time.

Files are cut into parts of bounded size, which are parsed here or wherever an engine has them
parsed. Rows come in the order of the files. Nothing else of a file is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.filters import SIDES
from shoal.data.packed import plain_name
from shoal.data.prepared.engine import Here
from shoal.data.raw import RawColumn, RawTable
from shoal.data.sources.atomic import ATOMIC
from shoal.data.sources.files import find_files, input_files
from shoal.data.sources.movielens import RATINGS
from shoal.data.sources.table import (
    FORMATS,
    Part,
    TableFormat,
    TableHeader,
    format_of,
    read_table,
    wanted_columns,
)
from shoal.data.sources.typed import Columns, declared_types, guess_type

# Columns of published files, by what they are here.
ALIASES = {"book_id": "item", "userId": "user", "movieId": "item"}


def expand(names: list[str]) -> list[Path]:
    """Files, the tables of folders, and those that patterns stand for, sorted by name in each."""
    endings = (".inter", *(ending for form in FORMATS.values() for ending in form.endings))
    folders = [Path(name) for name in names if Path(name).is_dir()]
    found = [
        path
        for path in input_files(names)
        if path.parent not in folders or plain_name(path).suffix in endings
    ]
    if not found:
        raise ValueError(f"{', '.join(names)}: no files that end in {', '.join(endings)}")
    return found


def side_files(config: DataSection) -> dict[str, list[Path]]:
    """Those that data.files names."""
    said = config.files or {}
    other = [suffix for suffix in said if suffix not in SIDES]
    if other:
        raise ValueError(
            f"data.files names {', '.join(other)}; `shoal prepare` takes user and item from there, "
            "and interactions as INPUT"
        )
    return {s: find_files(path, config.path, f"data.files.{s}") for s, path in said.items()}


def sort_out(paths: list[Path], config: DataSection) -> tuple[list[Path], dict[str, list[Path]]]:
    """Files of interactions, and side files by whose they are."""
    found: dict[str, list[Path]] = {}
    named = {path: suffix for suffix, some in side_files(config).items() for path in some}
    inter = []
    for path in paths:
        suffix = named.get(path) or plain_name(path).suffix.removeprefix(".")
        if suffix in SIDES:
            found.setdefault(suffix, []).append(path)
        else:
            inter.append(path)
    return inter, found


def read_sides(found: dict[str, list[Path]], config: DataSection) -> dict[str, RawTable]:
    """The tables of side files."""
    return {
        suffix: read_table(config, suffix, paths, form_of(paths[0], config))[0]
        for suffix, paths in found.items()
    }


def form_of(path: Path, config: DataSection) -> TableFormat:
    """The format of a raw file, by its name."""
    for form in (*RATINGS, ATOMIC):
        if form.reads(path):
            return form
    return format_of(path, config)


def is_table(path: Path) -> bool:
    """Whether a file names its columns without their types: csv, Parquet."""
    return not any(form.reads(path) for form in (*RATINGS, ATOMIC))


# Columns of a part (none: it has no rows), its lines, and bad rows that were left out.
Parsed = tuple[dict[str, RawColumn], int, int]


@dataclass(frozen=True)
class Input:
    """A file: what its columns are called and hold."""

    path: Path
    form: TableFormat
    header: TableHeader
    types: dict[str, FieldType]  # field -> type of the columns that are wanted
    columns: dict[str, str]  # field -> the column's own name
    config: DataSection

    def parse(self, part: Part, first: int) -> Parsed:
        """The rows of a part; first: the number of its first line, or row."""
        fields, wanted = self.config.fields, list(self.columns.values())
        piece = self.form.read(part, self.header, self.config, first, wanted)
        floats = {name for name, kind in self.types.items() if kind == "float"}
        needed = {self.columns[name] for name in (*floats, fields.user, fields.item)}
        reader = Columns(self.config, [piece], needed)
        found = reader.good({own: self.types[name] for name, own in self.columns.items()})
        columns = {name: found[own][1] for name, own in self.columns.items()}
        skipped = piece.skipped + int(reader.bad.sum())
        return ({} if reader.bad.all() else columns), piece.num_lines, skipped


def open_input(
    path: Path, config: DataSection, known: Mapping[str, FieldType] = MappingProxyType({})
) -> Input:
    """How a file is read, from its name and its header; known: types that a folder has."""
    form = form_of(path, config)
    header = form.header(path, config)
    if header.types:
        chosen = wanted_columns(config, "inter", header.names, header.types, str(path))
        types = {name: header.types[name] for name in chosen}
        return Input(path, form, header, types, {name: name for name in chosen}, config)
    columns = _fields_of(path, header.names, config)
    said = (config.load or {}).get("inter") or (config.unload or {}).get("inter")
    declared, _ = declared_types(config, "inter")
    usual = [name for name in columns if name in declared]
    every = list(columns)
    chosen = wanted_columns(config, "inter", every, {}, str(path)) if said else usual
    types, sample = {}, None
    for name in chosen:
        kind = declared.get(name) or known.get(name)
        if kind is None:
            sample = form.sample(path, header, config) if sample is None else sample
            kind = guess_type(name, sample[columns[name]])
        types[name] = kind
    return Input(path, form, header, types, {name: columns[name] for name in chosen}, config)


def _fields_of(path: Path, names: list[str], config: DataSection) -> dict[str, str]:
    """Field -> the name that its column has in the file."""
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
    return columns


def parse_part(given: tuple[Input, Part], first: int | None = None) -> Parsed | None:
    """Parse a part; None where that cannot be and nobody knows by which line to tell it."""
    one, part = given
    try:
        return one.parse(part, first or 0)
    except ValueError:
        if first is None:
            return None
        raise


def read_in_order(inputs: list[Input], memory: int, engine: Here) -> Iterator[tuple[Parsed, Part]]:
    """Rows of all files in their order, and what they were read of; a mistake is told."""
    parts = chain.from_iterable(
        ((one, part) for part in one.form.parts(one.path, one.header, memory)) for one in inputs
    )
    first, last = 0, None
    for (one, part), piece in engine.map(parse_part, parts):
        if one.path != last:
            first, last = one.form.first_row, one.path
        piece = piece or parse_part((one, part), first)
        assert piece is not None
        first += piece[1]
        yield piece, part
