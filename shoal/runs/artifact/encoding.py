"""What an artifact of a click model on interactions keeps to encode raw rows (data/encoder.py).

features.json              the features, how numbers are changed, types and spelling of columns
words-NAME.safetensors     words of users, of items and of each table with a vocabulary
sides.safetensors          the features of known users and items, encoded
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from shoal.config.data_section import Kind, Side, Vocabulary
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.encode import Encoding, Numbers
from shoal.data.encoder import SIDES, FeatureEncoder
from shoal.data.feature_table import FeatureColumn, FeatureTable, Taken
from shoal.data.features import Feature
from shoal.data.ids import Ids
from shoal.data.raw import gather
from shoal.runs.artifact.files import (
    ArtifactError,
    read_json,
    read_tensors,
    read_words,
    write_words,
)
from shoal.world.durable import write_durably

FILE, SIDES_FILE = "features.json", "sides.safetensors"
SPELLING = {"separator", "seq_separator", "quote", "escape", "encoding", "format"}
MOST_FEATURES, MOST_WIDTH = 10_000, 1 << 16


def write_encoder(folder: Path, encoder: FeatureEncoder) -> None:
    """Write all three."""
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
    document = {
        "features": [asdict(feature) for feature in features],
        "numbers": {name: asdict(one) for name, one in encoder.encoding.numbers.items()},
        "fills": dict(encoder.fills),
        "types": dict(encoder.types),
        "words": files,
        "fields": encoder.fields,
        "packed": encoder.packed,
        "spelling": config.model_dump(mode="json", include=SPELLING),
        "time": config.fields.time,
    }
    write_durably(folder / FILE, json.dumps(document, indent=1).encode())


def read_encoder(folder: Path, manifest: dict[str, Any]) -> FeatureEncoder:
    """The encoder of an artifact, whose author may be anybody."""
    document = read_json(folder, FILE, manifest)
    try:
        return _encoder(folder, manifest, document)
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        text = str(error).splitlines()[0][:200]
        raise ArtifactError(f"artifact {folder} is damaged: {FILE}: {text}") from error


def _encoder(folder: Path, manifest: dict[str, Any], document: dict[str, Any]) -> FeatureEncoder:
    user, item = str(document["fields"]["user"]), str(document["fields"]["item"])
    words = {
        file: read_words(folder, manifest, file)
        for file in {"users", "items", *document["words"].values()}
    }
    ids = {user: words["users"], item: words["items"]}
    encoding = Encoding(
        {str(table): words[file] for table, file in document["words"].items()},
        {str(name): _numbers(one) for name, one in document["numbers"].items()},
    )
    features = [_feature(one) for one in document["features"]]
    if len(features) > MOST_FEATURES:
        raise ValueError(f"{len(features)} features; {MOST_FEATURES} are the most")
    stored = read_tensors(folder, SIDES_FILE, manifest) if SIDES_FILE in manifest["files"] else {}
    columns = []
    for number, feature in enumerate(features):
        size = len(words["users" if feature.side == "user" else "items"])
        take = _of_side(stored, number, feature, size)
        columns.append(FeatureColumn(feature, _nothing if take is None else take))
        exact = feature.is_sparse and feature.buckets is None and feature.vocabulary == "exact"
        if exact and not feature.cross and len(encoding.words[feature.table]) != feature.rows:
            raise ValueError(f"the words of {feature.name!r} are not as many as its rows")
    types = {str(name): one for name, one in document["types"].items()}
    if not set(types.values()) <= set(get_args(FieldType)):
        raise ValueError("types of columns")
    for feature in features:
        for name in (feature.column, feature.weights, feature.time):
            if name is not None and not feature.cross and name not in types:
                raise ValueError(f"the column {name!r} has no type")
    spelling = {key: value for key, value in document["spelling"].items() if key in SPELLING}
    fields_ = {"user": user, "item": item, "time": str(document["time"])}
    config = DataSection.model_validate({**spelling, "fields": fields_})
    fills = {str(name): float(one) for name, one in document["fills"].items()}
    table = FeatureTable(columns, user, item, encoding)
    return FeatureEncoder(table, types, fills, ids, config, bool(document["packed"]))


def _feature(facts: dict[str, Any]) -> Feature:
    """One feature, as far as encoding depends on it."""
    lists = {key: tuple(facts[key]) for key in ("transforms", "cross")}
    limits = facts["buckets"]
    limits = tuple(map(float, limits)) if isinstance(limits, list) else limits
    found = Feature(**{**facts, **lists, "buckets": limits})
    sizes = [one for one in (found.rows, found.length, found.dim) if one is not None]
    texts = (found.name, found.column, found.table, found.pooling, *found.cross)
    right = all(isinstance(one, str) for one in texts)
    right &= all(type(one) is int and one > 0 for one in sizes)
    right &= found.kind in get_args(Kind) and found.side in get_args(Side)
    right &= found.vocabulary in get_args(Vocabulary) and found.width <= MOST_WIDTH
    if not right:
        raise ValueError(f"the feature {str(found.name)[:80]!r}")
    return found


def _numbers(facts: dict[str, Any]) -> Numbers:
    steps = tuple(None if one is None else (float(one[0]), float(one[1])) for one in facts["steps"])
    bounds = facts["bounds"]
    return Numbers(steps, None if bounds is None else tuple(map(float, bounds)))


def _nothing(rows: np.ndarray) -> Taken:
    raise AssertionError("a feature of the row itself is not looked up")


def _of_side(
    stored: dict[str, Tensor], number: int, feature: Feature, size: int
) -> Callable[[np.ndarray], Taken] | None:
    """What gives the values of a feature of known users or items."""
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
        own = None if weights is None else gather(weights, offsets, rows, 0)[0]
        return *gather(values, offsets, rows, 0), own

    return take
