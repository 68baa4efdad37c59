"""Filters on coded columns of any length: which rows stay. As data/filters.py, in passes.

Columns hold codes of users and items by first appearance (from 1), and numbers.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.intervals import parse_intervals
from shoal.config.schema import DataSection
from shoal.data.filters import LeftOut, holds_everything, within
from shoal.data.prepared.partition import by_user, chunks, count_ids

logger = logging.getLogger(__name__)


def looks_at_all(config: DataSection) -> list[str]:
    """The filters that cannot judge rows which come later without those before."""
    section, found = config.filter, []
    if section.duplicates is not None:
        found.append("data.filter.duplicates")
    for name in ("user_inter_num", "item_inter_num"):
        if not holds_everything(parse_intervals(getattr(section, name))):
            found.append(f"data.filter.{name}")
    return found


def kept_rows(
    columns: dict[str, np.ndarray],
    sizes: dict[str, int],
    config: DataSection,
    memory: int,
    scratch: Path,
    of_sides: set[str],
    has_row: dict[str, np.ndarray],
) -> tuple[np.ndarray | None, dict[str, int]]:
    """Which rows the filters keep, bool [rows], None: all; and how many each leaves out.

    sizes: codes of users and items.

    of_sides: columns of side tables, which were filtered by themselves; has_row: field -> which
    codes a side table has.
    """
    rows, fields = len(columns[config.fields.user]), config.fields
    keep = np.ones(rows, dtype=bool)
    left_out = LeftOut(rows, {})
    if config.filter.duplicates is not None:
        _once(keep, columns, sizes, config, memory, scratch)
        left_out.count("data.filter.duplicates", np.count_nonzero(keep))
    for name, text in config.filter.values.items():
        if name in of_sides and name not in columns:
            continue
        _by_value(keep, columns, name, text, (fields.user, fields.item))
        left_out.count(f"data.filter.values.{name}", np.count_nonzero(keep))
    for name, found in has_row.items() if config.filter.by_user_or_item else ():
        for part in chunks(rows):
            keep[part] &= found[columns[name][part]]
        _check(keep, "data.filter.by_user_or_item", f"no {name} is in both files")
        left_out.count("data.filter.by_user_or_item", np.count_nonzero(keep))
    _by_count(keep, columns, sizes, config, left_out)
    if left_out.rows == rows:
        return None, {}
    logger.info("filters keep %d of %d interactions", left_out.rows, rows)
    return keep, left_out.by_key


def _check(keep: np.ndarray, option: str, why: str) -> None:
    if not keep.any():
        raise ValueError(f"{option} leaves no interactions ({why}); loosen or remove it")


def _once(
    keep: np.ndarray,
    columns: dict[str, np.ndarray],
    sizes: dict[str, int],
    config: DataSection,
    memory: int,
    scratch: Path,
) -> None:
    """Of repeated (user, item) pairs the first or last stays, by time where there is time."""
    user, item, time = config.fields.user, config.fields.item, config.fields.time
    wanted = {name: columns[name] for name in (user, item, time) if name in columns}
    counts = count_ids(columns[user], sizes[user])
    for _, part in by_user(wanted, user, counts, memory, scratch):
        order = np.arange(len(part["row"]))
        if time in part:
            order = np.argsort(part[time], kind="stable")
        if config.filter.duplicates == "last":
            order = order[::-1]
        pairs = part[user].astype(np.int64) * sizes[item] + part[item]
        _, first = np.unique(pairs[order], return_index=True)
        keep[part["row"]] = False
        keep[part["row"][order[first]]] = True


def _by_value(
    keep: np.ndarray, columns: dict[str, np.ndarray], name: str, text: str, ids: tuple[str, str]
) -> None:
    where = f"data.filter.values.{name}"
    intervals = parse_intervals(text, where)
    if name not in columns or name in ids:
        floats = [one for one in columns if one not in ids]
        raise ValueError(
            f"{where}: {name!r} is not a loaded float field; those that can be filtered: "
            f"{', '.join(floats) or 'none is loaded'}{did_you_mean(name, floats)}"
        )
    for part in chunks(len(keep)):
        keep[part] &= within(columns[name][part], intervals)
    _check(keep, where, f"nothing lies in {text}")


def _by_count(
    keep: np.ndarray,
    columns: dict[str, np.ndarray],
    sizes: dict[str, int],
    config: DataSection,
    left_out: LeftOut,
) -> None:
    """Drop users and items with too few or too many interactions until all that are left fit."""
    section = config.filter
    active = []
    for side, text in (("user", section.user_inter_num), ("item", section.item_inter_num)):
        intervals = parse_intervals(text, f"data.filter.{side}_inter_num")
        if not holds_everything(intervals):
            active.append((side, getattr(config.fields, side), intervals))
    changed = bool(active)
    while changed:
        fits = [
            (side, columns[name], within(count_ids(columns[name], sizes[name], keep), intervals))
            for side, name, intervals in active
        ]
        before = left_out.rows
        for side, column, fit in fits:
            for part in chunks(len(keep)):
                keep[part] &= fit[column[part]]
            left_out.count(f"data.filter.{side}_inter_num", np.count_nonzero(keep))
        changed = left_out.rows < before
        option = " and ".join(f"data.filter.{side}_inter_num" for side, _, _ in active)
        _check(keep, option, "no users and items with so many interactions of each other remain")
