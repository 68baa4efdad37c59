"""Raw data -> Dataset: pick the source, filter, number ids, split; or take it from the cache."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.cache import cache_folder, read_cache, write_cache
from shoal.data.column_store import Memory, Place, Stored, map_array, write_array
from shoal.data.columns import Manifest, SourceRows, add_rows
from shoal.data.compressed_text import packed_or_not
from shoal.data.dataset import Dataset, Ragged
from shoal.data.loading.location import interactions_of
from shoal.data.manifest import parts_of, words_of
from shoal.data.pairs import Pairs, count_pairs
from shoal.data.prepared import dataset as prepared
from shoal.data.raw_columns import Raw
from shoal.data.sources import SOURCES
from shoal.data.sources.files import local_data
from shoal.data.split import rows_by_split, split_of_rows

logger = logging.getLogger(__name__)


def load_dataset(config: DataSection, seed: int) -> Dataset:
    """The prepared data set that the config describes; `seed` decides a random split."""
    config = local_data(config)
    name = interactions_of(config)
    if name == "prepared":
        return prepared.open_prepared(config, seed)
    source = SOURCES[name]
    files = source.files(config)
    if not files or not config.cache:  # what is generated comes faster than a cache is read
        return build(source.read(config), config, seed)
    folder = cache_folder(files, config, seed)
    manifest = read_cache(folder)
    if manifest is None:
        raw = source.read(config)
        manifest = write_cache(folder, lambda place: _prepare(raw, config, seed, place))
        if manifest is None:
            return build(raw, config, seed)
    return _open(folder, manifest, config)


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


def with_side_files(config: DataSection) -> DataSection:
    """The config for a model that reads features: with the existing files of users and items.

    Files, columns and labels that the config names itself are not changed.
    """
    config = local_data(config)
    source = interactions_of(config)
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


def _prepare(raw: Raw, config: DataSection, seed: int, place: Place) -> Manifest:
    """Write the columns of a data set, split; their manifest."""
    inter, fields = raw.inter, config.fields
    rows = SourceRows(inter.types, [inter.columns], raw.side, inter.where, inter.cells)
    options = {"fields": fields.model_dump()}
    manifest, keep = add_rows(rows, config, place, {"options": options}, ids_as="<i8")
    columns = manifest["columns"]
    users, items = (
        map_array(place, Stored.from_entry(columns[name]["values"]))
        for name in (fields.user, fields.item)
    )
    # The split of each row that was kept: by the files, or by data.split.
    if raw.parts is not None:
        if config.split.at is not None:
            raise ValueError(
                "data.split.at: the files are train, valid and test parts already; leave it out, "
                "or give them as one (data.files.inter)"
            )
        split_of_row = raw.parts if keep is None else raw.parts[keep]
    else:
        entry = columns.get(fields.time)
        times = None if entry is None else map_array(place, Stored.from_entry(entry["values"]))
        split_of_row = split_of_rows(config.split, seed, users, times)
    num_users, num_items = (
        len(Stored.from_entry(manifest["words"][name]["ends"]))
        for name in (fields.user, fields.item)
    )
    splits = rows_by_split(split_of_row)
    logger.info("densified ids: %d users, %d items", num_users - 1, num_items - 1)
    sizes = ", ".join(f"{split} {len(rows)}" for split, rows in splits.items())
    logger.info("split interactions: %s", sizes)
    return {
        **manifest,
        "left_out": {**raw.left_out, **manifest["left_out"]},
        "splits": {
            split: write_array(place, f"rows-{split}.bin", row_numbers, "<i8").entry()
            for split, row_numbers in splits.items()
        },
        "pairs": asdict(count_pairs(users, items, split_of_row, num_items)),
    }


def _open(place: Place, manifest: Manifest, config: DataSection) -> Dataset:
    """The data set of columns that `_prepare` wrote."""
    words = words_of(place, manifest)
    arrays = {id(one): np.asarray(one) for one in words.values()}
    dataset = Dataset(
        name=config.title,
        vocab={name: arrays[id(one)] for name, one in words.items()},
        splits={
            split: map_array(place, Stored.from_entry(entry))
            for split, entry in manifest["splits"].items()
        },
        pairs=Pairs.from_entry(manifest["pairs"]),
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
