"""The request log: what a pipeline showed to whom, and what came of it.

A folder of files of JSON lines, one line for each answered question:

    request, time, pipeline     which question, when (seconds since 1970), by which pipeline
    user, history, context      who asked
    items, scores               what was shown, in the order shown
    propensity                  of each item at its place, given the items above it
    place_propensity            of each item at its place, whoever is above it
    sources, fallbacks          which sources brought each item; which stages failed

Outcomes come from the shop: a table with `request`, `item` and `label`. What was shown and has no
row there has the label 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from shoal.config.errors import did_you_mean
from shoal.data.bounded_files import check_line, open_text
from shoal.data.ids import word_of
from shoal.serving.pipeline.table_rows import read_rows

log = logging.getLogger("shoal")
FILES = "requests-*.jsonl"
OUTCOME_COLUMNS = ("request", "item", "label")
Name = str | int | float
Chance = Annotated[float, Field(gt=0, le=1)]


class LogEntry(BaseModel):
    """A line of the log, as it is read. Keys of newer versions are passed over."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    request: Annotated[str, Field(min_length=1, max_length=200)]
    time: float
    pipeline: str = ""
    user: Name | None = None
    history: list[Name] | None = None
    context: dict[str, Any] = {}
    items: list[Name]
    scores: list[float | None] | None = None
    propensity: list[Chance | None] | None = None
    place_propensity: list[Chance | None] | None = None


@dataclass(frozen=True)
class LoggedRequest:
    """A question that was answered, and what was shown.

    items             words [n], in the order shown
    scores            float64 [n]; nan: nothing scored the item
    propensity        float64 [n]: the chance with which the item was drawn for its place, given
                      the items above it; nan: not known
    place_propensity  float64 [n]: the chance that it stands at its place, whoever is above it; nan:
                      not known
    """

    request: str
    time: float
    pipeline: str
    user: Name | None
    history: Sequence[Name] | None
    context: dict[str, Any]
    items: list[str]
    scores: np.ndarray
    propensity: np.ndarray
    place_propensity: np.ndarray

    def __len__(self) -> int:
        return len(self.items)


def log_files(log_path: str | Path) -> list[Path]:
    """The files of a log in the order of their names; the log may be one file."""
    path = Path(log_path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"there is no request log {path}")
    files = sorted(path.glob(FILES))
    if not files:
        raise ValueError(f"{path} holds no file {FILES}, as `log:` of a pipeline writes them")
    return files


def read_log(log_path: str | Path) -> Iterator[LoggedRequest]:
    """The requests of a log, one after the other. A last line without its end was cut off: it is
    left out, and a warning names it."""
    seen: dict[str, str] = {}
    for path in log_files(log_path):
        with open_text(path) as lines:
            for number, line in enumerate(lines, start=1):
                check_line(path, len(line))
                place = f"{path}:{number}"
                if not line.endswith(b"\n"):
                    log.warning("%s: the line has no end and is left out", place)
                elif line.strip():
                    entry = _request(place, line)
                    if entry.request in seen:
                        raise ValueError(
                            f"{place}: the request {entry.request!r} stands at "
                            f"{seen[entry.request]} too; was a file copied into the folder twice?"
                        )
                    seen[entry.request] = place
                    yield entry


def _request(place: str, line: bytes) -> LoggedRequest:
    """The request of a line."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"{place}: this is no JSON: {error}") from None
    try:
        entry = LogEntry.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        keys = ".".join(str(key) for key in first["loc"]) or "the line"
        raise ValueError(f"{place}: {keys}: {first['msg']}") from None
    items = [word_of(item) for item in entry.items]
    if len(set(items)) < len(items):
        raise ValueError(f"{place}: items: one of them was shown twice")
    columns = {}
    for name in ("scores", "propensity", "place_propensity"):
        values = getattr(entry, name) or [None] * len(items)
        if len(values) != len(items):
            raise ValueError(f"{place}: {name} has {len(values)} values for {len(items)} items")
        columns[name] = np.array([np.nan if one is None else one for one in values], np.float64)
    # Nothing is above the first place.
    if len(items) and np.isnan(columns["place_propensity"][0]):
        columns["place_propensity"][0] = columns["propensity"][0]
    return LoggedRequest(
        request=entry.request,
        time=entry.time,
        pipeline=entry.pipeline,
        user=entry.user,
        history=entry.history,
        context=entry.context,
        items=items,
        **columns,
    )


@dataclass
class Outcomes:
    """Labels of shown items, by request and item; what has none is 0.

    file    the table, for messages
    labels  (request, item) -> label
    """

    file: Path
    labels: dict[tuple[str, str], float]
    _matched: int = field(default=0, init=False)

    def of(self, request: LoggedRequest) -> np.ndarray:
        """The labels of the items of a request, float64 [n]."""
        values = np.zeros(len(request))
        for place, item in enumerate(request.items):
            label = self.labels.get((request.request, item))
            if label is not None:
                values[place] = label
                self._matched += 1
        return values

    def check(self) -> None:
        """Refuse outcomes of which no shown item has one, and warn of the others; called when every
        request of the log has been asked for, once."""
        unmatched = len(self.labels) - self._matched
        if self.labels and not self._matched:
            request, item = next(iter(self.labels))
            raise ValueError(
                f"{self.file}: no row is of an item that the log shows; the first one is of the "
                f"request {request!r} and the item {item!r}. Are these ids those of the log?"
            )
        if unmatched > 0:
            log.warning(
                "%s: %d of %d rows are of items that the log does not show, and do not count",
                self.file,
                unmatched,
                len(self.labels),
            )


def read_outcomes(file: str | Path) -> Outcomes:
    """The labels of a table with the columns request, item and label."""
    import polars as pl

    path = Path(file)
    if not path.is_file():
        raise ValueError(f"--outcomes: there is no file {path}")
    frame = read_rows(path)
    for name in OUTCOME_COLUMNS:
        if name not in frame.columns:
            raise ValueError(
                f"{path} has no column {name!r}; it has {', '.join(frame.columns)}"
                f"{did_you_mean(name, frame.columns)}"
            )
    labels = frame["label"].cast(pl.Float64, strict=False)
    odd = np.flatnonzero(~np.isfinite(labels.fill_null(np.nan).to_numpy()))
    if len(odd):
        raise ValueError(
            f"{path}: the label of row {odd[0] + 1} is {frame['label'][int(odd[0])]!r}; labels are "
            "numbers"
        )
    pairs = [
        (word_of(request), word_of(item))
        for request, item in zip(frame["request"].to_list(), frame["item"].to_list())
    ]
    table = dict(zip(pairs, labels.to_list()))
    if len(table) < len(pairs):
        request, item = next(first for first, second in pairwise(sorted(pairs)) if first == second)
        raise ValueError(
            f"{path}: two rows are of the request {request!r} and the item {item!r}; give one row "
            "for each, such as the sum of their labels"
        )
    return Outcomes(path, table)
