"""Side tables of a prepared folder: what is known of users and items, aligned with their ids.

Row i of every column belongs to id i, as in a data set that is read without preparation. `known`
says which ids have a row; `given`, of columns of numbers, which of them were not filled with the
mean. Side files are read whole. An append writes the columns anew, under other names: ids that have
a row keep it, new rows count for ids that had none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.intervals import parse_intervals
from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.dataset import Column, Columns, FieldType, Ragged
from shoal.data.filters import first_rows, holds_everything, within
from shoal.data.packed import plain_name
from shoal.data.prepared.files import Stored, map_array, write_array
from shoal.data.raw import RawTable, gather
from shoal.data.sources import atomic, tables
from shoal.data.sources.files import find_files
from shoal.data.vocabulary import extend

SUFFIXES = ("user", "item")
Entry = dict[str, Any]


def side_files(config: DataSection) -> dict[str, list[Path]]:
    """Those that data.files names."""
    said = config.files or {}
    other = [suffix for suffix in said if suffix not in SUFFIXES]
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
        if suffix in SUFFIXES:
            found.setdefault(suffix, []).append(path)
        else:
            inter.append(path)
    return inter, found


def read_sides(found: dict[str, list[Path]], config: DataSection) -> dict[str, RawTable]:
    """The tables of side files: a row for each id, those that data.filter.values keeps."""
    result = {}
    for suffix, paths in found.items():
        if plain_name(paths[0]).suffix == f".{suffix}":
            table, _ = atomic.read_table(config, suffix, paths)
        else:
            table = tables.read_side(config, suffix, paths)
        table = first_rows(table, getattr(config.fields, suffix))
        for name, text in config.filter.values.items():
            if table.types.get(name) == "float":
                inside = within(table.columns[name].values, parse_intervals(text))
                if not inside.any():
                    raise ValueError(
                        f"data.filter.values.{name} leaves no row of {table.where}; loosen or "
                        "remove it"
                    )
                table = table.take(np.flatnonzero(inside))
        result[suffix] = table
    return result


def rows_of_words(
    folder: Path,
    entries: dict[str, Entry],
    sides: dict[str, RawTable],
    config: DataSection,
    words: dict[str, dict[str, int]],
) -> dict[str, np.ndarray]:
    """Field -> which of its words (by code) have a row; no field where there is no side table."""
    return {
        field: _has_row(folder, entries.get(suffix), sides.get(suffix), field, words[field])
        for suffix in {**entries, **sides}
        if (field := getattr(config.fields, suffix))
    }


def _has_row(
    folder: Path, entry: Entry | None, table: RawTable | None, field: str, index: dict[str, int]
) -> np.ndarray:
    """Which words have a row, in the folder or among the new ones: bool by code."""
    found = np.zeros(len(index), dtype=bool)
    if entry is not None:
        known = map_array(folder, Stored.of(entry["known"]))
        found[: len(known)] = known > 0  # codes of words that a folder has are their ids
    if table is not None:
        column = table.columns[field]
        assert column.words is not None
        codes = (index.get(word) for word in column.words[column.values].tolist())
        found[[code for code in codes if code is not None]] = True
    return found


def without_uncounted(
    table: RawTable, suffix: str, config: DataSection, ids: dict[str, int]
) -> RawTable:
    """Rows of ids that the numbers of interactions leave; those without any, if 0 is allowed."""
    text = getattr(config.filter, f"{suffix}_inter_num")
    intervals = parse_intervals(text)
    if holds_everything(intervals) or within(np.array([0]), intervals)[0]:
        return table
    column = table.columns[getattr(config.fields, suffix)]
    assert column.words is not None
    stays = np.fromiter((word in ids for word in column.words), bool, len(column.words))
    return table.take(np.flatnonzero(stays[column.values]))


def number_sides(
    sides: dict[str, RawTable], config: DataSection, index: dict[str, dict[str, int]]
) -> dict[tuple[str, str], np.ndarray]:
    """(whose, column) -> ids. `index`, word -> id by field, learns the new ones.

    A field has one vocabulary in all files; a file of users never adds an item.
    """
    own = {getattr(config.fields, suffix): suffix for suffix in SUFFIXES}
    ids = {}
    for suffix in SUFFIXES:
        for name, column in sides[suffix].columns.items() if suffix in sides else ():
            if column.words is not None:
                words = index.setdefault(name, {})
                (ids[suffix, name],) = extend(
                    words, [column], [own.get(name, suffix) == suffix], name
                )
    return ids


def write_side(
    folder: Path,
    prefix: str,
    entry: Entry | None,
    table: RawTable | None,
    ids: dict[str, np.ndarray],
    key: str,
    size: int,
) -> Entry:
    """Columns of `size` ids, of those that the folder has and of a table; their entry."""
    held = 0
    rows = np.full(size, -1, dtype=np.int64)  # of what was there, with the table's behind it
    old: dict[str, Column] = {}
    types: dict[str, FieldType] = {}
    if entry is not None:
        types = {name: one["type"] for name, one in entry["columns"].items()}
        old = {name: _as_given(folder, one) for name, one in entry["columns"].items()}
        held = len(Stored.of(entry["known"]))
    if table is not None:
        there, types = types, {name: kind for name, kind in table.types.items() if name != key}
        if entry is not None and types != there:
            raise ValueError(
                f"{table.where} has the columns {inline(dict(types))}, and the prepared folder has "
                f"{inline(dict(there))}; append side files of the same columns"
            )
        rows[ids[key]] = held + np.arange(len(table))
    if entry is not None:
        has = np.flatnonzero(map_array(folder, Stored.of(entry["known"])))
        rows[has] = has
    rows[0] = -1
    columns = {}
    for place, (name, kind) in enumerate(types.items()):
        parts = [old[name]] if name in old else []
        if table is not None:
            raw = table.columns[name]
            values = raw.values.astype(np.float32) if raw.words is None else ids[name]
            parts.append(values if raw.offsets is None else Ragged(values, raw.offsets))
        column = _gathered(parts, rows, np.nan if kind == "float" else 0)
        columns[name] = _write_column(folder, f"{prefix}-{place}", column, kind, rows >= 0)
    known = write_array(folder, f"{prefix}-known.bin", (rows >= 0).astype(np.uint8), "|u1")
    return {"known": known.entry(), "columns": columns}


def _gathered(parts: list[Column], rows: np.ndarray, empty: float) -> Column:
    """Rows of columns that lie one behind the other."""
    if not isinstance(parts[0], Ragged):
        flat = [part for part in parts if isinstance(part, np.ndarray)]
        return gather(np.concatenate(flat), None, rows, empty)[0]
    lists = [part for part in parts if isinstance(part, Ragged)]
    lengths = np.concatenate([np.diff(one.offsets) for one in lists])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values, ends = gather(np.concatenate([one.values for one in lists]), offsets, rows, empty)
    assert ends is not None
    return Ragged(values, ends)


def _write_column(
    folder: Path, name: str, column: Column, kind: FieldType, known: np.ndarray
) -> Entry:
    dtype = "<i4" if kind.startswith("token") else "<f4"
    entry: Entry = {"type": kind}
    if isinstance(column, Ragged):
        missing = np.diff(column.offsets) == 0
        entry["offsets"] = write_array(folder, f"{name}-ends.bin", column.offsets, "<i8").entry()
        values = column.values
    else:
        values = column
        missing = np.isnan(values) if kind == "float" else values == 0
        if kind == "float":
            given = ~missing
            fill = values[given].mean(dtype=np.float64) if given.any() else 0.0
            values = np.where(given, values, fill).astype(np.float32)
            values[0] = 0.0
            stored = write_array(folder, f"{name}-given.bin", given.astype(np.uint8), "|u1")
            entry["given"] = stored.entry()
    entry["values"] = write_array(folder, f"{name}.bin", values, dtype).entry()
    entry["missing"] = int((missing & known).sum())
    return entry


def map_column(folder: Path, entry: Entry) -> Column:
    """A mapped column, of one value or one list in every row."""
    values = map_array(folder, Stored.of(entry["values"]))
    if "offsets" not in entry:
        return values
    return Ragged(values, map_array(folder, Stored.of(entry["offsets"])))


def _as_given(folder: Path, entry: Entry) -> Column:
    """A column as it was before numbers were filled."""
    column = map_column(folder, entry)
    if "given" in entry and isinstance(column, np.ndarray):
        given = map_array(folder, Stored.of(entry["given"]))
        return np.where(given > 0, column, np.float32(np.nan))
    return column


def map_side(folder: Path, entry: Entry | None, fills: dict[str, float]) -> Columns:
    """The columns of a side; fills: column -> what an empty number is, where a config says so."""
    found: Columns = {}
    for name, one in (entry or {"columns": {}})["columns"].items():
        column = map_column(folder, one)
        if name in fills and "given" in one:
            given = map_array(folder, Stored.of(one["given"]))
            column = np.where(given > 0, column, np.float32(fills[name]))  # type: ignore[arg-type]
            column[0] = 0.0
        found[name] = column
    return found
