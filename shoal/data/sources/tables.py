"""Tables as people have them: csv, Parquet, Arrow, JSON lines; any number of files for each.

Names and types of columns come from the files and the config: what is declared is checked, the rest
is guessed. What is wrong is told with the file and the line, or left out and counted
(data.bad_rows: skip).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.packed import plain_name
from shoal.data.parquet_counts import check_counts
from shoal.data.raw import Raw, RawTable, choose_columns
from shoal.data.sources.delimited import LARGEST, ParsedColumn, join
from shoal.data.sources.files import find_files
from shoal.data.sources.text import read_csv, read_lines

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
MIXED = 0.9  # share of numbers from which other text in a column is taken for a mistake
TYPE_OF: dict[str, FieldType] = {
    "id": "token",
    "text": "token",
    "ids": "token_seq",
    "sequence": "token_seq",
    "number": "float",
    "numbers": "float_seq",
}
IS_ID = re.compile(r"(^|_)ids?$|[a-z]Id$", re.IGNORECASE)


@dataclass
class Piece:
    """The rows of one file; row k is line lines[k], or k + first where all lines are rows."""

    path: Path
    frame: pl.DataFrame
    lines: np.ndarray | None = None
    first: int = 1
    unit: str = "row"

    def where(self, row: int) -> str:
        number = row + self.first if self.lines is None else int(self.lines[row])
        return f"{self.path}, {self.unit} {number}"


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
    for suffix in [s for s in found if s not in PARTS]:
        tables[suffix] = read_side(config, suffix, found[suffix])
    if "train" in found:
        every = [_read(path, config) for part in PARTS for path in found[part]]
        owner = np.repeat(np.arange(3), [len(found[part]) for part in PARTS])
        tables["inter"], piece_of_row = _table(config, "inter", every)
        parts = owner[piece_of_row]
    return Raw(tables.pop("inter"), tables, parts)


def _read(path: Path, config: DataSection) -> Piece:
    """One file as a frame."""
    form = (
        config.format if config.format in FORMATS.values() else FORMATS.get(plain_name(path).suffix)
    )
    if form is None:
        raise ValueError(
            f"{path} does not say what it is; set data.format to csv, parquet, arrow or jsonl"
        )
    if form == "csv":
        frame, lines, skipped = read_csv(path, config)
        _report(path, skipped)
        return Piece(path, frame, lines, 2, "line")
    if form == "jsonl":
        frame, lines, skipped = read_lines(path, config)
        _report(path, skipped)
        return Piece(path, frame, lines, 1, "line")
    return Piece(path, read_columnar(path, form))


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


def _report(path: Path, skipped: int) -> None:
    if skipped:
        logger.warning("%s: %d bad rows are left out (data.bad_rows: skip)", path, skipped)


def read_side(config: DataSection, suffix: str, paths: list[Path]) -> RawTable:
    """One table of files."""
    return _table(config, suffix, [_read(path, config) for path in paths])[0]


def _table(config: DataSection, suffix: str, pieces: list[Piece]) -> tuple[RawTable, np.ndarray]:
    """One table of several files with the same columns; and which file each row is of."""
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
    reader = _Columns(config, pieces, owner, filled)
    columns, types = {}, {}
    for name in wanted:
        types[name], columns[name] = reader.column(name, declared.get(name))
    keep = np.flatnonzero(~reader.bad)
    if len(keep) == 0:
        raise ValueError(f"{where} holds no rows; fill or remove the file")
    table = RawTable(where, types, {n: join([columns[n]], types[n]) for n in wanted})
    if len(keep) < len(owner):
        for number, piece in enumerate(pieces):
            _report(piece.path, int((reader.bad & (owner == number)).sum()))
        table, owner = table.take(keep), owner[keep]
    return table, owner


def declared_types(config: DataSection, suffix: str) -> tuple[dict[str, FieldType], set[str]]:
    """Column -> type, of those that the config says something of; and those that must be filled."""
    fields = config.fields
    types: dict[str, FieldType] = {}
    for name, said in (config.features or {}).items():
        if "kind" in said:
            types[said.get("column", name)] = TYPE_OF[said["kind"]]
            types |= {said[key]: "float_seq" for key in ("weights", "time") if key in said}
    ids = {"user": [fields.user], "item": [fields.item]}.get(suffix, [])
    required = set(ids)
    if suffix == "inter":
        ids = [fields.user, fields.item]
        types |= dict.fromkeys(filled_numbers(config), "float")
        required = {*ids}
    types |= dict.fromkeys(ids, "token")
    if suffix in ("kg", "link", "net"):
        types |= dict.fromkeys(["head_id", "relation_id", "tail_id", "entity_id"], "token")
        types |= dict.fromkeys(["source", "target", "source_id", "target_id"], "token")
    return types, required


def filled_numbers(config: DataSection) -> set[str]:
    """Columns of interactions in which an empty cell is a mistake, never an invented value."""
    fields = config.fields
    labels = [said.get("column", name) for name, said in (config.labels or {}).items()]
    weight = [] if config.sample_weight is None else [config.sample_weight]
    return {fields.time, fields.rating, fields.label, *labels, *weight}


def guess_type(name: str, series: pl.Series) -> FieldType:
    """What a column looks like: numbers, unless its name ends in id; text and lists of it, ids."""
    import polars as pl

    dtype = series.dtype
    if isinstance(dtype, pl.List | pl.Array):
        return "float_seq" if dtype.inner.is_float() else "token_seq"
    if isinstance(dtype, pl.Enum | pl.Categorical):
        return "token"
    if dtype == pl.String:
        given = series.drop_nulls()
        given = given.filter(given != "")
        found = given.str.strip_chars().cast(pl.Float64, strict=False).count()
        numbers = found > 0 and found >= MIXED * len(given)
        return "float" if numbers and not IS_ID.search(name) else "token"
    return "token" if dtype.is_integer() and IS_ID.search(name) else "float"


class _Columns:
    """Columns of several files as one, checked; `bad` rows are left out where that is allowed."""

    def __init__(
        self, config: DataSection, pieces: list[Piece], owner: np.ndarray, filled: set[str]
    ):
        self.config, self.pieces, self.owner, self.filled = config, pieces, owner, filled
        self.first = np.searchsorted(owner, np.arange(len(pieces)))
        self.bad = np.zeros(len(owner), dtype=bool)

    def column(self, name: str, type_: FieldType | None) -> tuple[FieldType, ParsedColumn]:
        """Its type, declared or guessed, and its values."""
        import polars as pl

        parts = [piece.frame[name] for piece in self.pieces]
        try:
            series = pl.concat(parts, how="vertical")
        except pl.exceptions.PolarsError:
            kinds = ", ".join(f"{part.dtype} in {p.path}" for part, p in zip(parts, self.pieces))
            raise ValueError(f"column {name!r} has mixed types: {kinds}; give it one") from None
        if isinstance(series.dtype, pl.Array):
            series = series.arr.to_list()
        guessed = type_ or self._guess(name, series)
        if guessed.endswith("_seq"):
            return guessed, self._lists(name, series, guessed)
        if isinstance(series.dtype, pl.List):
            raise ValueError(
                f"{self.pieces[0].path}: column {name!r} holds lists, and one value is wanted; "
                f"declare it with data.features.{name}.kind: ids"
            )
        if guessed == "token":
            values = _words(name, series, self.pieces[0].path)
            if name in self.filled:
                self._drop(name, values, values.is_null().to_numpy(), "is empty")
                values = values.fill_null("")
            return guessed, ParsedColumn(values)
        return guessed, ParsedColumn(self._numbers(name, series))

    def _guess(self, name: str, series: pl.Series) -> FieldType:
        import polars as pl

        guessed = guess_type(name, series)
        if series.dtype == pl.String and guessed == "float":
            text = series.str.strip_chars().cast(pl.Float64, strict=False)
            odd = series.is_not_null() & (series != "") & text.is_null()
            if odd.any():
                row = int(odd.arg_max() or 0)
                raise ValueError(
                    f"{self._where(row)}: column {name!r} has mixed types: {series[row]!r} among "
                    f"numbers; correct it, or say what it is with data.features.{name}.kind "
                    "(id or number)"
                )
        return guessed

    def _numbers(self, name: str, series: pl.Series) -> pl.Series:
        """Float64; dates are seconds since 1970."""
        import polars as pl

        text = series
        if series.dtype.is_temporal() and series.dtype not in (pl.Duration, pl.Time):
            numbers = series.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 1e6
        elif series.dtype == pl.String:
            text = series.str.strip_chars()
            text = text.set(text == "", None)
            numbers = text.cast(pl.Float64, strict=False)
            if name == self.config.fields.time and numbers.count() == 0 and text.count():
                numbers = text.str.to_datetime(strict=False, time_unit="us").cast(pl.Int64) / 1e6
        elif series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
            numbers = series.cast(pl.Float64).fill_nan(None)
            text = numbers if series.dtype.is_float() else series
        else:
            raise ValueError(
                f"{self.pieces[0].path}: column {name!r} is {series.dtype}, not numbers; "
                f"declare it with data.features.{name}.kind: id"
            )
        odd = text.is_not_null() & ~(numbers.abs() <= LARGEST).fill_null(False)
        self._drop(name, series, odd.to_numpy(), "is not a number that fits 32 bits")
        if name in self.filled:
            self._drop(name, series, (text.is_null() & ~odd).to_numpy(), "is empty")
        return numbers.set(odd, None) if odd.any() else numbers

    def _lists(self, name: str, series: pl.Series, type_: FieldType) -> ParsedColumn:
        import polars as pl

        if not isinstance(series.dtype, pl.List):
            text = series.cast(pl.String).fill_null("")
            series = text.str.split(self.config.seq_separator)
            series = series.list.eval(pl.element().filter(pl.element() != ""))
        series = series.list.drop_nulls()
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = series.filter(pl.Series(lengths > 0)).explode()
        if type_ == "token_seq":
            return ParsedColumn(_words(name, flat, self.pieces[0].path), offsets)
        numbers = flat.cast(pl.Float64, strict=False)
        odd = ~(numbers.abs() <= LARGEST).fill_null(False)
        if odd.any():
            row = int(np.searchsorted(offsets, int(odd.arg_max() or 0), side="right")) - 1
            raise ValueError(
                f"{self._where(row)}: {flat[int(odd.arg_max() or 0)]!r} in {name!r} is not a number"
            )
        return ParsedColumn(numbers, offsets)

    def _where(self, row: int) -> str:
        number = int(self.owner[row])
        return self.pieces[number].where(row - int(self.first[number]))

    def _drop(self, name: str, series: pl.Series, bad: np.ndarray, problem: str) -> None:
        """Rows that cannot be used: the first is told, or all are left out."""
        if not bad.any():
            return
        if self.config.bad_rows == "skip":
            self.bad |= bad
            return
        row = int(bad.argmax())
        shown = "" if problem == "is empty" else f"{series[row]!r} in "
        raise ValueError(
            f"{self._where(row)}: {shown}{name!r} {problem}; correct it, remove the row, or set "
            "data.bad_rows=skip to leave such rows out"
        )


def _words(name: str, series: pl.Series, path: Path) -> pl.Series:
    """Text; whole numbers as such, also where a column became float because cells are missing."""
    import polars as pl

    if series.dtype.is_float():
        filled = series.fill_nan(None)
        whole = filled.cast(pl.Int64, strict=False)
        if bool(((whole.cast(pl.Float64) == filled) | filled.is_null()).all()):
            return whole.cast(pl.String)
        return filled.cast(pl.String)
    if series.dtype == pl.Binary or series.dtype.is_nested():
        raise ValueError(f"{path}: column {name!r} is {series.dtype}; it cannot be ids")
    words = series.cast(pl.String)
    return words.set(words == "", None) if bool((words == "").any()) else words
