"""Tables as people have them: csv, Parquet, Arrow, JSON lines; any number of files for each.

Names and types of columns come from the files and the config: what is declared is checked, the rest
is guessed. What is wrong is told with the file and the line, or left out and counted
(data.bad_rows: skip).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.packed import LONGEST_LINE, open_text, plain_name
from shoal.data.parquet_counts import check_counts
from shoal.data.raw import Raw, RawTable, choose_columns
from shoal.data.sources.delimited import join
from shoal.data.sources.files import find_files
from shoal.data.sources.text import header_of, read_csv, read_lines
from shoal.data.sources.typed import Columns, Piece, declared_types, filled_numbers

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
PARTS = ("train", "valid", "test")


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files of each table; interactions are `inter`, or train, valid and test."""
    wanted = config.files or beside(config)
    if not wanted:
        raise ValueError(
            f"data.format {config.format} needs data.files, as in "
            "data.files={inter: ratings.csv, item: books.parquet} (a click log is named by "
            "data.clicks.train)"
        )
    parts = [part for part in PARTS if part in wanted]
    if ("inter" in wanted) == bool(parts) or (parts and len(parts) < 3):
        raise ValueError(
            f"data.files names {', '.join(wanted)}; name inter, or all of train, valid and test, "
            "and besides user, item and others as there are"
        )
    return {
        suffix: find_files(pattern, config.path, f"data.files.{suffix}")
        for suffix, pattern in wanted.items()
        if (config.load or {}).get(suffix) != []
    }


def beside(config: DataSection) -> dict[str, str]:
    """Files named inter, user and item in the folder of the data set, whatever their format."""
    folder = config.folder
    found: dict[str, str] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            plain = plain_name(path)
            if plain.suffix in FORMATS and plain.stem in ("inter", *PARTS, "user", "item"):
                found.setdefault(plain.stem, str(path.resolve()))
    return found if {"inter", "train"} & found.keys() else {}


def read(config: DataSection) -> Raw:
    """All tables that the config names."""
    found = files(config)
    tables: dict[str, RawTable] = {}
    parts = None
    bad = 0
    for suffix in [s for s in found if s not in PARTS]:
        tables[suffix], _, skipped = _table(config, suffix, _read_all(found[suffix], config))
        bad += skipped if suffix == "inter" else 0
    if "train" in found:
        every = _read_all([path for part in PARTS for path in found[part]], config)
        owner = np.repeat(np.arange(3), [len(found[part]) for part in PARTS])
        tables["inter"], piece_of_row, bad = _table(config, "inter", every)
        parts = owner[piece_of_row]
    left_out = {"data.bad_rows": bad} if bad else {}
    return Raw(tables.pop("inter"), tables, parts, left_out)


def _read_all(paths: list[Path], config: DataSection) -> list[Piece]:
    return [_read(path, config) for path in paths]


def form_of(path: Path, config: DataSection) -> str:
    """data.format, or what the ending of a file says."""
    form = (
        config.format if config.format in FORMATS.values() else FORMATS.get(plain_name(path).suffix)
    )
    if form is None:
        raise ValueError(
            f"{path} does not say what it is; set data.format to csv, parquet, arrow or jsonl"
        )
    return form


def _read(path: Path, config: DataSection) -> Piece:
    """One file as a frame."""
    form = form_of(path, config)
    if form == "csv":
        frame, lines, skipped = read_csv(path, config)
        return Piece(path, frame, lines, 2, "line", skipped)
    if form == "jsonl":
        frame, lines, skipped = read_lines(path, config)
        return Piece(path, frame, lines, 1, "line", skipped)
    return Piece(path, read_columnar(path, form))


def read_frame(path: Path, config: DataSection) -> pl.DataFrame:
    """The rows of one file; of an atomic one, whose header has types, without them."""
    if plain_name(path).suffix == ".inter":
        found, _, _ = read_csv(path, config)
        return found.rename({name: name.rpartition(":")[0] or name for name in found.columns})
    return _read(path, config).frame


