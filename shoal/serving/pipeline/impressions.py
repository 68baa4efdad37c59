"""Impressions: the request log as a table that click models train on, a row for each shown item.

request, time, user, item, position (from 1), propensity, score, weight, the columns of the context,
label
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.ids import word_of
from shoal.serving.bulk import parts_of
from shoal.serving.pipeline.request_log import LoggedRequest, Outcomes, read_log

BLOCK = 4096  # requests that are written together
COLUMNS = ("request", "time", "user", "item", "position", "propensity", "score", "weight", "label")
KNOWN_LATER = ("request", "propensity", "score", "weight")  # no features of a click


@dataclass(frozen=True)
class ImpressionTotals:
    """How much was written. labels: whether each is 0 or 1."""

    requests: int
    rows: int
    positive: int
    is_binary: bool


def write_impressions(
    log_path: str | Path, outcomes: Outcomes, output: str | Path, clip: float | None = None
) -> ImpressionTotals:
    """Write a row for each item that the log shows.

    clip: the largest weight; None: any. The log is read twice, so that it may be of any size.
    """
    kinds = _context_kinds(read_log(log_path))
    lists = [name for name, kind in kinds.items() if kind is list]
    if lists and Path(output).suffix == ".csv":
        raise ValueError(f"{lists[0]!r} of the context holds lists: write .parquet or .jsonl")
    totals = ImpressionTotals(0, 0, 0, True)
    block: list[LoggedRequest] = []
    with parts_of(output) as write:

        def flush() -> None:
            nonlocal totals
            columns = _columns(block, kinds, outcomes, clip)
            labels = columns["label"]
            totals = ImpressionTotals(
                totals.requests + len(block),
                totals.rows + len(labels),
                totals.positive + int((labels != 0).sum()),
                totals.is_binary and bool(np.isin(labels, (0.0, 1.0)).all()),
            )
            write(columns)
            block.clear()

        for request in read_log(log_path):
            block.append(request)
            if len(block) == BLOCK:
                flush()
        if block:
            flush()
        outcomes.check()
    return totals


def inverse_propensity(propensity: np.ndarray, clip: float | None) -> np.ndarray:
    """1 / propensity, at most `clip`; 1 where nothing was drawn.

    >>> inverse_propensity(np.array([0.5, np.nan, 0.01]), clip=20).tolist()
    [2.0, 1.0, 20.0]
    """
    weights = 1 / np.where(np.isnan(propensity), 1.0, propensity)
    return weights if clip is None else np.minimum(weights, clip)


def _context_kinds(requests: Iterable[LoggedRequest]) -> dict[str, type]:
    """Column of the context -> float where all its values are numbers, list of words, or text."""
    kinds: dict[str, type] = {}
    for request in requests:
        for name, value in request.context.items():
            if name in COLUMNS:
                raise ValueError(
                    f"the context of request {request.request!r} has a column {name!r}, which is "
                    "one of the impressions' own; rename it where the pipeline is asked"
                )
            if value is None:
                kinds.setdefault(name, type(None))
                continue
            kind: type = float if isinstance(value, int | float) else str
            if isinstance(value, list):
                kind = list
            earlier = kinds.get(name, kind)
            kinds[name] = kind if earlier in (kind, type(None)) else str
    return kinds


def _columns(
    requests: list[LoggedRequest], kinds: dict[str, type], outcomes: Outcomes, clip: float | None
) -> dict[str, Any]:
    """The shown items of requests as columns."""
    import polars as pl

    lengths = [len(request) for request in requests]
    rows = np.repeat(np.arange(len(requests)), lengths)

    def of_requests(values: list[Any], kind: Any) -> pl.Series:
        return pl.Series(values, dtype=kind).gather(rows)

    propensity = np.concatenate([request.propensity for request in requests])
    scores = np.concatenate([request.scores for request in requests])
    users = [None if request.user is None else word_of(request.user) for request in requests]
    items = [item for request in requests for item in request.items]
    columns: dict[str, Any] = {
        "request": of_requests([request.request for request in requests], pl.String),
        "time": of_requests([request.time for request in requests], pl.Float64),
        "user": of_requests(users, pl.String),
        "item": pl.Series(items, dtype=pl.String),
        "position": np.concatenate([np.arange(1, length + 1) for length in lengths]),
        "propensity": pl.Series(propensity, nan_to_null=True),
        "score": pl.Series(scores, nan_to_null=True),
        "weight": inverse_propensity(propensity, clip),
    }
    types: dict[type, Any] = {float: pl.Float64, list: pl.List(pl.String)}
    for name, kind in kinds.items():
        values = [_cell(request.context.get(name), kind) for request in requests]
        columns[name] = of_requests(values, types.get(kind, pl.String))
    columns["label"] = np.concatenate([outcomes.of(request) for request in requests])
    return columns


def _cell(value: Any, kind: type) -> Any:
    """A value of the context as its column holds it."""
    if value is None:
        return None
    if kind is float:
        return float(value)
    if kind is list:
        return [word_of(entry) for entry in value]
    return word_of(value)
