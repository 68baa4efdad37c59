"""Raw files of `shoal prepare`: which they are, and their rows some at a time.

Files are cut into parts of bounded size, which are parsed here or wherever an engine has them
parsed. Rows come in the order of the files. Nothing else of a file is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.bounded_files import plain_name
from shoal.data.column_store import EVERYTHING
from shoal.data.dataset import FieldType
from shoal.data.filters import SIDES
from shoal.data.manifest import Manifest
from shoal.data.prepared.engine import Here
from shoal.data.raw_columns import RawColumn, RawTable
from shoal.data.reading import ColumnReading, reading_of
from shoal.data.sources.atomic import ATOMIC
from shoal.data.sources.files import find_files, input_files
from shoal.data.sources.movielens import RATINGS
from shoal.data.sources.tables import (
    FORMATS,
    Part,
    TableFormat,
    TableHeader,
    format_of,
    read_table,
    wanted_columns,
)
from shoal.data.sources.typed import (
    Columns,
    declared_types,
    filled_numbers,
    find_readings,
    typed_reading,
)

if TYPE_CHECKING:
    import polars as pl

# Columns of published files, by what they are here.
ALIASES = {"book_id": "item", "userId": "user", "movieId": "item"}


def expand(names: list[str]) -> list[Path]:
    """Files, the tables of folders, and those that patterns stand for, sorted by name in each."""
    endings = (".inter", *(ending for form in FORMATS.values() for ending in form.endings))
    folders = [Path(name) for name in names if Path(name).is_dir()]
    paths = [
        path
        for path in input_files(names)
        if path.parent not in folders or plain_name(path).suffix in endings
    ]
    if not paths:
        raise ValueError(f"{', '.join(names)}: no files that end in {', '.join(endings)}")
    return paths


def side_files(config: DataSection) -> dict[str, list[Path]]:
    """The files of users and items that data.files names, by suffix."""
    named_files = config.files or {}
    unsupported = [suffix for suffix in named_files if suffix not in SIDES]
    if unsupported:
        raise ValueError(
            f"data.files names {', '.join(unsupported)}; `shoal prepare` takes user and item from "
            "there, and interactions as INPUT"
        )
    return {s: find_files(path, config.path, f"data.files.{s}") for s, path in named_files.items()}


def sort_out(paths: list[Path], config: DataSection) -> tuple[list[Path], dict[str, list[Path]]]:
    """Files of interactions, and side files by whose they are."""
    sides: dict[str, list[Path]] = {}
    named = {
        path: suffix for suffix, side_paths in side_files(config).items() for path in side_paths
    }
    inter = []
    for path in paths:
        suffix = named.get(path) or plain_name(path).suffix.removeprefix(".")
        if suffix in SIDES:
            sides.setdefault(suffix, []).append(path)
        else:
            inter.append(path)
    return inter, sides


def read_sides(sides: dict[str, list[Path]], config: DataSection) -> dict[str, RawTable]:
    """The tables of side files."""
    return {
        suffix: read_table(config, suffix, paths, form_of(paths[0], config))[0]
        for suffix, paths in sides.items()
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
    readings: dict[str, ColumnReading] = field(default_factory=dict)  # field -> how it is read

    def parse(self, part: Part, first: int) -> Parsed:
        """The rows of a part; first: the number of its first line, or row."""
        fields, column_names = self.config.fields, list(self.columns.values())
        piece = self.form.read(part, self.header, self.config, first, column_names)
        # As in training: a number whose file says its type, a time, a rating and a label are there.
        filled = {n for n, kind in self.header.types.items() if kind == "float"}
        filled |= {fields.user, fields.item, *filled_numbers(self.config)}
        needed = {column for name, column in self.columns.items() if name in filled}
        readings = {self.columns[name]: reading for name, reading in self.readings.items()}
        reader = Columns(self.config, [piece], needed, readings=readings)
        typed_columns = reader.good(
            {column: self.types[name] for name, column in self.columns.items()}
        )
        columns = {name: typed_columns[column][1] for name, column in self.columns.items()}
        skipped = piece.skipped + int(reader.bad.sum())
        return ({} if reader.bad.all() else columns), piece.num_lines, skipped


def open_inputs(
    paths: list[Path], config: DataSection, memory: int, manifest: Manifest
) -> list[Input]:
    """How files are read: columns whose file does not say it as the first one shows.

    manifest: of the folder that they are added to, whose columns were read before.
    """
    types: dict[str, FieldType] = {n: one.type for n, one in manifest.columns.items()}
    readings: dict[str, ColumnReading] | None = None
    if types and manifest.cells is not None:
        cells = manifest.cells
        readings = {
            name: reading_of(cells[name]) if name in cells else typed_reading(kind, config)
            for name, kind in types.items()
        }
    inputs: list[Input] = []
    for path in paths:
        inputs.append(open_input(path, config, memory, types, readings, paths))
        first = inputs[0]
        types, readings = types or first.types, readings or first.readings or None
    return inputs


def open_input(
    path: Path,
    config: DataSection,
    memory: int = EVERYTHING,
    folder_types: Mapping[str, FieldType] = MappingProxyType({}),
    readings: Mapping[str, ColumnReading] | None = None,
    paths: Sequence[Path] = (),
) -> Input:
    """How a file is read, from its name, its header and its values.

    folder_types: field -> its type in the folder. readings: of the columns, where they
    are known. paths: all files of the table, which may be looked at in parts of so much memory.
    """
    form = form_of(path, config)
    header = form.header(path, config)
    if header.types:
        chosen = wanted_columns(config, "inter", header.names, header.types, str(path))
        types = {name: header.types[name] for name in chosen}
        form.check(path, chosen)
        return Input(path, form, header, types, {name: name for name in chosen}, config)
    columns = _fields_of(path, header.names, config)
    selection = (config.load or {}).get("inter") or (config.unload or {}).get("inter")
    declared, _ = declared_types(config, "inter")
    usual = [name for name in columns if name in declared]
    field_names = list(columns)
    chosen = wanted_columns(config, "inter", field_names, {}, str(path)) if selection else usual
    form.check(path, [columns[name] for name in chosen])
    if readings is None or any(name not in readings for name in chosen):
        import polars as pl

        sample = form.sample(path, header, config)
        sample = sample.select(pl.col(columns[name]).alias(name) for name in chosen)

        def rows(name: str) -> Iterator[pl.Series]:
            return _values(columns[name], paths or [path], config, memory)

        kinds = {name: declared.get(name) or folder_types.get(name) for name in chosen}
        readings = find_readings(sample, kinds, config, str(path), rows)
    readings = {name: readings[name] for name in chosen}
    types = {name: reading.kind for name, reading in readings.items()}
    named = {name: columns[name] for name in chosen}
    return Input(path, form, header, types, named, config, readings)


def _values(
    column: str, paths: Sequence[Path], config: DataSection, memory: int
) -> Iterator[pl.Series]:
    """The values of a column of all files, part by part; rows that cannot be read are passed by."""
    lenient = config.model_copy(update={"bad_rows": "skip"})
    for path in paths:
        form = form_of(path, config)
        header = form.header(path, config)
        first = form.first_row
        for part in form.parts(path, header, memory):
            piece = form.read(part, header, lenient, first, [column])
            first += piece.num_lines
            yield piece.frame[column]


def _fields_of(path: Path, names: list[str], config: DataSection) -> dict[str, str]:
    """Field -> the name that its column has in the file."""
    fields = config.fields
    roles = {fields.user: "user", fields.item: "item", fields.rating: "rating", fields.time: "time"}
    columns: dict[str, str] = {}
    for column in names:
        role = roles.get(column) or ALIASES.get(column)
        field = getattr(fields, role) if role else column
        if field not in columns or column == field:
            columns[field] = column
    for role in ("user", "item"):
        id_field = getattr(fields, role)
        if id_field not in columns:
            raise ValueError(
                f"{path}: no column {id_field!r}; it has {', '.join(names)}; name the id columns "
                f"with --data.fields.user and --data.fields.item{did_you_mean(id_field, names)}"
            )
    return columns


def parse_part(task: tuple[Input, Part], first: int | None = None) -> Parsed | None:
    """Parse a part; task: (file, part).

    first: the number of its first line. None: it is unknown, so the result is None instead of an
    error where a line is wrong, since the message could not name the line.
    """
    file, part = task
    try:
        return file.parse(part, first or 0)
    except ValueError:
        if first is None:
            return None
        raise


def read_in_order(inputs: list[Input], memory: int, engine: Here) -> Iterator[tuple[Parsed, Part]]:
    """Rows of all files in their order, each with its part; ValueError names a wrong line."""
    parts = chain.from_iterable(
        ((file, part) for part in file.form.parts(file.path, file.header, memory))
        for file in inputs
    )
    first, last = 0, None
    for (file, part), piece in engine.map(parse_part, parts):
        if file.path != last:
            first, last = file.form.first_row, file.path
        piece = piece or parse_part((file, part), first)
        assert piece is not None
        first += piece[1]
        yield piece, part
