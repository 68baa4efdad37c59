"""Raw data -> Dataset: pick the source, filter, number ids, split; or take it from the cache."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data import columns as cache
from shoal.data.dataset import Column, Columns, Dataset, FieldType, Ragged
from shoal.data.filters import apply_filters
from shoal.data.named import interactions_of
from shoal.data.packed import packed_or_not
from shoal.data.prepared import dataset as prepared
from shoal.data.raw import Raw, RawColumn, RawTable, gather, number_defaults
from shoal.data.sources import atomic, movielens, planted, random, tables
from shoal.data.split import rows_by_phase, split_rows
from shoal.data.vocabulary import number

logger = logging.getLogger(__name__)

ENTITIES = ("head_id", "tail_id", "entity_id")  # of .kg and .link: one vocabulary
GENERATED = {"planted": planted.read, "random": random.read}
NETWORK = ("source", "target", "source_id", "target_id")  # of .net: users


def load_dataset(config: DataSection, seed: int) -> Dataset:
    """The prepared data set that the config describes; `seed` decides a random split."""
    source = interactions_of(config)
    if source == "prepared":
        return prepared.open_prepared(config, seed)
    if source in GENERATED:  # faster than a cache is read
        return build(GENERATED[source](config), config, seed)
    if source == "atomic":
        files = [path for paths in atomic.files(config).values() for path in paths]
        read = atomic.read
    elif source == "tables":
        files = [path for paths in tables.files(config).values() for path in paths]
        read = tables.read
    else:
        files = [movielens.find(config)]
        read = movielens.read
    if not config.cache:
        return build(read(config), config, seed)
    folder = cache.cache_folder(files, config, seed)
    found = cache.load(folder)
    return cache.keep(folder, build(read(config), config, seed)) if found is None else found


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
    """The same for models that read features: with the files of users and items that are there.

    What the config says of files, columns and labels stands as it is.
    """
    source = interactions_of(config)
    if source == "prepared":  # it has what it was made with
        return config
    quick = QUICK_START.get(config.stem, {})
    changed: dict[str, Any] = {}
    if source == "atomic" and config.load is None and config.unload is None:
        there = [
            s
            for s in ("user", "item")
            if packed_or_not(config.folder / f"{config.stem}.{s}").exists()
        ]
        columns = quick.get("load", {})
        changed["load"] = {suffix: columns.get(suffix, ["*"]) for suffix in ["inter", *there]}
    if config.threshold is None and config.labels is None and "threshold" in quick:
        changed["threshold"] = quick["threshold"]
    if changed:
        said = "; ".join(f"data.{key}={inline(value)}" for key, value in changed.items())
        logger.info("%s, for a model that reads features: %s", config.title, said)
    return config.model_copy(update=changed)


def build(raw: Raw, config: DataSection, seed: int) -> Dataset:
    """Filter, label, number, split and scale."""
    fields = config.fields
    _check_types(raw, config)
    raw = apply_filters(raw, config)
    types = dict(raw.inter.types)
    columns = dict(raw.inter.columns)
    if config.threshold:
        _label(columns, types, config)

    vocab, ids = _number_all(raw, columns, fields.user, fields.item, config)
    fills = number_defaults(config)
    inter = {
        name: _finish(c, ids.get(("inter", name)), fill=fills.get(name))
        for name, c in columns.items()
    }
    time_field = fields.time if fields.time in inter else None
    if time_field is not None:
        inter[time_field] = columns[time_field].values.astype(np.float64)
    users = ids["inter", fields.user]
    times = None if time_field is None else columns[time_field].values
    if raw.parts is not None:
        splits = rows_by_phase(raw.parts)
    else:
        splits = split_rows(config.split, seed, users, times)

    dataset = Dataset(
        name=config.title,
        user_field=fields.user,
        item_field=fields.item,
        time_field=None if config.split.order == "file" else time_field,
        label_field=fields.label if fields.label in inter else None,
        inter=inter,
        types=types,
        vocab=vocab,
        splits=splits,
    )
    for suffix, table in raw.side.items():
        for name, kind in table.types.items():
            types.setdefault(name, kind)
        table_ids = {name: ids[suffix, name] for name in table.columns if (suffix, name) in ids}
        if suffix == "user":
            dataset.users = _align(table, table_ids, fields.user, dataset.num_users, fills)
        elif suffix == "item":
            dataset.items = _align(table, table_ids, fields.item, dataset.num_items, fills)
        else:
            dataset.extra[suffix] = _extra(table, table_ids, config)
    logger.info("densified ids: %d users, %d items", dataset.num_users - 1, dataset.num_items - 1)
    sizes = ", ".join(f"{phase} {len(rows)}" for phase, rows in splits.items())
    logger.info("split interactions: %s", sizes)
    _normalize(dataset, config)
    for suffix, table in {"inter": raw.inter, **raw.side}.items():
        dataset.missing[suffix] = {name: c.num_missing for name, c in table.columns.items()}
    dataset.left_out = raw.left_out
    return dataset


def _check_types(raw: Raw, config: DataSection) -> None:
    """A field has one type in all files, and the time and label fields hold numbers."""
    if config.fields.user == config.fields.item:
        raise ValueError(
            f"data.fields.user and data.fields.item are both {config.fields.user!r}; name two"
        )
    seen: dict[str, tuple[FieldType, str]] = {}
    for table in [raw.inter, *raw.side.values()]:
        for name, kind in table.types.items():
            if seen.setdefault(name, (kind, table.where))[0] != kind:
                raise ValueError(
                    f"{name!r} has the type {seen[name][0]} in {seen[name][1]} and {kind} in "
                    f"{table.where}; give it one type, or two names"
                )
    for option, name in (("time", config.fields.time), ("label", config.fields.label)):
        given = raw.inter.types.get(name)
        if given not in (None, "float"):
            raise ValueError(
                f"{raw.inter.where}: the {option} field {name!r} has type {given}; write "
                f"{name}:float in the header, or name another field in data.fields.{option}"
            )


def _label(columns: dict[str, RawColumn], types: dict[str, FieldType], config: DataSection) -> None:
    """Replace the field of data.threshold by the label: 1 where it is at or above the value."""
    threshold = config.threshold or {}
    floats = [name for name, kind in types.items() if kind == "float"]
    field, limit = next(iter(threshold.items()))
    if len(threshold) != 1 or field not in floats:
        raise ValueError(
            f"data.threshold: {threshold}; name one loaded float field of the interactions "
            f"({', '.join(floats) or 'none is loaded'}) and the value at which the label becomes 1"
            f"{did_you_mean(field, floats)}"
        )
    label = RawColumn((columns[field].values >= limit).astype(np.float64))
    if field == config.fields.time:
        raise ValueError("data.threshold: the time field cannot become the label")
    # The field itself goes: left among the features it would give the label away.
    del columns[field], types[field]
    columns[config.fields.label] = label
    types[config.fields.label] = "float"


def _number_all(
    raw: Raw, inter: dict[str, RawColumn], user: str, item: str, config: DataSection
) -> tuple[dict[str, np.ndarray], dict[tuple[str, str], np.ndarray]]:
    """vocab per token field, and (suffix, field) -> ids of that column.

    Users, items and entities are one vocabulary each; every other field has its own. Files other
    than .inter, .user and .item never add a user or an item.
    """
    groups: dict[str, list[tuple[str, str, RawColumn]]] = {user: [], item: []}
    tables = {"inter": inter, **{suffix: t.columns for suffix, t in raw.side.items()}}
    for suffix in ["inter", "user", "item", *(s for s in tables if s not in ("user", "item"))]:
        for name, column in tables.pop(suffix, {}).items():
            if column.words is None:
                continue
            group = user if suffix == "net" and name in NETWORK else name
            group = ENTITIES[0] if suffix in ("kg", "link") and name in ENTITIES else group
            groups.setdefault(group, []).append((suffix, name, column))
    vocab: dict[str, np.ndarray] = {}
    ids = {}
    for group, members in groups.items():
        may_extend = {user: ("inter", "user"), item: ("inter", "item")}.get(group)
        extends = [may_extend is None or suffix in may_extend for suffix, _, _ in members]
        words, found = number([column for _, _, column in members], extends, group)
        for (suffix, name, _), one in zip(members, found):
            vocab[name] = words
            ids[suffix, name] = one
    return vocab, ids


def _finish(
    column: RawColumn,
    ids: np.ndarray | None,
    rows: np.ndarray | None = None,
    fill: float | None = None,
) -> Column:
    """The given rows (null: all) of a column: ids as int64, numbers as float32, lists as Ragged.

    An empty token is 0, an empty list has no values, an empty number is `fill`, or the mean of the
    others.
    """
    values, offsets = column.values if ids is None else ids, column.offsets
    if rows is not None:
        values, offsets = gather(values, offsets, rows, np.nan if ids is None else 0)
    if ids is None:
        values = values.astype(np.float32)
        empty = np.isnan(values)
        if empty.any():
            if fill is None:
                fill = 0.0 if empty.all() else values[~empty].mean(dtype=np.float64)
            values[empty] = fill
    return values if offsets is None else Ragged(values, offsets)


def _align(
    table: RawTable, ids: dict[str, np.ndarray], key: str, size: int, fills: dict[str, float]
) -> Columns:
    """Side features so that row i belongs to id i; ids without a row, and row 0, are empty."""
    row_of_id = np.full(size, -1, dtype=np.int64)
    row_of_id[ids[key]] = np.arange(len(table))
    row_of_id[0] = -1
    aligned = {
        name: _finish(column, ids.get(name), row_of_id, fills.get(name))
        for name, column in table.columns.items()
        if name != key
    }
    for name, column in aligned.items():
        if table.types[name] == "float":
            column[0] = 0.0  # type: ignore[index]
    return aligned


def _extra(table: RawTable, ids: dict[str, np.ndarray], config: DataSection) -> Columns:
    """Columns of another file, without the rows that name users or items that are not there."""
    known = np.ones(len(table), dtype=bool)
    for name, one in ids.items():
        belongs = name in (config.fields.user, config.fields.item) or name in NETWORK
        if belongs and table.columns[name].offsets is None:
            known &= one > 0
    rows = np.flatnonzero(known)
    if len(rows) < len(table):
        logger.info(
            "%s: %d of %d rows name users or items that are not in the data; they are left out",
            table.where,
            len(table) - len(rows),
            len(table),
        )
    return {name: _finish(column, ids.get(name), rows) for name, column in table.columns.items()}


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
