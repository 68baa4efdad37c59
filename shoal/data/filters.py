"""Filters: which interactions, users and items stay.

Interactions are columns of any length, in memory or mapped: codes of words (from 1, 0 is an empty
cell) and numbers. They are passed over some rows at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.intervals import Interval, parse_intervals
from shoal.config.schema import DataSection
from shoal.data.column_store import chunks, count_ids
from shoal.data.dataset import FieldType
from shoal.data.raw_columns import RawTable
from shoal.data.user_ranges import by_user

logger = logging.getLogger(__name__)

SIDES = ("user", "item")


def looks_at_all(config: DataSection) -> list[str]:
    """The filters that cannot judge rows which come later without those before."""
    keys = [] if config.filter.duplicates is None else ["data.filter.duplicates"]
    return keys + [f"data.filter.{side}_inter_num" for side in _counted(config)]


def kept_rows(
    columns: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    config: DataSection,
    of_sides: Mapping[str, FieldType],
    has_row: Mapping[str, np.ndarray],
    memory: int,
    scratch: Path | None,
) -> tuple[np.ndarray | None, dict[str, int]]:
    """Which rows stay, bool [rows], None: all; and by the key of each filter how many do not.

    Value intervals, duplicates, absent users and items, numbers of interactions: in that order,
    each on what the one before has left; the last repeats until nothing changes.

    sizes: codes of each field of words. of_sides: columns of side tables, which are filtered by
    `filter_sides`. has_row: field -> which codes a side table has. scratch: a folder to sort rows
    in, where memory does not hold them.
    """
    kept = _Kept(columns, sizes, config)
    for name, text in config.filter.values.items():
        kept.by_value(name, text, of_sides)
    if config.filter.duplicates is not None:
        kept.once(memory, scratch)
    for name, allowed in has_row.items() if config.filter.by_user_or_item else ():
        kept.by_code(name, allowed)
        kept.count("data.filter.by_user_or_item", f"no {name} is in both files")
    kept.by_count()
    rows = len(kept.keep)
    if kept.rows == rows:
        logger.info("filters keep all %d interactions", rows)
        return None, {}
    logger.info("filters keep %d of %d interactions", kept.rows, rows)
    return kept.keep, kept.left_out


def filter_sides(sides: Mapping[str, RawTable], config: DataSection) -> dict[str, RawTable]:
    """Tables of users and items with a row for each id, and those that data.filter.values keeps."""
    kept = dict(sides)
    for suffix in SIDES:
        if suffix not in kept:
            continue
        table = _first_rows(kept[suffix], getattr(config.fields, suffix))
        for name, text in config.filter.values.items():
            if table.types.get(name) == "float":
                where = f"data.filter.values.{name}"
                inside = within(table.columns[name].values, parse_intervals(text, where))
                if not inside.any():
                    raise ValueError(f"{where} leaves no row of {table.where}; loosen or remove it")
                table = table.take(np.flatnonzero(inside))
        kept[suffix] = table
    return kept


def without_uncounted(
    table: RawTable, suffix: str, config: DataSection, ids: Mapping[str, int]
) -> RawTable:
    """The rows of a side table whose ids (`ids` has them all) have interactions, where they must.

    Those without any stay where data.filter allows 0 of them.
    """
    intervals = _counted(config).get(suffix)
    if intervals is None or within(np.array([0]), intervals)[0]:
        return table
    column = table.columns[getattr(config.fields, suffix)]
    assert column.words is not None
    stays = np.fromiter((word in ids for word in column.words), bool, len(column.words))
    return table.take(np.flatnonzero(stays[column.values]))


def _first_rows(table: RawTable, field: str) -> RawTable:
    """The table with the first row of each id only."""
    _, first = np.unique(table.columns[field].values, return_index=True)
    if len(first) == len(table):
        return table
    logger.warning(
        "%s: %d rows repeat a %s that already has a row; the first one counts",
        table.where,
        len(table) - len(first),
        field,
    )
    return table.take(np.sort(first))


class _Kept:
    """The rows that filters keep, and how many they leave out, by the key of each."""

    def __init__(
        self, columns: Mapping[str, np.ndarray], sizes: Mapping[str, int], config: DataSection
    ):
        self.columns = columns
        self.sizes = sizes
        self.config = config
        self.rows = len(columns[config.fields.user])
        self.keep = np.ones(self.rows, dtype=bool)
        self.left_out: dict[str, int] = {}

    def count(self, key: str, why: str = "") -> None:
        """Count the rows that the filter of a key left; why: for the error where there are none."""
        rows = int(np.count_nonzero(self.keep))
        if rows == 0:
            raise ValueError(f"{key} leaves no interactions ({why}); loosen or remove it")
        if rows < self.rows:
            self.left_out[key] = self.left_out.get(key, 0) + self.rows - rows
        self.rows = rows

    def by_code(self, name: str, allowed: np.ndarray) -> None:
        """Keep rows whose word in a field is allowed; allowed: bool by code."""
        for part in chunks(len(self.keep)):
            self.keep[part] &= allowed[self.columns[name][part]]

    def once(self, memory: int, scratch: Path | None) -> None:
        """Keep the first or the last of repeated (user, item) pairs, by time where there is one."""
        fields, sizes = self.config.fields, self.sizes
        user, item, time = fields.user, fields.item, fields.time
        columns = {name: self.columns[name] for name in (user, item, time) if name in self.columns}
        counts = count_ids(self.columns[user], sizes[user])
        for _, part in by_user(columns, user, counts, memory, scratch):
            order = np.arange(len(part["row"]))
            if time in part and time not in sizes:
                order = np.argsort(part[time], kind="stable")
            if self.config.filter.duplicates == "last":
                order = order[::-1]
            order = order[self.keep[part["row"][order]]]
            pairs = part[user].astype(np.int64) * sizes[item] + part[item]
            _, first = np.unique(pairs[order], return_index=True)
            self.keep[part["row"]] = False
            self.keep[part["row"][order[first]]] = True
        self.count("data.filter.duplicates")

    def by_value(self, field: str, text: str, of_sides: Mapping[str, FieldType]) -> None:
        """Keep rows whose number lies in intervals; for side tables `filter_sides` does it."""
        where = f"data.filter.values.{field}"
        intervals = parse_intervals(text, where)
        kinds = {**of_sides, **{n: "token" if n in self.sizes else "float" for n in self.columns}}
        if kinds.get(field) != "float":
            floats = [name for name, kind in kinds.items() if kind == "float"]
            problem = f"is a {kinds[field]} field" if field in kinds else "is not a loaded field"
            raise ValueError(
                f"{where}: {field!r} {problem}; float fields that can be filtered: "
                f"{', '.join(floats) or 'none is loaded'}{did_you_mean(field, floats)}"
            )
        if field in self.columns:
            for part in chunks(len(self.keep)):
                self.keep[part] &= within(self.columns[field][part], intervals)
            self.count(where, f"nothing lies in {text}")

    def by_count(self) -> None:
        """Drop users and items with too few or too many rows until all that are left fit."""
        active = _counted(self.config)
        changed = bool(active)
        while changed:
            fits = {}
            for side, intervals in active.items():
                name = getattr(self.config.fields, side)
                counts = count_ids(self.columns[name], self.sizes[name], self.keep)
                fits[side] = name, within(counts, intervals)
            before = self.rows
            for side, (name, allowed) in fits.items():
                self.by_code(name, allowed)
                why = "no users and items with so many interactions of each other remain"
                self.count(f"data.filter.{side}_inter_num", why)
            changed = self.rows < before


def _counted(config: DataSection) -> dict[str, list[Interval]]:
    """Side -> the numbers of interactions that are allowed, where not all are."""
    limits = {}
    for side in SIDES:
        where = f"data.filter.{side}_inter_num"
        intervals = parse_intervals(getattr(config.filter, f"{side}_inter_num"), where)
        everything = any(
            (i.low < 0 or (i.low == 0 and i.low_closed)) and math.isinf(i.high) for i in intervals
        )
        if not everything:
            limits[side] = intervals
    return limits


def within(values: np.ndarray, intervals: list[Interval]) -> np.ndarray:
    """bool mask: values that lie in at least one of the intervals."""
    return np.logical_or.reduce([interval.holds(values) for interval in intervals])
