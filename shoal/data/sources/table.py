"""Tables: files of rows, in any format, as typed columns; whole, or in parts of bounded size.

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
from shoal.data.dataset import FieldType
from shoal.data.packed import plain_name
from shoal.data.passes import EVERYTHING
from shoal.data.raw import RawTable, choose_columns
from shoal.data.sources.quotes import CellFormat
from shoal.data.sources.typed import OR_SKIP, Columns, FilePiece, declared_types, filled_numbers

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableHeader:
    """What a file says of its columns. types: of those whose type it names; cells: of text.

    where: names it in messages, where that is not its path.
    """

    names: list[str]
    types: dict[str, FieldType] = field(default_factory=dict)
    cells: CellFormat | None = None
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

    def reads(self, path: Path) -> bool:
        """Whether a file has this format, by its name."""
        return plain_name(path).suffix in self.endings

    def header(self, path: Path, config: DataSection) -> TableHeader:
        """The columns of a file."""
        raise NotImplementedError  # every format writes its own

    def sample(self, path: Path, header: TableHeader, config: DataSection) -> pl.DataFrame:
        """Some rows of a file, or none where columns have types, to guess those of columns."""
        raise NotImplementedError  # every format writes its own

    def parts(self, path: Path, header: TableHeader, memory: int) -> Iterator[Part]:
        """A file in parts, each of which can be read by itself: here the whole of it."""
        size = path.stat().st_size
        yield Part(path, 0, size, size)

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, wanted: list[str]
    ) -> FilePiece:
        """Columns `wanted` (or more) of a part; first: the number of its first line, or row."""
        raise NotImplementedError  # every format writes its own


FORMATS: dict[str, TableFormat] = {}


def register_table(form: TableFormat) -> None:
    """Make a format of tables known: by data.format, and by the endings of files."""
    FORMATS[form.name] = form
    add_format(form.name)


def format_of(path: Path, config: DataSection) -> TableFormat:
    """data.format, or what the ending of a file says."""
    if config.format in FORMATS:
        return FORMATS[config.format]
    for form in FORMATS.values():
        if form.reads(path):
            return form
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
    parts = form.parts(path, header, EVERYTHING)
    pieces = [form.read(part, header, config, form.first_row, header.names) for part in parts]
    return pl.concat([piece.frame for piece in pieces])


def read_table(
    config: DataSection, suffix: str, paths: list[Path], form: TableFormat | None = None
) -> tuple[RawTable, np.ndarray, int]:
    """One table of several files with the same columns; which file each row is of; bad rows."""
    forms = [form or format_of(path, config) for path in paths]
    headers = [own.header(path, config) for own, path in zip(forms, paths)]
    names, given = headers[0].names, headers[0].types
    where = headers[0].where or str(paths[0])
    where += f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    for path, header in zip(paths, headers):
        odd = sorted(set(header.names) ^ set(names))
        odd += [name for name, kind in header.types.items() if given.get(name, kind) != kind]
        if odd:
            raise ValueError(
                f"{path}: its columns are not those of {paths[0]} (they differ in "
                f"{', '.join(odd)}); files of one table have the same"
            )
    wanted = wanted_columns(config, suffix, names, given, where)
    declared, required = declared_types(config, suffix)
    declared |= given
    filled = set(required)
    if suffix == "inter":  # a missing rating or time is an error, never an invented value
        filled |= filled_numbers(config) | {n for n, kind in given.items() if kind == "float"}
    pieces, owners = [], []
    for number, (own, path, header) in enumerate(zip(forms, paths, headers)):
        first = own.first_row
        for part in own.parts(path, header, EVERYTHING):
            pieces.append(own.read(part, header, config, first, wanted))
            owners.append(number)
            first += pieces[-1].num_lines
    owner = np.repeat(owners, [len(piece.frame) for piece in pieces])
    reader = Columns(config, pieces, filled, suffix)
    found = reader.good({name: declared.get(name) for name in wanted})
    bad = 0
    for number, path in enumerate(paths):
        broken = sum(piece.skipped for piece, own in zip(pieces, owners) if own == number)
        count = broken + int((reader.bad & (owner == number)).sum())
        if count:
            kinds = {what: int((owner[r] == number).sum()) for what, r in reader.problems.items()}
            kinds["the line cannot be read"] = broken
            why = ", ".join(f"{what}: {rows}" for what, rows in kinds.items() if rows)
            logger.warning(
                "%s: %d bad rows are left out (data.bad_rows: skip; %s)", path, count, why
            )
        bad += count
    if reader.bad.all():
        why = "; it is empty: fill or remove the file"
        if bad:
            why = f": all {bad} are bad{_first_problem(config, suffix, paths, form)}"
        raise ValueError(f"{where} holds no rows that can be read{why}")
    types = {name: kind for name, (kind, _) in found.items()}
    table = RawTable(where, types, {name: column for name, (_, column) in found.items()})
    return table, owner[~reader.bad], bad


def _first_problem(
    config: DataSection, suffix: str, paths: list[Path], form: TableFormat | None
) -> str:
    """What is wrong with the first bad row, which data.bad_rows=error reports."""
    try:
        read_table(config.model_copy(update={"bad_rows": "error"}), suffix, paths, form)
    except ValueError as error:
        return f", the first of them: {str(error).removesuffix(OR_SKIP)}"
    return ""


def wanted_columns(
    config: DataSection, suffix: str, names: list[str], types: dict[str, FieldType], where: str
) -> list[str]:
    """The columns to load; those of ids must be there, loaded, and of words."""
    wanted = choose_columns(config, suffix, names, where)
    if not wanted:
        raise ValueError(f"data.load.{suffix} leaves no column of {where}; name some")
    required = declared_types(config, suffix)[1]
    for name in sorted(required, key=lambda one: one != config.fields.user):
        if name not in names:
            raise ValueError(
                f"{where} has no column {name!r}; it has {', '.join(names)}; name the columns with "
                f"--user=NAME and --item=NAME (data.fields){did_you_mean(name, names)}"
            )
        if name not in wanted:
            raise ValueError(
                f"data.load leaves out {name!r} of {where}, which is needed; add it to "
                f"data.load.{suffix} or take it out of data.unload.{suffix}"
            )
        if types.get(name, "token") != "token":
            raise ValueError(
                f"{where}, line 1: the id column {name!r} has type {types[name]}; "
                f"write {name}:token"
            )
    return wanted
