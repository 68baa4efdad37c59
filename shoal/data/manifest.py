"""Columns of a place as a data set: what a manifest names, checked and mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shoal.config.data_section import CellOptions
from shoal.config.schema import DataSection
from shoal.data.column_store import DamagedFolder, Place, Stored
from shoal.data.columns import Manifest, vocabularies
from shoal.data.dataset import Column, Columns, Ragged
from shoal.data.pairs import counts_of
from shoal.data.raw_columns import number_defaults
from shoal.data.sides import map_columns
from shoal.data.split import decide_split
from shoal.data.vocabulary import Words, stored_words

CELLS = TypeAdapter(dict[str, CellOptions])


def parts_of(place: Place, manifest: Manifest, config: DataSection) -> dict[str, Any]:
    """The arguments of a Dataset but its name, vocabularies and splits."""
    fields, tables, fills = (
        manifest["options"]["fields"],
        manifest["sides"],
        number_defaults(config),
    )
    inter = map_columns(place, manifest["columns"], fills)
    entries = {"inter": manifest, **tables, **manifest["extra"]}
    types: dict[str, Any] = {}
    for entry in entries.values():
        types |= {n: one["type"] for n, one in entry["columns"].items() if n not in types}
    left_out = counts_of({"data.bad_rows": manifest.get("bad_rows", 0), **manifest["left_out"]})
    split = decide_split(config.split, fields["time"] in inter)
    timed = fields["time"] in inter and split.order != "file"
    return {
        "split": split,
        "user_field": fields["user"],
        "item_field": fields["item"],
        "time_field": fields["time"] if timed else None,
        "label_field": fields["label"] if fields["label"] in inter else None,
        "inter": inter,
        "types": types,
        "users": map_columns(place, tables.get("user", {"columns": {}})["columns"], fills),
        "items": map_columns(place, tables.get("item", {"columns": {}})["columns"], fills),
        "extra": {s: map_columns(place, e["columns"]) for s, e in manifest["extra"].items()},
        "missing": {
            suffix: {name: one["missing"] for name, one in entry["columns"].items()}
            for suffix, entry in entries.items()
        },
        "left_out": {key: count for key, count in left_out.items() if count},
        "cells": _cells(manifest),
    }


def _cells(manifest: Manifest) -> dict[str, CellOptions]:
    """How cells were read, checked: a manifest may come from a stranger."""
    try:
        return CELLS.validate_python(manifest.get("cells", {}))
    except ValidationError as error:
        raise DamagedFolder(f"cells: {error.errors()[0]['msg']}") from error


def words_of(place: Place, manifest: Manifest) -> dict[str, Words]:
    """Field -> its words. Fields that share a vocabulary share the object."""
    words = {name: stored_words(place, entry) for name, entry in manifest["words"].items()}
    return {name: words[group] for name, group in vocabularies(manifest).items()}


def check_columns(place: Place, manifest: Manifest) -> None:
    """Refuse columns that do not belong together: ids without a word, lists that end elsewhere."""
    fields, groups = manifest["options"]["fields"], vocabularies(manifest)
    sizes = {
        name: len(Stored.from_entry(words_entry["ends"]))
        for name, words_entry in manifest["words"].items()
    }
    for name, words_entry in manifest["words"].items():
        words = stored_words(place, words_entry)
        check_range(f"ends of the words of {name}", words.ends, 0, len(words.text) + 1)
    tables: dict[str, tuple[Columns, int | None]] = {
        "interactions": (map_columns(place, manifest["columns"]), manifest["rows"])
    }
    for suffix, entry in manifest["sides"].items():
        tables[suffix] = (map_columns(place, entry["columns"]), sizes[fields[suffix]])
    for suffix, entry in manifest["extra"].items():
        tables[suffix] = (map_columns(place, entry["columns"]), None)
    for whose, (columns, rows) in tables.items():
        for name, column in columns.items():
            if rows is not None and len(column) != rows:
                raise DamagedFolder(f"{name} of {whose} has {len(column)} rows, not {rows}")
            least = 1 if whose == "interactions" and name in (fields["user"], fields["item"]) else 0
            _check_column(name, column, least, sizes[groups[name]] if name in groups else None)


def _check_column(name: str, column: Column, least: int, size: int | None) -> None:
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
