"""Tables as people have them: files of rows in any format, as typed columns; any number of files.

Names and types of columns come from the files and the config: what is declared is checked, the rest
is guessed. Errors name the file and the line, or bad rows are left out and counted
(data.bad_rows: skip).

A format of tables is one class, registered under its name: `register_table(MyFormat())` makes
data.format=NAME and its endings known, here or in a package of your own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection, add_format
from shoal.data.bounded_files import check_loaded_columns, check_memory, plain_name
from shoal.data.column_store import EVERYTHING
from shoal.data.dataset import FieldType
from shoal.data.raw_columns import Raw, RawTable
from shoal.data.reading import ColumnReading, cells_of
from shoal.data.sources.files import find_files
from shoal.data.sources.source import Source
from shoal.data.sources.typed import (
    OR_SKIP,
    SAMPLE_BYTES,
    SAMPLE_ROWS,
    Columns,
    FilePiece,
    declared_types,
    filled_numbers,
    find_readings,
)

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class TableHeader:
    """What a file says of its columns; types: of those whose type it names.

    where: names it in messages, where that is not its path.
    """

    names: list[str]
    types: dict[str, FieldType] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True)
class Part:
    """Bytes of text, or rows, from `start` to `stop`; body: the text, where that is known."""

    path: Path
    start: int
    stop: int
    size: int  # in bytes
    body: bytes | None = None


class TableFormat:
    """A format of tables: what its columns are called, and rows of a part as a frame."""

    name = ""  # data.format
    endings: tuple[str, ...] = ()
    first_row = 1  # the number of the first row, or line, in messages
    # Bytes that a byte of the file takes in memory, as measured on tables of ids and numbers.
    memory_factor = 7
    reads_all = True  # also columns that are not asked for

    def reads(self, path: Path) -> bool:
        """Whether a file has this format, by its name."""
        return plain_name(path).suffix in self.endings

    def described(self, config: DataSection) -> TableFormat:
        """This format as the config describes its files."""
        return self

    def header(self, path: Path, config: DataSection) -> TableHeader:
        """The columns of a file."""
        raise NotImplementedError  # every format writes its own

    def sample(self, path: Path, header: TableHeader, config: DataSection) -> pl.DataFrame:
        """A sample of rows from several places of a file, which shows how columns are read.

        Here the rows of its first part.
        """
        part = next(self.parts(path, header, SAMPLE_BYTES))
        return self.read(part, header, config, self.first_row, header.names).frame.head(SAMPLE_ROWS)

    def check(self, path: Path, columns: list[str]) -> None:
        """Refuse a file of which these columns would fill memory (shoal/data/bounded_files.py)."""

    def parts(self, path: Path, header: TableHeader, memory: int) -> Iterator[Part]:
        """A file in parts, each of which can be read by itself: here the whole of it."""
        size = path.stat().st_size
        yield Part(path, 0, size, size)

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, columns: list[str]
    ) -> FilePiece:
        """These columns (or more) of a part; first: the number of its first line, or row."""
        raise NotImplementedError  # every format writes its own


FORMATS: dict[str, TableFormat] = {}


def register_table(form: TableFormat) -> None:
    """Make a format of tables known: by data.format, and by the endings of files."""
    FORMATS[form.name] = form
    add_format(form.name)


def format_of(path: Path, config: DataSection) -> TableFormat:
    """data.format, or what the ending of a file says."""
    if config.format in FORMATS:
        return FORMATS[config.format].described(config)
    for form in FORMATS.values():
        if form.reads(path):
            return form.described(config)
    *names, last = FORMATS
    raise ValueError(
        f"{path} does not say what it is; set data.format to {', '.join(names)} or {last}"
    )


def columns_of(path: Path, config: DataSection) -> list[str]:
    """The names of a file's columns."""
    return format_of(path, config).header(path, config).names


def read_frame(path: Path, config: DataSection, form: TableFormat | None = None) -> pl.DataFrame:
    """The rows of one file, as they are."""
    import polars as pl

    form = form or format_of(path, config)
    header = form.header(path, config)
    form.check(path, header.names)
    check_memory(path, path.stat().st_size, form.memory_factor, form.reads_all)
    parts = form.parts(path, header, EVERYTHING)
    pieces = [form.read(part, header, config, form.first_row, header.names) for part in parts]
    return pl.concat([piece.frame for piece in pieces])


