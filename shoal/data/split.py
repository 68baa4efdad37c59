"""Splits: which interactions train, validate and test. Vectorised, decided by the input alone.

Within a group (a user, or everything) the rows are put in order and cut: the head trains, the next
part validates, the tail tests.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import torch

from shoal.config.schema import SplitSection
from shoal.data.dataset import SPLITS

VERBS = ("train", "validate", "test")  # what the rows of a split are for

AUTO = "auto"


def decide_split(split: SplitSection, timed: bool) -> SplitSection:
    """The split without `auto`; timed: interactions have a time.

    >>> found = decide_split(SplitSection(), timed=True)
    >>> found.by, found.order
    ('leave_one_out', 'time')
    >>> found = decide_split(SplitSection(group_by="none"), timed=False)
    >>> found.by, found.order
    ('ratio', 'random')
    """
    by, order = split.by, split.order
    if order == AUTO:
        order = "time" if timed else "random"
    if by == AUTO:
        ordered = order != "random" and split.group_by == "user" and split.at is None
        by = "leave_one_out" if ordered else "ratio"
    return split.model_copy(update={"by": by, "order": order})


def refuse_keys_of_sessions(split: SplitSection) -> None:
    """Refuse what says how sessions are split, where nothing is split by session."""
    is_set = {"pause": split.pause is not None, "targets": split.targets != "all"}
    for key in (key for key, value in is_set.items() if value and split.by != "sessions"):
        raise ValueError(
            f"data.split.{key} is for data.split.by=sessions, and that is {split.by}; set it, or "
            f"leave out data.split.{key}"
        )


def split_of_rows(
    config: SplitSection, seed: int, users: np.ndarray, times: np.ndarray | None
) -> np.ndarray:
    """The split of each row, 0, 1 or 2: uint8 [rows]; users: int [rows], times: float64 [rows]."""
    config, rows = decide_split(config, times is not None), len(users)
    if config.by == "sessions":
        raise ValueError(
            "data.split.by is sessions, and a prepared folder is split by rows: train from the "
            "files themselves (data.files, data.name), or choose ratio or leave_one_out"
        )
    if (config.order == "time" or config.at is not None) and times is None:
        key = "data.split.at" if config.at is not None else "data.split.order: time"
        raise ValueError(
            f"{key} needs a time column, but none is loaded; name it in data.fields.time and load "
            "it (data.load.inter), or set data.split.order: file (the order of the rows counts) "
            "or random"
        )
    if config.at is not None:
        assert times is not None
        return splits_by_time(config.moments, times)
    if config.order == "time":
        assert times is not None
        order = np.argsort(times, kind="stable")
    elif config.order == "file":
        order = np.arange(rows)
    else:
        # The permutation that RecBole draws: a seed gives the same split here as there.
        generator = torch.Generator().manual_seed(seed if config.seed is None else config.seed)
        order = torch.randperm(rows, generator=generator).numpy()

    if config.by == "leave_one_out" and config.group_by != "user":
        raise ValueError(
            "data.split.by: leave_one_out leaves out one interaction per user; "
            "set data.split.group_by: user, or data.split.by: ratio"
        )
    sizes = np.array([rows])
    if config.group_by == "user":
        order = order[np.argsort(users[order], kind="stable")]
        sizes = np.bincount(users)
    splits = np.empty(rows, dtype=np.uint8)
    splits[order] = splits_in_order(config, sizes)
    return splits


def cut_valid(
    parts: np.ndarray, config: SplitSection, seed: int, users: np.ndarray, times: np.ndarray | None
) -> np.ndarray:
    """The split of each row of files with a test part: validation is cut from those that train.

    parts: uint8 [rows], 0 and 2. What data.split would test stays in training.
    """
    train = np.flatnonzero(parts == 0)
    share, valid_share, _ = config.ratio
    leave = "test_only" if config.leave == "test_only" else "valid_only"
    section = config.model_copy(update={"ratio": [share, valid_share, 0.0], "leave": leave})
    cut = split_of_rows(section, seed, users[train], None if times is None else times[train])
    splits = parts.astype(np.uint8)
    splits[train] = np.where(cut == 1, 1, 0)
    return splits


def splits_by_time(moments: list[float], times: np.ndarray) -> np.ndarray:
    """The split of each row: before the first moment 0, from the last on 2, between them 1.

    ValueError where a part has no row.

    >>> splits_by_time([10.0, 20.0], np.array([9.0, 20.0, 10.0, 19.5]))
    array([0, 2, 1, 1], dtype=uint8)
    """
    kinds = np.array([0, 2] if len(moments) == 1 else [0, 1, 2], dtype=np.uint8)
    splits = kinds[np.searchsorted(moments, times, side="right")]
    for kind in kinds:
        if not (splits == kind).any():
            dates = ", ".join(map(shown_time, moments))
            span = "there are no rows"
            if len(times):
                span = f"times run from {shown_time(times.min())} to {shown_time(times.max())}"
            raise ValueError(
                f"data.split.at: {dates}: no interaction is left to {VERBS[kind]} on; {span}: name "
                "dates within (times count as seconds since 1970)"
            )
    return splits


def shown_time(seconds: float) -> str:
    """A moment as people read it; the number itself where it is no date.

    >>> shown_time(1704067200.0), shown_time(1704110400.0), shown_time(5e15)
    ('2024-01-01', '2024-01-01T12:00:00', '5e+15')
    """
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.10g}"
    return moment.isoformat().removesuffix("T00:00:00")


def splits_in_order(config: SplitSection, sizes: np.ndarray) -> np.ndarray:
    """The split of every row of groups of so many rows, one after the other: uint8 [sum of sizes].

    >>> splits_in_order(SplitSection(by="leave_one_out"), np.array([3, 0, 1]))
    array([0, 1, 2, 0], dtype=uint8)
    """
    if config.by == "ratio":
        valid, test = ratio_counts(sizes, config.ratio)
    else:
        valid, test = leave_counts(sizes, config.leave)
    kinds = np.tile(np.arange(len(SPLITS), dtype=np.uint8), len(sizes))
    return np.repeat(kinds, np.stack([sizes - valid - test, valid, test], 1).reshape(-1))


def rows_by_split(split_of_row: np.ndarray) -> dict[str, np.ndarray]:
    """split -> ascending row numbers, from each row's split number 0, 1 or 2."""
    return {split: np.flatnonzero(split_of_row == i) for i, split in enumerate(SPLITS)}


