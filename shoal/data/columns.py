"""Rows of sources become columns: filtered, numbered and written, in memory or in a folder.

1. Rows come in pieces; users, items and other words become codes by first appearance.
2. Filters choose rows, pass by pass.
3. What stays is numbered by first appearance and written behind the columns that are there.
4. Side tables are numbered after that and aligned with the ids (sides.py).

A run that reads its files into memory gives everything in one piece; `shoal prepare` gives pieces
of bounded size, and keeps what it works on in a folder. A manifest says what the columns are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shoal.config.data_section import CellOptions, FilterSection
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.column_meaning import holds_times
from shoal.data.column_store import (
    EVERYTHING,
    Memory,
    Place,
    Stored,
    append_to,
    kept_values,
    map_array,
)
from shoal.data.dataset import Column, FieldType, Ragged
from shoal.data.filters import filter_sides, kept_rows, without_uncounted
from shoal.data.manifest import ColumnEntry, Manifest, TableEntry
from shoal.data.raw_columns import RawColumn, RawTable
from shoal.data.sides import (
    SIDES,
    mean_of,
    number_sides,
    with_row,
    write_extra,
    write_side,
)
from shoal.data.vocabulary import append_words, known_words, number, number_kept


@dataclass
class SourceRows:
    """What a source gives: interactions in pieces, and the side tables by suffix.

    where: names the interactions in messages; cells: how cells of interactions were read.
    """

    types: dict[str, FieldType]
    pieces: Iterable[Mapping[str, RawColumn]]
    sides: Mapping[str, RawTable]
    where: str
    cells: Mapping[str, CellOptions] = field(default_factory=dict)


@dataclass
class CodedRows:
    """All rows of a source before filters, with codes in place of words.

    columns: name -> its codes or numbers. words: column of words -> word -> code. num_stored:
    column of words -> how many of these words the folder had before, whose codes are their ids.
    """

    columns: dict[str, Column]
    words: dict[str, dict[str, int]]
    num_stored: dict[str, int]


def add_rows(
    rows: SourceRows,
    config: DataSection,
    place: Place,
    manifest: Manifest,
    ids_as: str,
    scratch: Place | None = None,
    memory: int = EVERYTHING,
) -> tuple[Manifest, np.ndarray | None]:
    """Append rows to the columns in `place`.

    Returns the manifest that will name the columns, and which rows were kept (None: all).
    manifest: of the columns that are there; their entries are continued.

    ids_as: the type of ids. scratch: where columns of codes are kept meanwhile; a folder where
    memory is bounded.
    """
    scratch = Memory() if scratch is None else scratch
    _check_types(rows, config)
    tables = filter_sides(rows.sides, config) if rows.sides else {}
    coded = _code_rows(rows, place, manifest, scratch)
    keep, left_out = _choose_rows(rows, coded, tables, config, place, manifest, scratch, memory)
    numbers, index = _number_words(coded, keep)
    columns = _append_columns(
        place, manifest, config, rows.types, coded.columns, keep, numbers, ids_as
    )
    del coded  # its memory is free before side tables are written
    sides, extra = _write_tables(tables, config, place, manifest, index, ids_as)
    cells = {name: options for t in rows.sides.values() for name, options in t.cells.items()}
    cells |= rows.cells
    new_manifest = replace(
        manifest,
        rows=len(columns[config.fields.user].values),
        columns=columns,
        words={
            name: append_words(place, manifest.words.get(name), str(position), ids)
            for position, (name, ids) in enumerate(index.items())
        },
        sides=sides,
        extra={**manifest.extra, **extra},
        cells={**cells, **(manifest.cells or {})},  # the first reading of a column stays
        left_out=dict(Counter(manifest.left_out) + Counter(left_out)),
    )
    return new_manifest, keep


def _code_rows(rows: SourceRows, place: Place, manifest: Manifest, scratch: Place) -> CodedRows:
    """Read all pieces of a source into columns of codes and numbers."""
    tokens = [name for name, kind in rows.types.items() if kind.startswith("token")]
    words = {name: known_words(place, manifest.words.get(name)) for name in tokens}
    num_stored = {name: len(codes) for name, codes in words.items()}
    return CodedRows(_coded(rows, words, scratch), words, num_stored)


def _choose_rows(
    rows: SourceRows,
    coded: CodedRows,
    tables: Mapping[str, RawTable],
    config: DataSection,
    place: Place,
    manifest: Manifest,
    scratch: Place,
    memory: int,
) -> tuple[np.ndarray | None, dict[str, int]]:
    """Which rows the filters keep (None: all), and by filter how many they leave out."""
    if config.filter == FilterSection() and not tables and not manifest.sides:
        return None, {}
    flat = {n: column for n, column in coded.columns.items() if isinstance(column, np.ndarray)}
    # Columns that a filter of values may name, but that are not filtered here.
    other_types: dict[str, FieldType] = {
        name: column.type
        for table in manifest.sides.values()
        for name, column in table.columns.items()
    }
    for suffix in SIDES:
        if suffix in tables:
            other_types |= tables[suffix].types
    other_types |= {name: kind for name, kind in rows.types.items() if name not in flat}
    return kept_rows(
        columns=flat,
        sizes={name: len(codes) for name, codes in coded.words.items()},
        config=config,
        of_sides=other_types,
        has_row=with_row(place, manifest.sides, tables, config, coded.words),
        memory=memory,
        scratch=scratch if isinstance(scratch, Path) else None,
    )


def _number_words(
    coded: CodedRows, keep: np.ndarray | None
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, int]]]:
    """Number the words of the rows that stay: (code -> id, word -> id) by column."""
    numbers: dict[str, np.ndarray] = {}
    index: dict[str, dict[str, int]] = {}
    for name, codes in coded.words.items():
        numbers[name], index[name] = number_kept(
            coded.columns[name], keep, coded.num_stored[name], codes
        )
    return numbers, index


def _write_tables(
    tables: Mapping[str, RawTable],
    config: DataSection,
    place: Place,
    manifest: Manifest,
    index: dict[str, dict[str, int]],
    ids_as: str,
) -> tuple[dict[str, TableEntry], dict[str, TableEntry]]:
    """Number and write the tables of users and items, and the other ones; their entries.

    index: word -> id by vocabulary; it learns the words that only these tables have.
    """
    if not (tables or manifest.sides or manifest.extra):
        return {}, {}
    tables = dict(tables)
    keys = {suffix: getattr(config.fields, suffix) for suffix in SIDES}
    for suffix, key in keys.items():
        if suffix in tables:
            tables[suffix] = without_uncounted(tables[suffix], suffix, config, index[key])
    for name, stored in manifest.words.items():  # vocabularies that only side tables have
        index.setdefault(name, known_words(place, stored))
    ids_by_table: dict[str, dict[str, np.ndarray]] = {suffix: {} for suffix in tables}
    for (suffix, name), ids in number_sides(tables, config, index).items():
        ids_by_table[suffix][name] = ids
    sides: dict[str, TableEntry] = {}
    for suffix in SIDES:
        entry, table, key = manifest.sides.get(suffix), tables.get(suffix), keys[suffix]
        if entry is not None or table is not None:
            sides[suffix] = write_side(
                place,
                prefix=f"side-{manifest.num_appends}-{suffix}",  # an append writes under new names
                entry=entry,
                table=table,
                ids=ids_by_table.get(suffix, {}),
                key=key,
                size=len(index[key]),
                dtype=ids_as,
            )
    extra = {
        suffix: write_extra(place, suffix, table, ids_by_table[suffix], config, ids_as)
        for suffix, table in tables.items()
        if suffix not in SIDES
    }
    return sides, extra


def _check_types(rows: SourceRows, config: DataSection) -> None:
    """Refuse a field of two types, and fields of the time and the label without numbers."""
    if config.fields.user == config.fields.item:
        raise ValueError(
            f"data.fields.user and data.fields.item are both {config.fields.user!r}; name two"
        )
    declared = {name: (kind, rows.where) for name, kind in rows.types.items()}
    for table in rows.sides.values():
        for name, kind in table.types.items():
            if declared.setdefault(name, (kind, table.where))[0] != kind:
                raise ValueError(
                    f"{name!r} has the type {declared[name][0]} in {declared[name][1]} and "
                    f"{kind} in {table.where}; give it one type, or two names"
                )
    for name in config.cells or {}:
        if name not in declared:
            raise ValueError(
                f"data.cells names {name!r}, and no column of that name is read; there are "
                f"{', '.join(declared)}{did_you_mean(name, declared)}"
            )
    for option, name in (("time", config.fields.time), ("label", config.fields.label)):
        field_type = rows.types.get(name)
        if field_type not in (None, "float"):
            raise ValueError(
                f"{rows.where}: the {option} field {name!r} has type {field_type}; write "
                f"{name}:float in the header, or name another field in data.fields.{option}"
            )
    if config.threshold:
        floats = [name for name, kind in rows.types.items() if kind == "float"]
        field = next(iter(config.threshold))
        if len(config.threshold) != 1 or field not in floats:
            raise ValueError(
                f"data.threshold: {config.threshold}; name one loaded float field of the "
                f"interactions ({', '.join(floats) or 'none is loaded'}) and the value at which "
                f"the label becomes 1{did_you_mean(field, floats)}"
            )
        if field == config.fields.time:
            raise ValueError("data.threshold: the time field cannot become the label")


class _Writer:
    """Appends to a column: its values and, for lists, where each ends (counted from 0)."""

    def __init__(self, place: Place, values: Stored, ends: Stored | None):
        self.place, self.at = place, len(values)
        self.values = append_to(place, values)
        self.ends = None if ends is None else append_to(place, ends)
        if self.ends is not None and not len(self.ends.stored):
            self.ends.write(np.zeros(1, np.int64))

    def write(self, values: np.ndarray, lengths: np.ndarray | None) -> None:
        """Append the values of further rows; lengths: of lists, how long each is."""
        self.values.write(values)
        if self.ends is not None:
            assert lengths is not None
            self.ends.write(self.at + np.cumsum(lengths))
            self.at += len(values)

    def close(self) -> None:
        """End the appending: every row is written."""
        for appender in (self.values, self.ends):
            if appender is not None:
                appender.close()

    def map(self) -> Column:
        """The column with all that was written, mapped."""
        values = map_array(self.place, self.values.stored)
        if self.ends is None:
            return values
        return Ragged(values, map_array(self.place, self.ends.stored))


def _coded(rows: SourceRows, words: dict[str, dict[str, int]], scratch: Place) -> dict[str, Column]:
    """Columns of codes and numbers of all pieces; new words are added to `words`."""
    writers = {
        name: _Writer(
            scratch,
            Stored(f"raw-{place}", "<i4" if name in words else "<f8"),
            Stored(f"raw-{place}-ends", "<i8") if kind.endswith("_seq") else None,
        )
        for place, (name, kind) in enumerate(rows.types.items())
    }
    for piece in rows.pieces:
        for name, column in piece.items():
            values = number(words[name], column, name) if name in words else column.values
            lengths = None if column.offsets is None else np.diff(column.offsets)
            writers[name].write(values, lengths)
    for writer in writers.values():
        writer.close()
    columns = {name: writer.map() for name, writer in writers.items()}
    if not len(next(iter(columns.values()))):
        raise ValueError(f"{rows.where} holds no rows after its header; name files with rows")
    return columns


def _append_columns(
    place: Place,
    manifest: Manifest,
    config: DataSection,
    types: Mapping[str, FieldType],
    raw: Mapping[str, Column],
    keep: np.ndarray | None,
    numbers: Mapping[str, np.ndarray],
    ids_as: str,
) -> dict[str, ColumnEntry]:
    """Append the rows that stay to the columns of the folder; the entries of all columns.

    The field of data.threshold becomes the label: left among the features it would give it away.
    """
    columns, fields, threshold = dict(manifest.columns), config.fields, config.threshold or {}
    order = [name for name in types if name not in threshold]
    if threshold:
        order = [*(name for name in order if name != fields.label), *threshold]
    for number_, name in enumerate(order):
        kind = types[name]
        target = fields.label if name in threshold else name
        entry = columns.get(target)
        dtype = ids_as if name in numbers else _number_type(name, raw[name], fields.time)
        if entry is None:
            ends = Stored(f"column-{number_}-ends.bin", "<i8") if kind.endswith("_seq") else None
            entry = ColumnEntry(kind, Stored(f"column-{number_}.bin", dtype), ends)
        writer, missing = _Writer(place, entry.values, entry.offsets), entry.missing
        for values, lengths in kept_values(raw[name], keep):
            if lengths is not None:
                missing += int((lengths == 0).sum())
            if name in numbers:
                values = numbers[name][values]
                missing += int((values == 0).sum()) if lengths is None else 0
            elif name in threshold:
                values = values >= threshold[name]
            elif lengths is None:
                missing += int(np.isnan(values).sum())
            writer.write(values, lengths)
        writer.close()
        columns[target] = replace(entry, missing=missing)
        if kind == "float" and name not in threshold and missing:
            columns[target].mean = mean_of(map_array(place, entry.values))
    return columns


def _number_type(name: str, column: Column, time: str) -> str:
    """How numbers are stored: times in 64 bits, since 32 tell them apart by two minutes only."""
    exact = name == time or (isinstance(column, np.ndarray) and holds_times(name, column))
    return "<f8" if exact else "<f4"