def read_table(
    config: DataSection, suffix: str, paths: list[Path], form: TableFormat | None = None
) -> tuple[RawTable, np.ndarray, int]:
    """One table of several files with the same columns.

    Returns the table, the number of the file of each row, and how many bad rows are left out.
    """
    if suffix != "inter":  # data.columns names those of interactions
        config = config.model_copy(update={"columns": None})
    forms = [form or format_of(path, config) for path in paths]
    headers = [one.header(path, config) for one, path in zip(forms, paths)]
    _check_same_columns(paths, headers)
    header_types = headers[0].types
    where = headers[0].where or str(paths[0])
    where += f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    chosen = wanted_columns(config, suffix, headers[0].names, header_types, where)
    declared, required = declared_types(config, suffix)
    declared |= header_types
    filled = set(required)
    if suffix == "inter":  # a missing rating or time is an error, never an invented value
        filled |= filled_numbers(config)
        filled |= {name for name, kind in header_types.items() if kind == "float"}
    pieces, owners = _read_pieces(config, paths, forms, headers, chosen)
    owner = np.repeat(owners, [len(piece.frame) for piece in pieces])
    types = {name: declared.get(name) for name in chosen}
    readings: dict[str, ColumnReading] = {}
    looked_at = {name: kind for name, kind in types.items() if name not in header_types}
    if looked_at:
        sample = forms[0].sample(paths[0], headers[0], config)
        sample = sample if len(sample) else pieces[0].frame.head(SAMPLE_ROWS)

        def rows(name: str) -> Iterator[pl.Series]:
            return (piece.frame[name] for piece in pieces)

        readings = find_readings(sample, looked_at, config, where, rows)
    reader = Columns(config, pieces, filled, suffix, readings)
    typed_columns = reader.good(types)
    bad = sum(
        _warn_of_bad_rows(path, reader, owner == number, broken)
        for number, (path, broken) in enumerate(zip(paths, _skipped(len(paths), pieces, owners)))
    )
    if reader.bad.all():
        why = "; it is empty: fill or remove the file"
        if bad:
            why = f": all {bad} are bad{_first_problem(config, suffix, paths, form)}"
        raise ValueError(f"{where} holds no rows that can be read{why}")
    table = RawTable(
        where,
        types={name: kind for name, (kind, _) in typed_columns.items()},
        columns={name: column for name, (_, column) in typed_columns.items()},
        cells=cells_of(readings),
    )
    return table, owner[~reader.bad], bad


def _check_same_columns(paths: list[Path], headers: list[TableHeader]) -> None:
    """Refuse files of one table whose columns, or their types, are not those of the first."""
    names, types = headers[0].names, headers[0].types
    for path, header in zip(paths, headers):
        odd = sorted(set(header.names) ^ set(names))
        odd += [name for name, kind in header.types.items() if types.get(name, kind) != kind]
        if odd:
            raise ValueError(
                f"{path}: its columns are not those of {paths[0]} (they differ in "
                f"{', '.join(odd)}); files of one table have the same"
            )


def _read_pieces(
    config: DataSection,
    paths: list[Path],
    forms: list[TableFormat],
    headers: list[TableHeader],
    columns: list[str],
) -> tuple[list[FilePiece], list[int]]:
    """The rows of all files, piece by piece, and the number of the file of each piece."""
    for form, path in zip(forms, paths):
        form.check(path, columns)
    size = sum(path.stat().st_size for path in paths)
    where = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]
    check_memory(where, size, forms[0].memory_factor, forms[0].reads_all)
    pieces, owners = [], []
    for number, (form, path, header) in enumerate(zip(forms, paths, headers)):
        first = form.first_row
        for part in form.parts(path, header, EVERYTHING):
            pieces.append(form.read(part, header, config, first, columns))
            owners.append(number)
            first += pieces[-1].num_lines
    return pieces, owners


def _skipped(num_files: int, pieces: list[FilePiece], owners: list[int]) -> list[int]:
    """How many rows of each file could not be read at all, and were skipped."""
    counts = [0] * num_files
    for piece, number in zip(pieces, owners):
        counts[number] += piece.skipped
    return counts


def _warn_of_bad_rows(path: Path, reader: Columns, is_own: np.ndarray, broken: int) -> int:
    """Log how many rows of a file are left out, and why; their number.

    is_own: which rows are those of the file. broken: its rows that could not be read at all.
    """
    count = broken + int((reader.bad & is_own).sum())
    if count:
        counts = {problem: int(is_own[rows].sum()) for problem, rows in reader.problems.items()}
        counts["the line cannot be read"] = broken
        why = ", ".join(f"{problem}: {rows}" for problem, rows in counts.items() if rows)
        logger.warning(
            "%s: %d bad row%s left out (data.bad_rows: skip; %s)",
            path,
            count,
            " is" if count == 1 else "s are",
            why,
        )
    return count


def _first_problem(
    config: DataSection, suffix: str, paths: list[Path], form: TableFormat | None
) -> str:
    """What is wrong with the first bad row, which data.bad_rows=error reports."""
    try:
        read_table(config.model_copy(update={"bad_rows": "error"}), suffix, paths, form)
    except ValueError as error:
        return f", the first of them: {str(error).removesuffix(OR_SKIP)}"
    return ""


def choose_columns(config: DataSection, suffix: str, available: list[str], where: str) -> list[str]:
    """Columns of one file that data.load and data.unload leave, in the order of the file."""
    load = (config.load or {}).get(suffix)
    unload = (config.unload or {}).get(suffix)
    if load is not None and unload is not None:
        raise ValueError(
            f"data.load and data.unload both name {suffix!r}; name its columns in one of them"
        )
    for option, names in (("load", load), ("unload", unload)):
        for name in names or []:
            if name not in available and name != "*":
                raise ValueError(
                    f"data.{option}.{suffix}: {where} has no column {name!r}; it has "
                    f"{', '.join(available)}{did_you_mean(name, available)}"
                )
    if load is not None and "*" not in load:
        return [name for name in available if name in load]
    return [name for name in available if name not in (unload or [])]