def ratio_counts(sizes: np.ndarray, ratio: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that validate and test, per group; the rest trains.

    Each part is rounded down. A part with a share above zero that rounds to nothing gets one row as
    long as training keeps at least one: test is served first, then validation.
    """
    if min(ratio) < 0 or not all(map(math.isfinite, ratio)) or sum(ratio) <= 0:
        raise ValueError(
            f"data.split.ratio: {ratio}; give three finite numbers, none negative and not all "
            "zero, for train, valid and test, e.g. [0.8, 0.1, 0.1]"
        )
    valid_share = ratio[1] / sum(ratio) * sizes
    test_share = ratio[2] / sum(ratio) * sizes
    valid, test = valid_share.astype(np.int64), test_share.astype(np.int64)
    train = sizes - valid - test
    for share, count in ((test_share, test), (valid_share, valid)):
        grant = (train > 1) & (share > 0) & (share < 1)
        count += grant
        train = train - grant
    return valid, test


def leave_counts(sizes: np.ndarray, leave: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that validate and test, per user: one each, but the first row always trains.

    With one interaction it trains; with two, the second tests (or validates, for valid_only).
    """
    test = (sizes >= 2).astype(np.int64)
    none = np.zeros_like(test)
    if leave == "valid_only":
        return test, none
    if leave == "test_only":
        return none, test
    return (sizes >= 3).astype(np.int64), test
