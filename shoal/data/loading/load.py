"""Raw data -> Dataset: pick the source, filter, number ids, split; or take it from the cache.

The cache is a folder of columns next to the raw files. Its name is a hash of the files and of the
options that decide what is stored. A folder is written under a temporary name and committed by
rename, so it is there in full or not at all; every file is checked against the manifest on load,
the manifest against its own SHA-256, and ids against the vocabularies that they number. A folder of
an earlier version is not read: its name differs, so the columns are made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.bounded_files import packed_or_not
from shoal.data.column_store import (
    DamagedFolder,
    Memory,
    Place,
    Stored,
    all_stored,
    check_arrays,
    filled_folder,
    is_being_filled,
    map_array,
    read_document,
    write_array,
    write_document,
)
from shoal.data.columns import SourceRows, add_rows
from shoal.data.dataset import SPLITS, Dataset, Pairs, Ragged, count_pairs
from shoal.data.loading.location import interactions_of
from shoal.data.manifest import Manifest, check_columns, check_range, parts_of, words_of
from shoal.data.prepared import dataset as prepared
from shoal.data.raw_columns import Raw
from shoal.data.sessions import CONTEXT, split_sessions
from shoal.data.sources import SOURCES
from shoal.data.sources.files import local_data
from shoal.data.split import cut_valid, refuse_keys_of_sessions, rows_by_split, split_of_rows
from shoal.files.folders import inner_folder, remove_folder

logger = logging.getLogger(__name__)

VERSION = 9  # of the format and of preparation: raise it when either changes what is stored
MANIFEST = "manifest.json"


def load_dataset(config: DataSection, seed: int, source_name: str | None = None) -> Dataset:
    """The prepared data set that the config describes; `seed` decides a random split.

    source_name: where the interactions come from, if `interactions_of` was called before.
    """
    config = local_data(config)
    name = source_name or interactions_of(config)
    if name == "prepared":
        return prepared.open_prepared(config, seed)
    source = SOURCES[name]
    files = source.files(config)
    if not files or not config.cache:  # what is generated comes faster than a cache is read
        return build(source.read(config), config, seed)
    folder = cache_folder(files, config, seed)
    document = read_cache(folder)
    if document is None:
        raw = source.read(config)
        document = write_cache(folder, lambda place: _prepare(raw, config, seed, place))
        if document is None:
            return build(raw, config, seed)
    return _open(folder, document, config)


QUICK_START: dict[str, dict[str, Any]] = {  # what RecBole's quick start chooses for click models
    "ml-100k": {
        "load": {
            "inter": ["user_id", "item_id", "rating", "timestamp"],
            "user": ["user_id", "age", "gender", "occupation"],
            "item": ["item_id", "release_year", "class"],
        },
        "threshold": {"rating": 4.0},
    }
}


def with_side_files(config: DataSection, source_name: str | None = None) -> DataSection:
    """The config for a model that reads features: with the existing files of users and items.

    Files, columns and labels that the config names itself are not changed.
    source_name: where the interactions come from, if `interactions_of` was called before.
    """
    config = local_data(config)
    source = source_name or interactions_of(config)
    if source == "prepared":  # its columns were chosen when it was made
        return config
    quick = QUICK_START.get(config.stem, {})
    changed: dict[str, Any] = {}
    if source == "atomic" and config.load is None and config.unload is None:
        present = [
            s
            for s in ("user", "item")
            if packed_or_not(config.folder / f"{config.stem}.{s}").exists()
        ]
        columns = quick.get("load", {})
        changed["load"] = {suffix: columns.get(suffix, ["*"]) for suffix in ["inter", *present]}
    if config.threshold is None and config.labels is None and "threshold" in quick:
        changed["threshold"] = quick["threshold"]
    if changed:
        settings = "; ".join(f"data.{key}={inline(value)}" for key, value in changed.items())
        logger.info("%s, for a model that reads features: %s", config.title, settings)
    return config.model_copy(update=changed)


def build(raw: Raw, config: DataSection, seed: int) -> Dataset:
    """Filter, label, number, split and scale, in memory."""
    memory = Memory()
    return _open(memory, _prepare(raw, config, seed, memory), config)


def _prepare(raw: Raw, config: DataSection, seed: int, place: Place) -> dict[str, Any]:
    """Write the columns of a data set, split; the document of the cache."""
    if config.split.by == "sessions":
        raw, config = split_sessions(raw, config, seed)
    refuse_keys_of_sessions(config.split)
    inter, fields = raw.inter, config.fields
    rows = SourceRows(inter.types, [inter.columns], raw.side, inter.where, inter.cells)
    empty = Manifest({"fields": fields.model_dump()})
    manifest, keep = add_rows(rows, config, place, empty, ids_as="<i8")
    users, items = (
        map_array(place, manifest.columns[name].values) for name in (fields.user, fields.item)
    )
    # The split of each row that was kept: by the files, or by data.split.
    time = manifest.columns.get(fields.time)
    times = None if time is None else map_array(place, time.values)
    if raw.parts is not None:
        if config.split.at is not None and config.split.by != "sessions":
            raise ValueError(
                "data.split.at: the files are train, valid and test parts already; leave it out, "
                "or give them as one (data.files.inter)"
            )
        split_numbers = raw.parts if keep is None else raw.parts[keep]
        if raw.cuts_valid:
            split_numbers = cut_valid(split_numbers, config.split, seed, users, times)
    else:
        split_numbers = split_of_rows(config.split, seed, users, times)
    num_users, num_items = (len(manifest.words[name]) for name in (fields.user, fields.item))
    splits = rows_by_split(split_numbers)
    context = np.flatnonzero(split_numbers == CONTEXT)
    is_split = slice(None) if not len(context) else split_numbers != CONTEXT
    logger.info("densified ids: %d users, %d items", num_users - 1, num_items - 1)
    sizes = ", ".join(f"{split} {len(rows)}" for split, rows in splits.items())
    logger.info("split interactions: %s", sizes)
    manifest.left_out = {**raw.left_out, **manifest.left_out}
    return {
        **manifest.document(),
        "splits": {
            split: write_array(place, f"rows-{split}.bin", row_numbers, "<i8").entry()
            for split, row_numbers in splits.items()
        },
        "context": write_array(place, "rows-context.bin", context, "<i8").entry(),
        "pairs": asdict(
            count_pairs(users[is_split], items[is_split], split_numbers[is_split], num_items)
        ),
    }


def _open(place: Place, document: dict[str, Any], config: DataSection) -> Dataset:
    """The data set of columns that `_prepare` wrote."""
    manifest = Manifest.from_document(document)
    words = words_of(place, manifest)
    arrays = {id(one): np.asarray(one) for one in words.values()}
    dataset = Dataset(
        name=config.title,
        vocab={name: arrays[id(one)] for name, one in words.items()},
        splits={
            split: map_array(place, Stored.from_entry(entry))
            for split, entry in document["splits"].items()
        },
        context=map_array(place, Stored.from_entry(document["context"])),
        pairs=Pairs.from_entry(document["pairs"]),
        **parts_of(place, manifest, config),
    )
    _normalize(dataset, config)
    return dataset


def _normalize(dataset: Dataset, config: DataSection) -> None:
    """Scale float fields of interactions, users and items to [0, 1], in place."""
    tables = {"inter": dataset.inter, "user": dataset.users, "item": dataset.items}
    allowed = [
        name
        for table in tables.values()
        for name in table
        if dataset.types[name].startswith("float") and name != config.fields.label
    ]
    fields = allowed if config.normalize == "all" else config.normalize
    for field in dict.fromkeys(fields):
        if field not in allowed:
            raise ValueError(
                f"data.normalize: {field!r} is not a loaded float field; allowed: "
                f"{', '.join(allowed) or 'none is loaded'}{did_you_mean(field, allowed)}"
            )
        for suffix, table in tables.items():
            if field not in table:
                continue
            column = table[field]
            values = column.values if isinstance(column, Ragged) else column
            # Row 0 of users and items is padding and takes no part.
            part = values if suffix == "inter" or isinstance(column, Ragged) else values[1:]
            if not len(part):
                continue
            low, high = float(part.min()), float(part.max())  # their difference may need 64 bits
            if low == high:
                logger.warning("data.normalize: all values of %s are %s; they become 1", field, low)
                part[:] = 1.0
            else:
                part[:] = (part - np.float64(low)) / (high - low)


# ---- the cache -----------------------------------------------------------------------------------


def cache_folder(files: list[Path], config: DataSection, seed: int) -> Path:
    """Where the data set prepared from these files is kept."""
    options = config.model_dump(
        exclude={"path", "synthetic", "random", "max_len", "cache", "format"}
    )
    split = config.split
    if config.presplit is None and split.order in ("random", "auto") and split.seed is None:
        options["seed"] = seed
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([VERSION, states, options], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return files[0].parent / ".shoal" / f"{config.title}-{key}"


def read_cache(folder: Path) -> dict[str, Any] | None:
    """The document of a cache folder; None (and a warning) when it is damaged."""
    if not folder.is_dir():
        return None
    try:
        return check_cache(folder)
    except DamagedFolder as damage:
        logger.warning("cache %s is damaged (%s); preparing the data again", folder, damage)
        return None


def check_cache(folder: Path) -> dict[str, Any]:
    """The document of a folder that is as it was written; else DamagedFolder."""
    try:
        document = read_document(folder / MANIFEST, VERSION)
        check_arrays(folder, all_stored(document), whole=True)
        manifest = Manifest.from_document(document)
        check_columns(folder, manifest)
        if set(document["splits"]) != set(SPLITS):
            raise DamagedFolder(f"the splits are {', '.join(document['splits'])}")
        for name, entry in {**document["splits"], "context": document["context"]}.items():
            rows = map_array(folder, Stored.from_entry(entry))
            check_range(f"rows of {name}", rows, 0, manifest.rows)
        return document
    except DamagedFolder:
        raise
    except Exception as error:  # whatever an author can write into it
        raise DamagedFolder(f"{type(error).__name__}: {error}") from error


def write_cache(folder: Path, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
    """Have `write` fill a folder and return its document; None where no cache can be kept."""
    try:
        inner_folder(folder.parent.parent, folder.parent.name)
        for leftover in folder.parent.glob(".*.tmp"):  # left by writers that were killed
            with suppress(OSError):
                is_old = time.time() - leftover.stat().st_mtime > 24 * 3600
                if is_old and not is_being_filled(leftover):  # the clock may have jumped
                    remove_folder(folder.parent.parent, folder.parent.name, leftover.name)
        with filled_folder(folder, lambda: read_cache(folder) is not None) as work:
            write_document(work / MANIFEST, {"version": VERSION, **write(work)})
        return check_cache(folder)
    except (OSError, DamagedFolder) as error:
        logger.info("no cache in %s (%s); the data is prepared on every run", folder.parent, error)
        return None
