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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import Column, FieldType, Ragged
from shoal.data.filters import filter_sides, kept_rows, without_uncounted
from shoal.data.passes import EVERYTHING, kept_values
from shoal.data.raw import RawColumn, RawTable
from shoal.data.sides import (
    ENTITIES,
    SIDES,
    mean_of,
    number_sides,
    vocabulary_of,
    with_row,
    write_extra,
    write_side,
)
from shoal.data.store import Memory, Place, Stored, append_to, map_array
from shoal.data.vocabulary import append_words, known_words, number, number_kept

Manifest = dict[str, Any]


@dataclass
class SourceRows:
    """What a source gives: interactions in pieces, and the side tables by suffix.

    where: names the interactions in messages.
    """

    types: dict[str, FieldType]
    pieces: Iterable[Mapping[str, RawColumn]]
    sides: Mapping[str, RawTable]
    where: str


def add_rows(
    rows: SourceRows,
    config: DataSection,
    place: Place,
    manifest: Manifest,
    ids_as: str,
    scratch: Place | None = None,
    memory: int = EVERYTHING,
) -> tuple[Manifest, np.ndarray | None]:
    """Append rows to the columns in `place`; the manifest that will name them, and which were kept.

    ids_as: the type of ids. scratch: where columns of codes are kept meanwhile; a folder where
    memory is bounded.
    """
    scratch = Memory() if scratch is None else scratch
    empty: Manifest = {"columns": {}, "words": {}, "sides": {}, "extra": {}, "left_out": {}}
    manifest = {**empty, **manifest}
    _check_types(rows, config)
    tables = filter_sides(rows.sides, config)
    tokens = [name for name, kind in rows.types.items() if kind.startswith("token")]
    words = {name: known_words(place, manifest["words"].get(name)) for name in tokens}
    held = {name: len(index) for name, index in words.items()}
    raw = _coded(rows, words, scratch)
    flat = {name: column for name, column in raw.items() if isinstance(column, np.ndarray)}
    others = {
        name: one["type"] for e in manifest["sides"].values() for name, one in e["columns"].items()
    }
    others |= {name: kind for s in SIDES if s in tables for name, kind in tables[s].types.items()}
    others |= {name: kind for name, kind in rows.types.items() if name not in flat}
    has_row = with_row(place, manifest["sides"], tables, config, words)
    sizes = {name: len(index) for name, index in words.items()}
    folder = scratch if isinstance(scratch, Path) else None
    keep, left_out = kept_rows(flat, sizes, config, others, has_row, memory, folder)
    numbers, index = {}, {}
    for name in tokens:
        numbers[name], index[name] = number_kept(raw[name], keep, held[name], words[name])
    columns = _append_columns(place, manifest, config, rows.types, raw, keep, numbers, ids_as)
    del raw, flat
    keys = {suffix: getattr(config.fields, suffix) for suffix in SIDES}
    for suffix, key in keys.items():
        if suffix in tables:
            tables[suffix] = without_uncounted(tables[suffix], suffix, config, index[key])
    for name in manifest["words"]:  # of side tables alone
        index.setdefault(name, known_words(place, manifest["words"][name]))
    side_ids = number_sides(tables, config, index)
    of = {suffix: {n: one for (s, n), one in side_ids.items() if s == suffix} for suffix in tables}
    sides, prefix = {}, f"side-{len(manifest.get('commands', []))}"
    for suffix in SIDES:
        entry, table, key = manifest["sides"].get(suffix), tables.get(suffix), keys[suffix]
        if entry is not None or table is not None:
            named = (place, f"{prefix}-{suffix}", entry, table)
            sides[suffix] = write_side(*named, of.get(suffix, {}), key, len(index[key]), ids_as)
    extra = {
        suffix: write_extra(place, suffix, table, of[suffix], config, ids_as)
        for suffix, table in tables.items()
        if suffix not in SIDES
    }
    entries = manifest["words"]
    made = {
        **manifest,
        "rows": len(Stored.of(columns[config.fields.user]["values"])),
        "columns": columns,
        "words": {
            name: append_words(place, entries.get(name), str(number_), known)
            for number_, (name, known) in enumerate(index.items())
        },
        "sides": sides,
        "extra": {**manifest["extra"], **extra},
        "left_out": dict(Counter(manifest["left_out"]) + Counter(left_out)),
    }
    return made, keep


