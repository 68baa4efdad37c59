"""The encoder of raw rows that an artifact of a click model on interactions stores.

features.json              the features, how numbers are changed, types and spelling of columns
words-NAME.safetensors     words of users, of items and of each table with a vocabulary
sides.safetensors          the features of known users and items, encoded
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter
from safetensors.torch import save_file
from torch import Tensor

from shoal.clicks.encoder import SIDES, FeatureEncoder
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.encode import Encoding, Numbers
from shoal.data.feature_table import FeatureColumn, FeatureTable, Taken
from shoal.data.features import Feature
from shoal.data.ids import Ids
from shoal.data.raw_columns import gather
from shoal.files.durable import write_durably
from shoal.serving.artifact.files import (
    damaged,
    read_json,
    read_tensors,
    read_words,
    write_words,
)

FILE, SIDES_FILE = "features.json", "sides.safetensors"
SPELLING = {"separator", "seq_separator", "quote", "escape", "encoding", "format", "cells"}


@dataclass
class Document:
    """The content of features.json."""

    features: Annotated[list[Feature], Field(max_length=10_000)]
    numbers: dict[str, Numbers]
    fills: dict[str, float]  # feature -> what an empty number is
    types: dict[str, FieldType]  # of columns
    words: dict[str, str]  # table -> file
    fields: dict[str, str]  # of users and items
    packed: bool
    spelling: dict[str, Any]  # keys of the section data
    time: str


def write_encoder(folder: Path, encoder: FeatureEncoder) -> None:
    """Write features.json, the words of all tables, and sides.safetensors."""
    table, named = encoder.table, {"users": encoder.fields["user"], "items": encoder.fields["item"]}
    words: dict[str, Ids] = {file: encoder.ids[field] for file, field in named.items()}
    files: dict[str, str] = {}
    for name, ids in encoder.encoding.words.items():
        same = [file for file, known in words.items() if known.words is ids.words]
        files[name] = same[0] if same else f"table{len(files)}"
        words[files[name]] = ids
    for file, ids in words.items():
        write_words(folder, file, ids.words)
    sides: dict[str, Tensor] = {}
    features: list[Feature] = []
    for number, column in enumerate(table.columns.values()):
        feature = column.feature
        if column.of_users is not None:  # a history: what a user took is known of the user
            feature, column = replace(feature, side="user"), FeatureColumn(feature, column.of_users)
        features.append(feature)
        if feature.side in SIDES and not feature.cross:
            count = len(encoder.ids[encoder.fields[feature.side]])
            values = column.take(np.arange(count))
            if isinstance(values, Tensor):
                sides[f"{number}.values"] = values.clone()
            else:
                sides |= {f"{number}.values": values.values, f"{number}.offsets": values.offsets}
                sides |= {} if values.weights is None else {f"{number}.weights": values.weights}
    if sides:
        save_file({name: one.contiguous() for name, one in sides.items()}, folder / SIDES_FILE)
    config = encoder.config
    document = Document(
        features,
        dict(encoder.encoding.numbers),
        dict(encoder.fills),
        dict(encoder.types),
        files,
        encoder.fields,
        encoder.packed,
        config.model_dump(mode="json", include=SPELLING),
        config.fields.time,
    )
    write_durably(folder / FILE, json.dumps(asdict(document), indent=1).encode())


def read_encoder(folder: Path, manifest: dict[str, Any]) -> FeatureEncoder:
    """The encoder of an artifact, whose author may be anybody."""
    document = read_json(folder, FILE, manifest)
    with damaged(f"artifact {folder}: {FILE}"):
        return _encoder(folder, manifest, TypeAdapter(Document).validate_python(document))


def _encoder(folder: Path, manifest: dict[str, Any], document: Document) -> FeatureEncoder:
    user, item, types = document.fields["user"], document.fields["item"], document.types
    names = {"users", "items", *document.words.values()}
    words = {file: read_words(folder, manifest, file) for file in names}
    encoding = Encoding({k: words[file] for k, file in document.words.items()}, document.numbers)
    stored = read_tensors(folder, SIDES_FILE, manifest) if SIDES_FILE in manifest["files"] else {}
    columns = []
    for number, feature in enumerate(document.features):
        sizes = [one for one in (feature.rows, feature.length, feature.dim) if one is not None]
        if not all(one > 0 for one in sizes) or feature.width > 1 << 16:
            raise ValueError(f"the sizes of {feature.name[:80]!r}")
        size = len(words["users" if feature.side == "user" else "items"])
        take = _of_side(stored, number, feature, size)
        columns.append(FeatureColumn(feature, _nothing if take is None else take))
        if feature.cross:
            continue
        exact = feature.is_sparse and feature.buckets is None and feature.vocabulary == "exact"
        if exact and len(encoding.words[feature.table]) != feature.rows:
            raise ValueError(f"the words of {feature.name!r} are not as many as its rows")
        for name in (feature.column, feature.weights, feature.time):
            if name is not None and name not in types:
                raise ValueError(f"the column {name!r} has no type")
    spelling = {key: value for key, value in document.spelling.items() if key in SPELLING}
    named = {"user": user, "item": item, "time": document.time}
    config = DataSection.model_validate({**spelling, "fields": named})
    table = FeatureTable(columns, user, item, encoding)
    ids = {user: words["users"], item: words["items"]}
    return FeatureEncoder(table, types, document.fills, ids, config, document.packed)


def _nothing(rows: np.ndarray) -> Taken:
    raise AssertionError("a feature of the row itself is not looked up")


def _of_side(
    stored: dict[str, Tensor], number: int, feature: Feature, size: int
) -> Callable[[np.ndarray], Taken] | None:
    """The function that looks up values of a feature of known users or items."""
    if feature.side not in SIDES or feature.cross:
        return None
    values = stored[f"{number}.values"].numpy()
    kind = np.int64 if feature.is_sparse else np.float32
    offsets = stored[f"{number}.offsets"].numpy() if f"{number}.offsets" in stored else None
    weights = stored[f"{number}.weights"].numpy() if f"{number}.weights" in stored else None
    right = values.dtype == kind and (offsets is not None) == feature.is_list
    if offsets is None:
        wide = (feature.width,) if feature.kind == "numbers" and not feature.is_sparse else ()
        right = right and values.shape == (size, *wide)
    else:
        right = right and offsets.dtype == np.int64 and offsets.shape == (size + 1,)
        right = right and values.ndim == 1 and offsets[0] == 0 and offsets[-1] == len(values)
        right = right and bool((np.diff(offsets) >= 0).all())
        right = right and (
            weights is None or (weights.dtype == np.float32 and weights.shape == values.shape)
        )
    if not right:
        raise ValueError(f"the values of {feature.name!r} are not of their shape")

    def take(rows: np.ndarray) -> Taken:
        if offsets is None:
            return values[rows], None, None
        row_weights = None if weights is None else gather(weights, offsets, rows, 0)[0]
        return *gather(values, offsets, rows, 0), row_weights

    return take