def interaction_columns(config: DataSection, where: str) -> tuple[dict[str, FieldType], list[str]]:
    """The four columns of a source of plain interactions: name -> type, and those to load."""
    fields = config.fields
    named = [*(config.load or {}), *(config.unload or {}), *config.extra_suffixes]
    extra = [suffix for suffix in named if suffix != "inter"]
    if extra or config.presplit is not None:
        raise ValueError(
            f"{where} holds interactions in one file only: take {', '.join(extra) or 'the parts'} "
            "out of data.load, data.unload, data.extra_suffixes or data.presplit, or use atomic "
            "files"
        )
    kinds: dict[str, FieldType] = {
        fields.user: "token",
        fields.item: "token",
        fields.rating: "float",
        fields.time: "float",
    }
    load = choose_columns(config, "inter", list(kinds), where)
    for needed in (fields.user, fields.item):
        if needed not in load:
            raise ValueError(
                f"data.load leaves out {needed!r} of {where}, which is needed; add it to "
                "data.load.inter or take it out of data.unload.inter"
            )
    return kinds, load


def wanted_columns(
    config: DataSection, suffix: str, names: list[str], types: dict[str, FieldType], where: str
) -> list[str]:
    """The columns to load; those of ids must be there, loaded, and of words."""
    chosen = choose_columns(config, suffix, names, where)
    if not chosen:
        raise ValueError(f"data.load.{suffix} leaves no column of {where}; name some")
    required = declared_types(config, suffix)[1]
    for name in sorted(required, key=lambda column: column != config.fields.user):
        if name not in names:
            raise ValueError(
                f"{where} has no column {name!r}; it has {', '.join(names)}; name the columns with "
                f"--user=NAME and --item=NAME (data.fields){did_you_mean(name, names)}"
            )
        if name not in chosen:
            raise ValueError(
                f"data.load leaves out {name!r} of {where}, which is needed; add it to "
                f"data.load.{suffix} or take it out of data.unload.{suffix}"
            )
        if types.get(name, "token") != "token":
            raise ValueError(
                f"{where}, line 1: the id column {name!r} has type {types[name]}; "
                f"write {name}:token"
            )
    check_loaded_columns(where, suffix, len(chosen))
    return chosen


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files of each table; interactions are `inter`, or train, valid and test."""
    patterns = config.files or named_tables(config)
    if not patterns:
        raise ValueError(
            f"data.format {config.format} needs data.files, as in "
            "data.files={inter: ratings.csv, item: books.parquet} (a click log is named by "
            "data.clicks.train)"
        )
    parts = [part for part in PARTS if part in patterns]
    if ("inter" in patterns) == bool(parts) or (parts and not {"train", "test"} <= {*parts}):
        raise ValueError(
            f"data.files names {', '.join(patterns)}; name inter, or train, test and perhaps valid "
            "(data.split cuts it from train where there is none), and besides user, item and "
            "others as there are"
        )
    return {
        suffix: find_files(pattern, config.path, f"data.files.{suffix}")
        for suffix, pattern in patterns.items()
        if (config.load or {}).get(suffix) != []
    }


def named_tables(config: DataSection) -> dict[str, str]:
    """Files named inter, user and item in the folder of the data set, whatever their format."""
    folder = config.folder
    paths: dict[str, str] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            stem = plain_name(path).stem
            is_table = any(form.reads(path) for form in FORMATS.values())
            if is_table and stem in ("inter", *PARTS, "user", "item"):
                paths.setdefault(stem, str(path.resolve()))
    return paths if {"inter", "train"} & paths.keys() else {}


class Tables(Source):
    """Tables that data.files names, or of the names inter, user and item in a folder."""

    name = "tables"

    def matches(self, config: DataSection) -> bool:
        return bool(named_tables(config))

    def files(self, config: DataSection) -> list[Path]:
        return [path for paths in files(config).values() for path in paths]

    def read(self, config: DataSection) -> Raw:
        paths_by_suffix = files(config)
        tables: dict[str, RawTable] = {}
        parts, bad = None, 0
        for suffix in [s for s in paths_by_suffix if s not in PARTS]:
            tables[suffix], _, skipped = read_table(config, suffix, paths_by_suffix[suffix])
            bad += skipped if suffix == "inter" else 0
        if "train" in paths_by_suffix:
            paths_by_part = [paths_by_suffix.get(part, []) for part in PARTS]
            split_paths = [path for paths in paths_by_part for path in paths]
            tables["inter"], owner, bad = read_table(config, "inter", split_paths)
            parts = np.repeat(np.arange(3), [len(paths) for paths in paths_by_part])[owner]
        left_out = {"data.bad_rows": bad} if bad else {}
        return Raw(
            tables.pop("inter"),
            tables,
            parts,
            left_out,
            cuts_valid=parts is not None and "valid" not in paths_by_suffix,
        )
