"""Splits by session: whole histories train, validate or test, by when they end.

A session that is tested is met anew: nothing of it trains. Each of its items but the first is to
find from those before it, so it becomes a history for each of these prefixes:

    session s   a b c d      s#1   a          find b
                             s#2   a b        find c
                             s     a b c      find d

What stands before an item to find is context: rows of no split, which evaluation alone reads.
data.split.targets=last keeps the last line of these.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch

from shoal.config.data_section import FilterSection
from shoal.config.schema import DataSection, SplitSection
from shoal.data.column_store import EVERYTHING
from shoal.data.filters import kept_rows
from shoal.data.raw_columns import Raw, RawColumn, RawTable
from shoal.data.split import decide_split, ratio_counts, splits_by_time

logger = logging.getLogger(__name__)

CONTEXT = 3  # in place of a split's number: rows before an item to find
LONGEST_PREFIX = 200  # items before an item to find; of those before, the newest


@dataclass(frozen=True)
class _Sessions:
    """Rows in the order of sessions, and within each in the order of time (or of the file).

    Session i is order[offsets[i]:offsets[i + 1]].
    """

    order: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sessions: np.ndarray, times: np.ndarray | None) -> _Sessions:
        rows = np.arange(len(sessions))
        order = np.lexsort((rows if times is None else times, sessions))
        return cls(order, np.searchsorted(sessions[order], np.arange(_size(sessions) + 1)))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


def split_sessions(raw: Raw, config: DataSection, seed: int) -> tuple[Raw, DataSection]:
    """The interactions with `parts` by session, those to test as prefixes; what is left to filter.

    Filters count what the files have, not the prefixes, so they choose rows here.
    """
    _check(raw, config)
    fields, left_out = config.fields, dict(raw.left_out)
    inter, parts = raw.inter, raw.parts
    if config.split.pause is not None:
        inter = _with_pauses(inter, config, config.split.pause)
    keep, left_out_by_filters = _kept(inter, raw, config)
    left_out |= left_out_by_filters
    if keep is not None:
        inter, parts = inter.take(np.flatnonzero(keep)), None if parts is None else parts[keep]
    sessions, times = _dense(inter.columns[fields.user]), _times(inter, config)
    parts = _parts(sessions, times, parts, config.split, seed)
    # What no earlier session has cannot be found, and a session of one item has nothing to find.
    items = inter.columns[fields.item].values
    is_usable = parts == 0
    for part in (1, 2):
        is_earlier_item = np.zeros(_size(items), dtype=bool)
        is_earlier_item[items[parts < part]] = True
        is_usable |= (parts == part) & is_earlier_item[items]
    lengths = np.bincount(sessions[is_usable], minlength=_size(sessions))
    is_usable &= (parts == 0) | (lengths[sessions] > 1)
    if not is_usable.all():
        left_out["data.split.by"] = int((~is_usable).sum())
        inter = inter.take(np.flatnonzero(is_usable))
        sessions, parts = sessions[is_usable], parts[is_usable]
        times = None if times is None else times[is_usable]
    numbers = [len(np.unique(sessions[parts == part])) for part in range(3)]
    logger.info("sessions: %d train, %d validate, %d test", *numbers)
    inter, parts = _with_prefixes(inter, parts, sessions, times, config)
    chosen = FilterSection(by_user_or_item=config.filter.by_user_or_item)
    kept = config.model_copy(update={"filter": chosen})
    return replace(raw, inter=inter, parts=parts, left_out=left_out, cuts_valid=False), kept


def _check(raw: Raw, config: DataSection) -> None:
    if raw.parts is not None and not raw.cuts_valid:
        raise ValueError(
            "data.split.by is sessions, and the files are train, valid and test parts already; "
            "leave it out, or leave out the valid part (data.files)"
        )
    if "user" in raw.side:
        raise ValueError(
            "data.split.by is sessions, and a table of users is loaded, which has no row for a "
            "session; leave it out (data.files, data.load)"
        )
    if config.split.by != "sessions":
        raise AssertionError("split_sessions is for data.split.by=sessions")


def _with_pauses(inter: RawTable, config: DataSection, minutes: float) -> RawTable:
    """Interactions whose users are sessions: a pause of so many minutes begins another one."""
    times = _times(inter, config)
    if times is None:
        raise ValueError(
            "data.split.pause needs a time column, but none is loaded; name it in data.fields.time"
        )
    column = inter.columns[config.fields.user]
    assert column.words is not None
    order = np.lexsort((times, column.values))
    users = column.values[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (np.diff(users) != 0) | (np.diff(times[order]) > 60 * minutes)
    numbers = np.cumsum(is_new) - 1
    owners = users[is_new]
    nth = np.arange(len(owners)) - np.searchsorted(owners, owners) + 1  # of its user's sessions
    words = np.empty(len(owners), dtype=object)
    names = column.words[owners].tolist()
    words[:] = [f"{name}/{number}" for name, number in zip(names, nth.tolist())]
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = numbers
    columns = {**inter.columns, config.fields.user: RawColumn(codes, words)}
    return RawTable(inter.where, inter.types, columns, inter.cells)


def _kept(
    inter: RawTable, raw: Raw, config: DataSection
) -> tuple[np.ndarray | None, dict[str, int]]:
    """Which rows the filters keep (None: all), and by filter how many they leave out."""
    if config.filter == FilterSection():
        return None, {}
    flat = {name: column for name, column in inter.columns.items() if column.offsets is None}
    of_sides = {name: kind for table in raw.side.values() for name, kind in table.types.items()}
    return kept_rows(
        columns={
            name: column.values if column.words is None else column.values + 1
            for name, column in flat.items()
        },
        sizes={
            name: len(column.words) + 1 for name, column in flat.items() if column.words is not None
        },
        config=config,
        of_sides=of_sides,
        has_row={},
        memory=EVERYTHING,
        scratch=None,
    )


def _times(inter: RawTable, config: DataSection) -> np.ndarray | None:
    """The time of each row; None where the order of the file counts."""
    column = inter.columns.get(config.fields.time)
    return None if column is None or config.split.order == "file" else column.values


def _dense(column: RawColumn) -> np.ndarray:
    """Sessions numbered from 0, as they first come."""
    _, first, codes = np.unique(column.values, return_index=True, return_inverse=True)
    places = np.empty(len(first), dtype=np.int64)
    places[np.argsort(first, kind="stable")] = np.arange(len(first))
    return places[codes]


def _size(codes: np.ndarray) -> int:
    return int(codes.max(initial=-1)) + 1


def _parts(
    sessions: np.ndarray,
    times: np.ndarray | None,
    parts: np.ndarray | None,
    split: SplitSection,
    seed: int,
) -> np.ndarray:
    """The split of each row, that of its session: 0, 1 or 2.

    parts: of files that have a test part; then valid sessions are cut from those that train.
    """
    num_sessions = _size(sessions)
    of_session = np.zeros(num_sessions, dtype=np.uint8)
    if parts is not None:
        of_session[sessions] = parts
    open_sessions = np.flatnonzero(of_session == 0)  # not in a test file
    ends = np.full(num_sessions, -np.inf)
    moments = np.arange(len(sessions), dtype=np.float64) if times is None else times
    np.maximum.at(ends, sessions, moments)
    if split.at is not None:
        if parts is not None or times is None:
            why = "the files have a test part" if parts is not None else "no time is loaded"
            raise ValueError(f"data.split.at cuts by time, and {why}; leave it out")
        return splits_by_time(split.moments, ends)[sessions]
    order_by = decide_split(split, times is not None).order
    if order_by == "time" and times is None:
        raise ValueError(
            "data.split.order: time needs a time column, but none is loaded; name it in "
            "data.fields.time and load it, or set data.split.order: file or random"
        )
    if order_by == "random":
        generator = torch.Generator().manual_seed(seed if split.seed is None else split.seed)
        order = torch.randperm(len(open_sessions), generator=generator).numpy()
    else:
        order = np.argsort(ends[open_sessions], kind="stable")
    train, valid_share, test_share = split.ratio
    ratio = [train, valid_share, test_share if parts is None else 0.0]
    valid, test = (int(count[0]) for count in ratio_counts(np.array([len(open_sessions)]), ratio))
    newest = open_sessions[order[::-1]]
    of_session[newest[:test]] = 2
    of_session[newest[test : test + valid]] = 1
    return of_session[sessions]


def _with_prefixes(
    inter: RawTable,
    parts: np.ndarray,
    sessions: np.ndarray,
    times: np.ndarray | None,
    config: DataSection,
) -> tuple[RawTable, np.ndarray]:
    """The rows, and behind them a copy of what stands before each further item to find."""
    held = np.flatnonzero(parts > 0)
    grouped = _Sessions.of(sessions[held], None if times is None else times[held])
    order, offsets, lengths = held[grouped.order], grouped.offsets, grouped.lengths
    # A session's own rows: the last one is to find, the others are context.
    is_last = np.zeros(len(order), dtype=bool)
    is_last[offsets[1:][lengths > 0] - 1] = True
    new_parts = parts.copy()
    new_parts[order[~is_last]] = CONTEXT
    if config.split.targets == "last":
        return inter, new_parts
    # The items between the first and the last of a session, as places in `order`.
    nth = np.arange(len(order)) - np.repeat(offsets[:-1], lengths)
    targets = np.flatnonzero((nth > 0) & ~is_last)
    before = np.minimum(nth[targets], LONGEST_PREFIX)
    ends = np.cumsum(before + 1)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - 1 - targets, before + 1)
    copies = order[places]
    is_target = np.zeros(len(copies), dtype=bool)
    is_target[ends - 1] = True
    copied_parts = np.where(is_target, parts[copies], CONTEXT).astype(parts.dtype)
    users = inter.columns[config.fields.user]
    assert users.words is not None
    names = users.words[users.values[order[targets]]].tolist()
    new_words = np.empty(len(targets), dtype=object)
    new_words[:] = [f"{name}#{number}" for name, number in zip(names, nth[targets].tolist())]
    twice = {*new_words.tolist()} & {*users.words.tolist()}
    if twice:
        raise ValueError(
            f"{inter.where}: {min(twice)!r} is a session, and the name of a prefix of another one; "
            "rename it"
        )
    table = inter.take(np.concatenate([np.arange(len(inter)), copies]))
    codes = table.columns[config.fields.user].values
    codes[len(inter) :] = len(users.words) + np.repeat(np.arange(len(targets)), before + 1)
    words = np.concatenate([users.words, new_words])
    columns = {**table.columns, config.fields.user: RawColumn(codes, words)}
    return replace(table, columns=columns), np.concatenate([new_parts, copied_parts])
