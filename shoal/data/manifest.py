"""The manifest: what columns a place has, as a document, checked, and as a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shoal.config.data_section import CellOptions
from shoal.config.schema import DataSection
from shoal.data.column_store import DamagedFolder, Place, Stored, map_array
from shoal.data.dataset import Column, Columns, FieldType, Ragged, counts_of
from shoal.data.split import decide_split
from shoal.data.vocabulary import StoredWords, Words

ENTITIES = ("head_id", "tail_id", "entity_id")  # of .kg and .link: one vocabulary
NETWORK = ("source", "target", "source_id", "target_id")  # of .net: users
CELLS = TypeAdapter(dict[str, CellOptions])


@dataclass
class ColumnEntry:
    """A column that is kept: its type, and the files of its values.

    offsets: of lists, where each ends. missing: how many cells were empty. mean: of the numbers,
    where some are empty.
    """

    type: FieldType
    values: Stored
    offsets: Stored | None = None
    missing: int = 0
    mean: float | None = None

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> ColumnEntry:
        """The column that an entry of the document names."""
        offsets = Stored.from_entry(entry["offsets"]) if "offsets" in entry else None
        values = Stored.from_entry(entry["values"])
        return cls(entry["type"], values, offsets, entry["missing"], entry.get("mean"))

    def entry(self) -> dict[str, Any]:
        """The entry of the document for this column."""
        entry: dict[str, Any] = {"type": self.type, "missing": self.missing}
        entry["values"] = self.values.entry()
        if self.offsets is not None:
            entry["offsets"] = self.offsets.entry()
        if self.mean is not None:
            entry["mean"] = self.mean
        return entry

    def map(self, place: Place) -> Column:
        """The column, of one value or one list in every row; an empty number is NaN."""
        values = map_array(place, self.values)
        return values if self.offsets is None else Ragged(values, map_array(place, self.offsets))


@dataclass
class TableEntry:
    """A table beside the interactions; has_row: which ids of users or items have a row in it."""

    columns: dict[str, ColumnEntry]
    has_row: Stored | None = None

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> TableEntry:
        """The table that an entry of the document names."""
        columns = {name: ColumnEntry.from_entry(one) for name, one in entry["columns"].items()}
        return cls(columns, Stored.from_entry(entry["known"]) if "known" in entry else None)

    def entry(self) -> dict[str, Any]:
        """The entry of the document for this table."""
        entry: dict[str, Any] = {"columns": {n: one.entry() for n, one in self.columns.items()}}
        return entry if self.has_row is None else {"known": self.has_row.entry(), **entry}


@dataclass
class Manifest:
    """The columns of a place: those of interactions, of tables beside them, and vocabularies.

    options     of the config, which decided what is kept: `fields`, and others of a folder
    sides       the tables of users and items; extra: other tables by suffix
    cells       column -> how its cells were read; None: a folder of an early version says nothing
    left_out    config key -> rows that it left out; bad_rows: those that could not be read
    num_appends how often rows were added to a prepared folder
    """

    options: dict[str, Any]
    rows: int = 0
    columns: dict[str, ColumnEntry] = field(default_factory=dict)
    words: dict[str, StoredWords] = field(default_factory=dict)
    sides: dict[str, TableEntry] = field(default_factory=dict)
    extra: dict[str, TableEntry] = field(default_factory=dict)
    cells: dict[str, CellOptions] | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    bad_rows: int = 0
    num_appends: int = 0

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Manifest:
        """What manifest.json says of the columns beside it; of a new folder it says little."""

        def tables(key: str) -> dict[str, TableEntry]:
            return {s: TableEntry.from_entry(entry) for s, entry in document.get(key, {}).items()}

        columns, words = document.get("columns", {}), document.get("words", {})
        return cls(
            options=document["options"],
            rows=document["rows"],
            columns={name: ColumnEntry.from_entry(entry) for name, entry in columns.items()},
            words={name: StoredWords.from_entry(entry) for name, entry in words.items()},
            sides=tables("sides"),
            extra=tables("extra"),
            cells=_checked_cells(document["cells"]) if "cells" in document else None,
            left_out=counts_of(document.get("left_out", {})),
            bad_rows=counts_of({"bad_rows": document.get("bad_rows", 0)})["bad_rows"],
            num_appends=len(document.get("commands", [])),
        )

    def document(self) -> dict[str, Any]:
        """What manifest.json says of the columns."""
        return {
            "options": self.options,
            "rows": self.rows,
            "columns": {name: column.entry() for name, column in self.columns.items()},
            "words": {name: words.entry() for name, words in self.words.items()},
            "sides": {suffix: table.entry() for suffix, table in self.sides.items()},
            "extra": {suffix: table.entry() for suffix, table in self.extra.items()},
            "cells": self.cells or {},
            "left_out": self.left_out,
            "bad_rows": self.bad_rows,
        }

    @property
    def fields(self) -> dict[str, str]:
        """The names of the columns of users, items, times and labels (data.fields)."""
        return self.options["fields"]

    @property
    def tables(self) -> dict[str, dict[str, ColumnEntry]]:
        """The columns of all tables by suffix; interactions are `inter`."""
        others = {**self.sides, **self.extra}
        return {"inter": self.columns, **{s: table.columns for s, table in others.items()}}

    @property
    def vocabulary_by_field(self) -> dict[str, str]:
        """Field of words -> the field whose vocabulary it has."""
        shared = {
            name: vocabulary_of(suffix, name, self.fields["user"])
            for suffix, columns in self.tables.items()
            for name, column in columns.items()
            if column.type.startswith("token")
        }
        return {name: name for name in self.words if name not in ENTITIES} | shared


def _checked_cells(cells: Any) -> dict[str, CellOptions]:
    """How cells were read, checked: a manifest may come from a stranger."""
    try:
        return CELLS.validate_python(cells)
    except ValidationError as error:
        raise DamagedFolder(f"cells: {error.errors()[0]['msg']}") from error


def parts_of(place: Place, manifest: Manifest, config: DataSection) -> dict[str, Any]:
    """The arguments of a Dataset but its name, vocabularies and splits."""
    fields, fills = manifest.fields, number_defaults(config)
    inter = map_columns(place, manifest.columns, fills)
    types: dict[str, FieldType] = {}
    for columns in manifest.tables.values():
        types |= {name: column.type for name, column in columns.items() if name not in types}
    split = decide_split(config.split, fields["time"] in inter)
    timed = fields["time"] in inter and split.order != "file"
    nothing = TableEntry({})
    users, items = (manifest.sides.get(suffix, nothing).columns for suffix in ("user", "item"))
    left_out = {"data.bad_rows": manifest.bad_rows, **manifest.left_out}
    return {
        "split": split,
        "user_field": fields["user"],
        "item_field": fields["item"],
        "time_field": fields["time"] if timed else None,
        "label_field": fields["label"] if fields["label"] in inter else None,
        "inter": inter,
        "types": types,
        "users": map_columns(place, users, fills),
        "items": map_columns(place, items, fills),
        "extra": {s: map_columns(place, table.columns) for s, table in manifest.extra.items()},
        "missing": {
            suffix: {name: column.missing for name, column in columns.items()}
            for suffix, columns in manifest.tables.items()
        },
        "left_out": {key: count for key, count in left_out.items() if count},
        "cells": manifest.cells or {},
    }


def words_of(place: Place, manifest: Manifest) -> dict[str, Words]:
    """Field -> its words. Fields that share a vocabulary share the object."""
    words = {name: stored.map(place) for name, stored in manifest.words.items()}
    return {name: words[group] for name, group in manifest.vocabulary_by_field.items()}


def check_columns(place: Place, manifest: Manifest) -> None:
    """Refuse columns that do not belong together: ids without a word, lists that end elsewhere."""
    groups = manifest.vocabulary_by_field
    for name, stored in manifest.words.items():
        words = stored.map(place)
        check_range(f"ends of the words of {name}", words.ends, 0, len(words.text) + 1)
    keys = (manifest.fields["user"], manifest.fields["item"])
    for suffix, columns in manifest.tables.items():
        whose = "interactions" if suffix == "inter" else suffix
        rows = None  # of other tables any number
        if suffix == "inter":
            rows = manifest.rows
        elif suffix in manifest.sides:
            rows = len(manifest.words[manifest.fields[suffix]])
        for name, column in map_columns(place, columns).items():
            if rows is not None and len(column) != rows:
                raise DamagedFolder(f"{name} of {whose} has {len(column)} rows, not {rows}")
            least = 1 if suffix == "inter" and name in keys else 0
            size = len(manifest.words[groups[name]]) if name in groups else None
            _check_column(name, column, least, size)


def _check_column(name: str, column: Column, least: int, size: int | None) -> None:
    """Refuse ids that are not from `least` to `size` - 1, and lists that lie elsewhere."""
    ids = column
    if isinstance(column, Ragged):
        ids, offsets = column.values, column.offsets
        if offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
            raise DamagedFolder(f"the lists of {name} do not lie within its values")
    assert isinstance(ids, np.ndarray)
    if size is not None:
        check_range(f"ids of {name}", ids, least, size)


def check_range(name: str, values: np.ndarray, least: int, stop: int) -> None:
    """Refuse numbers that are not whole, or not all from `least` to `stop` - 1."""
    whole = values.dtype.kind == "i"
    if not whole or (len(values) and not (values.min() >= least and values.max() < stop)):
        raise DamagedFolder(f"{name} are not all from {least} to {stop - 1}")


def number_defaults(config: DataSection) -> dict[str, float]:
    """Column -> what an empty number is, where data.features says so."""
    return {
        settings.get("column", name): float(default)
        for name, settings in (config.features or {}).items()
        if isinstance(default := settings.get("default"), int | float)
        and settings.get("kind") in ("number", "numbers")
    }


def vocabulary_of(suffix: str, field: str, user: str) -> str:
    """The field whose vocabulary a column of words has."""
    if suffix == "net" and field in NETWORK:
        return user
    return ENTITIES[0] if suffix in ("kg", "link") and field in ENTITIES else field


def map_columns(
    place: Place, entries: Mapping[str, ColumnEntry], fills: Mapping[str, float] | None = None
) -> Columns:
    """Columns by name. An empty number is as `fills` says of its column, else the others' mean."""
    columns: Columns = {}
    for name, entry in entries.items():
        column = columns[name] = entry.map(place)
        if entry.mean is not None and isinstance(column, np.ndarray):
            fill = np.float32((fills or {}).get(name, entry.mean))
            columns[name] = np.where(np.isnan(column), fill, column)
    return columns
