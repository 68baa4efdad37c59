"""Side tables: what is known of users and items, aligned with their ids; and other tables.

Row i of a column of users or items belongs to id i; row 0 is padding, and ids without a row are
empty. `known` says which ids have a row. Side files are read whole. An append writes the columns
anew, under other names: ids that have a row keep it, new rows count for ids that had none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.column_meaning import holds_times
from shoal.data.column_store import Place, Stored, map_array, write_array
from shoal.data.dataset import Column, Columns, FieldType, Ragged
from shoal.data.filters import SIDES
from shoal.data.manifest import NETWORK, ColumnEntry, TableEntry, vocabulary_of
from shoal.data.raw_columns import RawColumn, RawTable, gather
from shoal.data.vocabulary import number

logger = logging.getLogger(__name__)


def with_row(
    place: Place,
    entries: Mapping[str, TableEntry],
    sides: Mapping[str, RawTable],
    config: DataSection,
    words: Mapping[str, dict[str, int]],
) -> dict[str, np.ndarray]:
    """Field -> which of its words (by code) have a row; no field where there is no side table."""
    has_row = {}
    for suffix in SIDES:
        if suffix not in entries and suffix not in sides:
            continue
        field = getattr(config.fields, suffix)
        has = has_row[field] = np.zeros(len(words[field]), dtype=bool)
        if suffix in entries:  # codes of words that a folder has are their ids
            row_mask = map_array(place, _row_mask(entries[suffix]))
            has[: len(row_mask)] = row_mask > 0
        if suffix in sides:
            column = sides[suffix].columns[field]
            assert column.words is not None
            codes = (words[field].get(word) for word in column.words[column.values].tolist())
            has[[code for code in codes if code is not None]] = True
    return has_row


def _row_mask(entry: TableEntry) -> Stored:
    """Which ids of users or items have a row in their table."""
    if entry.has_row is None:
        raise KeyError("known")
    return entry.has_row


def number_sides(
    sides: Mapping[str, RawTable], config: DataSection, index: dict[str, dict[str, int]]
) -> dict[tuple[str, str], np.ndarray]:
    """(suffix, column) -> ids. `index`, word -> id by vocabulary, learns the new ones.

    Users, items and entities are one vocabulary each; every other field has its own. A file of
    users never adds an item, and files other than those of users and items add neither.
    """
    owner = {getattr(config.fields, suffix): suffix for suffix in SIDES}
    ids = {}
    for suffix in sorted(
        sides,
        key=lambda known_suffix: SIDES.index(known_suffix) if known_suffix in SIDES else len(SIDES),
    ):
        for name, column in sides[suffix].columns.items():
            if column.words is not None:
                group = vocabulary_of(suffix, name, config.fields.user)
                grows = owner.get(group, suffix) == suffix
                ids[suffix, name] = number(index.setdefault(group, {}), column, group, grows)
    return ids


def write_side(
    place: Place,
    prefix: str,
    entry: TableEntry | None,
    table: RawTable | None,
    ids: Mapping[str, np.ndarray],
    key: str,
    size: int,
    dtype: str,
) -> TableEntry:
    """Columns of `size` ids, of those that are there (`entry`) and of a table; their entry."""
    held = 0
    rows = np.full(size, -1, dtype=np.int64)  # of what was there, with the table's behind it
    old: Columns = {}
    types: dict[str, FieldType] = {}
    if entry is not None:
        types = {name: column.type for name, column in entry.columns.items()}
        old = {name: column.map(place) for name, column in entry.columns.items()}
        held = len(_row_mask(entry))
    if table is not None:
        folder_types, types = (
            types,
            {name: kind for name, kind in table.types.items() if name != key},
        )
        if entry is not None and types != folder_types:
            raise ValueError(
                f"{table.where} has the columns {inline(dict(types))}, and the prepared folder has "
                f"{inline(dict(folder_types))}; append side files of the same columns"
            )
        rows[ids[key]] = held + np.arange(len(table))
    if entry is not None:
        has = np.flatnonzero(map_array(place, _row_mask(entry)))
        rows[has] = has
    rows[0] = -1
    columns = {}
    for position, (name, kind) in enumerate(types.items()):
        parts = [old[name]] if name in old else []
        parts += [] if table is None else [_values(table, name, ids)]
        column = _gathered(parts, rows, np.nan if kind == "float" else 0)
        columns[name] = write_column(
            place, f"{prefix}-{position}", column, kind, dtype, filled_rows=rows >= 0
        )
    row_mask = write_array(place, f"{prefix}-known.bin", (rows >= 0).astype(np.uint8), "|u1")
    return TableEntry(columns, row_mask)


def write_extra(
    place: Place,
    suffix: str,
    table: RawTable,
    ids: Mapping[str, np.ndarray],
    config: DataSection,
    dtype: str,
) -> TableEntry:
    """Columns of another table, without the rows that name users or items that are not there."""
    is_kept = np.ones(len(table), dtype=bool)
    for name, column_ids in ids.items():
        belongs = name in (config.fields.user, config.fields.item) or name in NETWORK
        if belongs and table.columns[name].offsets is None:
            is_kept &= column_ids > 0
    rows = np.flatnonzero(is_kept)
    if len(rows) < len(table):
        logger.info(
            "%s: %d of %d rows name users or items that are not in the data; they are left out",
            table.where,
            len(table) - len(rows),
            len(table),
        )
    columns = {
        name: write_column(
            place,
            name=f"extra-{suffix}-{position}",
            column=_gathered([_values(table, name, ids)], rows, 0),
            kind=kind,
            dtype=dtype,
        )
        for position, (name, kind) in enumerate(table.types.items())
    }
    return TableEntry(columns)


def _values(table: RawTable, name: str, ids: Mapping[str, np.ndarray]) -> Column:
    raw = table.columns[name]
    values = ids[name] if raw.words is not None else _as_stored(name, raw)
    return values if raw.offsets is None else Ragged(values, raw.offsets)


def _as_stored(name: str, raw: RawColumn) -> np.ndarray:
    """Numbers in 32 bits; times in 64, since 32 tell them apart by two minutes only."""
    exact = raw.offsets is None and holds_times(name, raw.values)
    return raw.values if exact else raw.values.astype(np.float32)


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


def write_column(
    place: Place,
    name: str,
    column: Column,
    kind: FieldType,
    dtype: str,
    filled_rows: np.ndarray | None = None,
) -> ColumnEntry:
    """A whole column; dtype: of ids. filled_rows: rows that have values, where row 0 is padding."""
    offsets, mean = None, None
    if isinstance(column, Ragged):
        missing, values = np.diff(column.offsets) == 0, column.values
        offsets = write_array(place, f"{name}-ends.bin", column.offsets, "<i8")
    else:
        values = column
        missing = np.isnan(values) if kind == "float" else values == 0
    if kind == "float" and missing.any():
        mean = mean_of(values)
        if filled_rows is not None:
            values[0] = 0.0
    if not kind.startswith("token"):
        dtype = "<f8" if values.dtype == np.float64 else "<f4"
    stored = write_array(place, f"{name}.bin", values, dtype)
    num_missing = int((missing if filled_rows is None else missing & filled_rows).sum())
    return ColumnEntry(kind, stored, offsets, num_missing, mean)


def mean_of(values: np.ndarray) -> float:
    """The mean of numbers that are not empty; 0 where all are."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean(dtype=np.float64)) if len(numbers) else 0.0