def _check_types(rows: SourceRows, config: DataSection) -> None:
    """A field has one type in all files, and the time and label fields hold numbers."""
    if config.fields.user == config.fields.item:
        raise ValueError(
            f"data.fields.user and data.fields.item are both {config.fields.user!r}; name two"
        )
    seen = {name: (kind, rows.where) for name, kind in rows.types.items()}
    for table in rows.sides.values():
        for name, kind in table.types.items():
            if seen.setdefault(name, (kind, table.where))[0] != kind:
                raise ValueError(
                    f"{name!r} has the type {seen[name][0]} in {seen[name][1]} and {kind} in "
                    f"{table.where}; give it one type, or two names"
                )
    for option, name in (("time", config.fields.time), ("label", config.fields.label)):
        given = rows.types.get(name)
        if given not in (None, "float"):
            raise ValueError(
                f"{rows.where}: the {option} field {name!r} has type {given}; write "
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
    """Appends to a column: its values, and of lists where each ends (from 0 on)."""

    def __init__(self, place: Place, values: Stored, ends: Stored | None):
        self.place, self.at = place, len(values)
        self.values = append_to(place, values)
        self.ends = None if ends is None else append_to(place, ends)
        if self.ends is not None and not len(self.ends.stored):
            self.ends.write(np.zeros(1, np.int64))

    def write(self, values: np.ndarray, lengths: np.ndarray | None) -> None:
        """Some rows more."""
        self.values.write(values)
        if self.ends is not None:
            assert lengths is not None
            self.ends.write(self.at + np.cumsum(lengths))
            self.at += len(values)

    def close(self) -> None:
        """All is written."""
        for one in (self.values, self.ends):
            if one is not None:
                one.close()

    def map(self) -> Column:
        """The column."""
        values = map_array(self.place, self.values.stored)
        if self.ends is None:
            return values
        return Ragged(values, map_array(self.place, self.ends.stored))


def _coded(rows: SourceRows, words: dict[str, dict[str, int]], scratch: Place) -> dict[str, Column]:
    """Columns of codes and numbers of all pieces; `words` learns the new ones."""
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
    found = {name: writer.map() for name, writer in writers.items()}
    if not len(next(iter(found.values()))):
        raise ValueError(f"{rows.where} holds no rows after its header; name files with rows")
    return found


def _append_columns(
    place: Place,
    manifest: Manifest,
    config: DataSection,
    types: Mapping[str, FieldType],
    raw: Mapping[str, Column],
    keep: np.ndarray | None,
    numbers: Mapping[str, np.ndarray],
    ids_as: str,
) -> dict[str, Any]:
    """Write the rows that stay behind those of the columns that are there; the entries of all.

    The field of data.threshold becomes the label: left among the features it would give it away.
    """
    columns, fields, threshold = dict(manifest["columns"]), config.fields, config.threshold or {}
    order = [name for name in types if name not in threshold]
    if threshold:
        order = [*(name for name in order if name != fields.label), *threshold]
    for number_, name in enumerate(order):
        kind = types[name]
        target = fields.label if name in threshold else name
        entry = columns.get(target)
        dtype = ids_as if name in numbers else "<f8" if name == fields.time else "<f4"
        ends = Stored(f"column-{number_}-ends.bin", "<i8") if kind.endswith("_seq") else None
        if entry is None:
            stored = Stored(f"column-{number_}.bin", dtype)
        else:
            stored = Stored.of(entry["values"])
            ends = Stored.of(entry["offsets"]) if ends is not None else None
        writer, missing = _Writer(place, stored, ends), (entry or {}).get("missing", 0)
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
        columns[target] = {"type": kind, "values": stored.entry(), "missing": missing}
        if kind == "float" and name not in threshold and missing:
            columns[target]["mean"] = mean_of(map_array(place, stored))
        if ends is not None:
            columns[target]["offsets"] = ends.entry()
    return columns


def vocabularies(manifest: Manifest) -> dict[str, str]:
    """Field of words -> the field whose vocabulary it has."""
    user = manifest["options"]["fields"]["user"]
    found = {
        name: vocabulary_of(suffix, name, user)
        for suffix, entry in {"inter": manifest, **manifest["sides"], **manifest["extra"]}.items()
        for name, one in entry["columns"].items()
        if one["type"].startswith("token")
    }
    return {name: name for name in manifest["words"] if name not in ENTITIES} | found
