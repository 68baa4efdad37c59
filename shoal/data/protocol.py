"""The protocol of a run: what is tested, what validates, which items are ranked.

What a config leaves to `auto` is decided here from the data alone, so that every model that learns
from it, on every rank, is judged by the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.schema import Config, DataSection, EvalSection, SplitSection
from shoal.data.dataset import Dataset
from shoal.data.split import AUTO, decide_split, shown_time

DECIDED = ("data.split.by", "data.split.order", "eval.repeatable")  # the keys that may be auto
# Items are taken again where at least this share of events is of a pair that was there before.
SHARE_AGAIN = 0.05
COUNTED_ROWS = 1 << 24  # leading rows in which repeated events are counted, in bounded memory


def takes_items_again(dataset: Dataset) -> bool:
    """Whether users of a data set take the same items again and again.

    A row that is there twice, at the same time, is one event. Where rows have no times a pair that
    comes again may be a mistake of the file; only in a file whose order counts it is an event.
    """
    is_ordered = dataset.split is not None and dataset.split.order == "file"
    if dataset.time_field is None and not is_ordered:
        return False
    if dataset.counted().repeated < SHARE_AGAIN * dataset.num_inter:
        return False
    rows = slice(0, COUNTED_ROWS)
    users, items = (dataset.flat(name)[rows] for name in (dataset.user_field, dataset.item_field))
    pairs = users.astype(np.int64) * dataset.num_items + items
    events = len(pairs)
    if dataset.time_field is not None:
        times = dataset.flat(dataset.time_field)[rows]
        order = np.lexsort((times, pairs))
        pairs, times = pairs[order], times[order]
        is_other = (np.diff(pairs) != 0) | (np.diff(times) != 0)
        events = 1 + int(is_other.sum())
    again = events - len(np.unique(pairs))
    return bool(again >= SHARE_AGAIN * events)


def decide(config: Config, dataset: Dataset) -> Config:
    """The config with what the data decides in place of `auto`; a config without is as it was."""
    split, repeatable = dataset.split, config.eval.repeatable
    assert split is not None, "a data set that is loaded by a config is split by it"
    if repeatable == AUTO:
        repeatable = split.by == "sessions" or takes_items_again(dataset)
    data = config.data.model_copy(update={"split": split})
    section = config.eval.model_copy(update={"repeatable": repeatable})
    return config.model_copy(update={"data": data, "eval": section})


def decide_log(config: Config) -> Config:
    """The config for a click log, whose files are its parts and which ranks no items."""
    split = decide_split(config.data.split, timed=False)
    repeatable = False if config.eval.repeatable == AUTO else config.eval.repeatable
    data = config.data.model_copy(update={"split": split})
    section = config.eval.model_copy(update={"repeatable": repeatable})
    return config.model_copy(update={"data": data, "eval": section})


@dataclass(frozen=True)
class Protocol:
    """What is tested, what validates, and which items a test interaction is ranked among."""

    tested: str  # "newest item of every user"; what is short enough for a table
    validated: str  # "the one before validates"
    ranked: str  # "all items ranked, seen ones left out"
    candidates: str = ""  # what is ranked, for a table; empty: all items but seen ones
    time: str | None = None  # the column of the time, where it decides

    @property
    def title(self) -> str:
        """A few words for a table."""
        return f"{self.tested}, {self.candidates}" if self.candidates else self.tested

    def __str__(self) -> str:
        times = "" if self.time is None else f" (times in {self.time!r})"
        return f"{self.tested} tested, {self.validated}{times}; {self.ranked}"


def protocol_of(data: DataSection, section: EvalSection) -> Protocol | None:
    """The protocol of interactions, in words; None where it is not decided yet.

    >>> split = decide_split(SplitSection(), timed=True)
    >>> data = DataSection(split=split)
    >>> str(protocol_of(data, EvalSection(repeatable=False)))[:53]
    'newest item of every user tested, the one before vali'
    """
    split = data.split
    if AUTO in (split.by, split.order, section.repeatable):
        return None
    tested, validated, is_timed = _parts(data)
    modes = {section.mode} if isinstance(section.mode, str) else set(section.mode.values())
    candidates = ", ".join(sorted(modes - {"full", "labeled"}))
    if section.repeatable and "full" in modes:
        candidates = "seen items again"
    time = data.fields.time if is_timed else None
    return Protocol(tested, validated, _ranked(section), candidates, time)


def click_log_protocol(sources: dict[str, str]) -> str:
    """The protocol of a click log in words; sources: where the samples of each split come from.

    >>> click_log_protocol({"train": "days", "test": "new"})
    'rows of new tested, nothing validates'
    """
    tested = f"rows of {sources['test']} tested" if "test" in sources else "nothing is tested"
    valid = sources.get("valid")
    return f"{tested}, {'nothing validates' if valid is None else f'those of {valid} validate'}"


def _parts(data: DataSection) -> tuple[str, str, bool]:
    """What is tested, what validates, and whether times decide."""
    split, files = data.split, data.files or {}
    if data.presplit is not None or {"train", "valid"} <= files.keys():
        return "rows of the test file", "those of the valid file validate", False
    if split.by == "sessions":
        return _sessions(split, has_test_file="train" in files)
    if "train" in files:
        return "rows of the test file", _cut_from_train(split), split.order == "time"
    if split.at is not None:
        *valid, test = map(shown_time, split.moments)
        validated = f"those from {valid[0]} on validate" if valid else "nothing validates"
        return f"rows from {test} on", validated, True
    whose = "every user" if split.group_by == "user" else "all rows"
    parts = (_left_out if split.by == "leave_one_out" else _shares)(split, whose)
    return *parts, split.order == "time"


def _left_out(split: SplitSection, whose: str) -> tuple[str, str]:
    which = {"time": "newest item", "file": "last item in the file", "random": "a random item"}
    tested = f"{which[split.order]} of {whose}"
    before = "another one" if split.order == "random" else "the one before"
    if split.leave == "test_only":
        return tested, "nothing validates"
    if split.leave == "valid_only":
        return "nothing", f"{tested} validates"
    return tested, f"{before} validates"


def _cut_from_train(split: SplitSection) -> str:
    """What validates where the files have a train and a test part."""
    whose = "of every user's other rows"
    if split.by == "leave_one_out":
        which = {"time": "the newest", "file": "the last", "random": "a random one"}[split.order]
        return "nothing validates" if split.leave == "test_only" else f"{which} {whose} validates"
    if not split.ratio[1]:
        return "nothing validates"
    which = {"time": "the newest", "file": "the last", "random": "a random"}[split.order]
    return f"{which} {100 * split.ratio[1] / sum(split.ratio[:2]):.3g} % {whose} validate"


def _sessions(split: SplitSection, has_test_file: bool) -> tuple[str, str, bool]:
    """What is tested and validated of sessions, and whether times decide."""
    find = "every item but the first" if split.targets == "all" else "the last item"
    if split.at is not None:
        *valid, test = map(shown_time, split.moments)
        validated = f"those from {valid[0]} on validate" if valid else "nothing validates"
        return f"{find} of sessions that end from {test} on", validated, True
    which = {"time": "newest", "file": "last", "random": "random"}[split.order]
    total = sum(split.ratio[: 2 if has_test_file else 3])
    valid_share, test_share = (f"{100 * part / total:.3g} %" for part in split.ratio[1:])
    tested = "those of the test file" if has_test_file else f"the {which} {test_share}"
    validated = f"the {which} {valid_share} of the others validate"
    return f"{find} of sessions, {tested}", validated, split.order == "time"


def _shares(split: SplitSection, whose: str) -> tuple[str, str]:
    total = sum(split.ratio)
    _, valid, test = (f"{100 * part / total:.3g} %" for part in split.ratio)
    which = {"time": "newest", "file": "last", "random": "random"}[split.order]
    rest = f"another {valid}" if split.order == "random" else f"the {valid} before"
    tested = f"{which} {test} of {whose}" if split.ratio[2] else "nothing"
    return tested, f"{rest} validate" if split.ratio[1] else "nothing validates"


def _ranked(section: EvalSection) -> str:
    def words(mode: str) -> str:
        if mode == "labeled":
            return "scores beside labels"
        if mode == "full":
            return "all items ranked, seen ones " + ("too" if section.repeatable else "left out")
        manner = "uniformly" if mode.startswith("uni") else "by popularity"
        return f"ranked among {mode[3:]} items drawn {manner}"

    if isinstance(section.mode, str):
        return words(section.mode)
    valid, test = section.mode["valid"], section.mode["test"]
    return words(test) if valid == test else f"test: {words(test)}, valid: {words(valid)}"


def values_of(config: Config) -> dict[str, Any]:
    """The keys that may be auto, with their values."""
    split = config.data.split
    return dict(zip(DECIDED, (split.by, split.order, config.eval.repeatable)))