def columns_of(path: Path, config: DataSection) -> list[str]:
    """The names of a file's columns, by its first line or its schema."""
    import polars as pl

    form = form_of(path, config)
    if form == "csv":
        return header_of(path, config)
    try:
        if form == "parquet":
            check_counts(path)
            return list(pl.read_parquet_schema(path))
        if form == "arrow":
            return read_columnar(path, form).columns
        with open_text(path) as source:
            first = json.loads(source.readline(LONGEST_LINE))
        return list(first) if isinstance(first, dict) else []
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise ValueError(f"{path}: its columns cannot be read: {error}") from None


def read_columnar(path: Path, form: str) -> pl.DataFrame:
    """A Parquet or Arrow file."""
    import polars as pl

    name = {"parquet": "Parquet", "arrow": "Arrow"}[form]
    try:
        if form == "parquet":
            check_counts(path)
            return pl.read_parquet(path, hive_partitioning=False)
        data = path.read_bytes()
        return pl.read_ipc(data) if data.startswith(b"ARROW1") else pl.read_ipc_stream(data)
    except (pl.exceptions.PolarsError, OSError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as {name}: {error}") from None
    except pl.exceptions.PanicException as error:  # of the parser itself; no Exception
        raise ValueError(f"{path} is damaged: not readable as {name} ({error})") from None


def read_side(config: DataSection, suffix: str, paths: list[Path]) -> RawTable:
    """One table of files."""
    return _table(config, suffix, _read_all(paths, config))[0]


def _table(
    config: DataSection, suffix: str, pieces: list[Piece]
) -> tuple[RawTable, np.ndarray, int]:
    """One table of several files with the same columns; which file each row is of; bad rows."""
    names = pieces[0].frame.columns
    for piece in pieces[1:]:
        if set(piece.frame.columns) != set(names):
            odd = sorted(set(piece.frame.columns) ^ set(names))
            raise ValueError(
                f"{piece.path}: its columns are not those of {pieces[0].path} (they differ in "
                f"{', '.join(odd)}); files of one table have the same"
            )
    where = str(pieces[0].path) + (f" and {len(pieces) - 1} more" if len(pieces) > 1 else "")
    wanted = choose_columns(config, suffix, names, where)
    declared, required = declared_types(config, suffix)
    for name in declared:
        if name in required and name not in names:
            raise ValueError(
                f"{where} has no column {name!r}; it has {', '.join(names)}; name the columns in "
                f"data.fields, as in data.fields.user=NAME{did_you_mean(name, names)}"
            )
        if name in required and name not in wanted:
            raise ValueError(
                f"data.load leaves out {name!r} of {where}, which is needed; add it to "
                f"data.load.{suffix} or take it out of data.unload.{suffix}"
            )
    owner = np.repeat(np.arange(len(pieces)), [len(piece.frame) for piece in pieces])
    filled = required | (filled_numbers(config) if suffix == "inter" else set())
    reader = Columns(config, pieces, owner, filled)
    columns, types = {}, {}
    for name in wanted:
        types[name], columns[name] = reader.column(name, declared.get(name))
    keep = np.flatnonzero(~reader.bad)
    bad = 0
    for number, piece in enumerate(pieces):
        count = piece.skipped + int((reader.bad & (owner == number)).sum())
        if count:
            logger.warning("%s: %d bad rows are left out (data.bad_rows: skip)", piece.path, count)
        bad += count
    if len(keep) == 0:
        why = "it is empty: fill or remove the file"
        if bad:
            why = f"all {bad} are bad, and data.bad_rows is skip: data.bad_rows=error says why"
        raise ValueError(f"{where} holds no rows that can be read; {why}")
    table = RawTable(where, types, {n: join([columns[n]], types[n]) for n in wanted})
    if len(keep) < len(owner):
        table, owner = table.take(keep), owner[keep]
    return table, owner, bad
