"""Filters on raw tables: which interactions, users and items stay."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.intervals import Interval, parse_intervals
from shoal.config.schema import DataSection
from shoal.data.raw import Raw, RawTable

logger = logging.getLogger(__name__)


def apply_filters(raw: Raw, config: DataSection) -> Raw:
    """Duplicates, value intervals, absent users and items, numbers of interactions: in that order.

    Each works on what the one before has left; the last repeats until nothing changes.
    """
    sides = {
        "user": (config.fields.user, config.filter.user_inter_num),
        "item": (config.fields.item, config.filter.item_inter_num),
    }
    side = dict(raw.side)
    for name, (field, _) in sides.items():
        if name in side:
            side[name] = first_rows(side[name], field)

    rows = np.arange(len(raw.inter))
    left_out = LeftOut(len(rows), raw.left_out)
    if config.filter.duplicates is not None:
        rows = _without_duplicates(raw.inter, config)
        left_out.count("data.filter.duplicates", len(rows))
    for field, text in config.filter.values.items():
        where = f"data.filter.values.{field}"
        rows, side = _by_value(raw.inter, rows, side, field, text, where)
        left_out.count(where, len(rows))
    if config.filter.by_user_or_item:
        for name, (field, _) in sides.items():
            if name in side:
                rows = _only_known(raw.inter, rows, field, side[name])
                _check(rows, "data.filter.by_user_or_item", f"no {field} is in both files")
        left_out.count("data.filter.by_user_or_item", len(rows))
    rows, side = _by_count(raw.inter, rows, side, sides, left_out)
    if len(rows) == len(raw.inter):
        logger.info("filters keep all %d interactions", len(rows))
        return Raw(raw.inter, side, raw.parts, left_out.by_key)
    logger.info("filters keep %d of %d interactions", len(rows), len(raw.inter))
    parts = None if raw.parts is None else raw.parts[rows]
    return Raw(raw.inter.take(rows), side, parts, left_out.by_key)


class LeftOut:
    """Rows that filters leave out, by the key of each: `count` after it."""

    def __init__(self, rows: int, by_key: Mapping[str, int]):
        self.rows, self.by_key = rows, dict(by_key)

    def count(self, key: str, rows: int | np.integer) -> None:
        """So many rows are left now."""
        if rows < self.rows:
            self.by_key[key] = self.by_key.get(key, 0) + self.rows - int(rows)
        self.rows = int(rows)


def _check(rows: np.ndarray, option: str, why: str) -> None:
    if not len(rows):
        raise ValueError(f"{option} leaves no interactions ({why}); loosen or remove it")


def first_rows(table: RawTable, field: str) -> RawTable:
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


def _without_duplicates(inter: RawTable, config: DataSection) -> np.ndarray:
    """Rows left when each (user, item) pair keeps its first or last (by time if there is time)."""
    users, items = (inter.columns[f] for f in (config.fields.user, config.fields.item))
    assert items.words is not None
    pairs = users.values * len(items.words) + items.values
    order = np.arange(len(pairs))
    time = inter.columns.get(config.fields.time)
    if time is not None and time.words is None:
        order = np.argsort(time.values, kind="stable")
    if config.filter.duplicates == "last":
        order = order[::-1]
    _, first = np.unique(pairs[order], return_index=True)
    return np.sort(order[first])


def _by_value(
    inter: RawTable,
    rows: np.ndarray,
    side: dict[str, RawTable],
    field: str,
    text: str,
    where: str,
) -> tuple[np.ndarray, dict[str, RawTable]]:
    """Rows of interactions, users and items whose `field` lies in the intervals."""
    intervals = parse_intervals(text, where)
    tables = {"inter": inter}
    tables.update((name, side[name]) for name in ("user", "item") if name in side)
    kinds = {name: kind for table in tables.values() for name, kind in table.types.items()}
    if kinds.get(field) != "float":
        floats = [name for name, kind in kinds.items() if kind == "float"]
        found = f"is a {kinds[field]} field" if field in kinds else "is not a loaded field"
        raise ValueError(
            f"{where}: {field!r} {found}; float fields that can be filtered: "
            f"{', '.join(floats) or 'none is loaded'}{did_you_mean(field, floats)}"
        )
    for name, table in tables.items():
        if field not in table.columns:
            continue
        inside = within(table.columns[field].values, intervals)
        if name == "inter":
            rows = rows[inside[rows]]
            _check(rows, where, f"nothing lies in {text}")
        elif not inside.any():
            raise ValueError(f"{where} leaves no row of {table.where}; loosen or remove it")
        else:
            side[name] = table.take(np.flatnonzero(inside))
    return rows, side


def _only_known(inter: RawTable, rows: np.ndarray, field: str, side: RawTable) -> np.ndarray:
    """Rows whose user (or item) has a row in the side table."""
    column, known_column = inter.columns[field], side.columns[field]
    assert column.words is not None and known_column.words is not None
    known = set(known_column.words[known_column.values].tolist())
    is_known = np.fromiter((w in known for w in column.words), bool, len(column.words))
    return rows[is_known[column.values[rows]]]


def _by_count(
    inter: RawTable,
    rows: np.ndarray,
    side: dict[str, RawTable],
    sides: dict[str, tuple[str, str]],
    left_out: LeftOut,
) -> tuple[np.ndarray, dict[str, RawTable]]:
    """Drop users and items with too few or too many interactions until all that are left fit."""
    active = {}
    for name, (field, text) in sides.items():
        intervals = parse_intervals(text, f"data.filter.{name}_inter_num")
        if not holds_everything(intervals):
            active[name] = (field, intervals)
    if not active:
        return rows, side
    counted = {name: inter.columns[field] for name, (field, _) in active.items()}
    keeps = {}
    while True:
        stay = np.ones(len(rows), dtype=bool)
        for name, (_, intervals) in active.items():
            column = counted[name]
            assert column.words is not None
            counts = np.bincount(column.values[rows], minlength=len(column.words))
            keeps[name] = within(counts, intervals)
            stay &= keeps[name][column.values[rows]]
            left_out.count(f"data.filter.{name}_inter_num", int(stay.sum()))
        if stay.all():
            break
        rows = rows[stay]
        option = " and ".join(f"data.filter.{name}_inter_num" for name in active)
        _check(rows, option, "no users and items with so many interactions of each other remain")
    # Side rows of ids that no longer count: those without interactions go unless 0 is allowed.
    for name, (field, _) in active.items():
        if name not in side:
            continue
        words, keep = counted[name].words, keeps[name]
        assert words is not None
        fits = dict(zip(words.tolist(), keep.tolist()))
        zero_fits = bool(within(np.array([0]), active[name][1])[0])
        ids = side[name].columns[field]
        assert ids.words is not None
        stays = np.fromiter((fits.get(w, zero_fits) for w in ids.words), bool, len(ids.words))
        side[name] = side[name].take(np.flatnonzero(stays[ids.values]))
    return rows, side


def within(values: np.ndarray, intervals: list[Interval]) -> np.ndarray:
    """bool mask: values that lie in at least one of the intervals."""
    return np.logical_or.reduce([interval.holds(values) for interval in intervals])


def holds_everything(intervals: list[Interval]) -> bool:
    """True when no count (0 or more) can fall outside, so that counting can be skipped."""
    return any(
        (i.low < 0 or (i.low == 0 and i.low_closed)) and math.isinf(i.high) for i in intervals
    )
