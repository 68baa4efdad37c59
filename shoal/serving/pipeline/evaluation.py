"""Evaluation of a pipeline by stage: what retrieval finds, what the ranker gains, what rules cost.

A stage is measured on the lists as they are behind it, in the order in which a question passes:

    retrieve NAME   what one source brings, without filters
    retrieve        the union of all sources, without filters
    seen, only, …   the union with the filters so far
    rank            the list that the click model makes of the union
    boost, …        the list behind each of the other rules
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from shoal.config.errors import did_you_mean
from shoal.serving.pipeline.candidates import Candidates
from shoal.serving.pipeline.pipeline import RANK, Pipeline
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.serving.pipeline.table_rows import read_rows
from shoal.training.metrics.base import Ranked
from shoal.training.metrics.collection import MetricSet

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("shoal")
CUTOFFS = (100, 500, 1_000)  # of the recall of retrieval
METRICS = ("recall", "ndcg", "mrr", "hit")
BLOCK = 256  # questions that pass the stages together
RETRIEVE = "retrieve"


@dataclass(frozen=True)
class TestQuestion:
    """A question, and the items that were right.

    items         by number of the pipeline, int64 [n], each once
    num_relevant  how many there are with those that no stage knows
    """

    question: PipelineQuestion
    items: np.ndarray
    num_relevant: int


@dataclass(frozen=True)
class StageMetrics:
    """The metrics of the lists behind a stage, by key: `recall@10`, `coverage@10`, …"""

    stage: str
    metrics: dict[str, float]


def read_test(
    pipeline: Pipeline,
    file: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    label: str | None = None,
) -> list[TestQuestion]:
    """The rows of a table as questions: the items of a user, and of a context where the click
    model reads one, are right.

    user, item: the columns' names; None: as in the data of the first source.
    label: the column that is 0 where an item was not taken; None: each row was taken.
    """
    first = next(iter(pipeline.sources.values())).artifact
    user, item = user or first.user_field, item or first.item_field or "item_id"
    context = [] if pipeline.ranker is None else pipeline.ranker.context
    if not Path(file).is_file():
        raise ValueError(f"--test: there is no file {file}")
    frame = read_rows(Path(file))
    for name in (user, item, *context, *([] if label is None else [label])):
        if name not in frame.columns:
            raise ValueError(
                f"{file} has no column {name!r}; it has {', '.join(frame.columns)}"
                f"{did_you_mean(name, frame.columns)}"
            )
    frame = _taken_rows(frame, file, pipeline, label)
    questions = []
    by_asker = frame.group_by([user, *context], maintain_order=True)
    for values, rows in by_asker:
        names = rows[item].drop_nulls().unique(maintain_order=True).to_list()
        if values[0] is not None and names:
            numbers = np.unique(pipeline.items.ids.find(names))
            question = PipelineQuestion(values[0], context=dict(zip(context, values[1:])))
            questions.append(TestQuestion(question, numbers[numbers > 0], len(names)))
    if not questions:
        raise ValueError(f"{file} has no rows with a user and an item")
    empty = int((frame[user].is_null() | frame[item].is_null()).sum())
    if empty:
        log.warning("%s: %d of %d rows have no user or no item", file, empty, len(frame))
    lost = sum(test.num_relevant - len(test.items) for test in questions)
    if lost:
        right = sum(test.num_relevant for test in questions)
        log.warning("%s: no stage knows %d of the %d items to find", file, lost, right)
    users = [test.question.user for test in questions]
    unknown = int((first.users.find(users) == 0).sum()) if first.user_field else 0
    if unknown:
        log.warning(
            "%s: the first source does not know the user of %d of %d questions",
            file,
            unknown,
            len(questions),
        )
    return questions


def _taken_rows(
    frame: pl.DataFrame, file: str | Path, pipeline: Pipeline, label: str | None
) -> pl.DataFrame:
    """The rows whose label is not 0. Without a label all, with a warning where one is likely."""
    import polars as pl

    ranked_label = None if pipeline.ranker is None else pipeline.ranker.label
    name = label or ranked_label
    if name is None or name not in frame.columns:
        return frame
    labels = frame[name].cast(pl.Float64, strict=False)
    if label is None:
        if zeros := int((labels == 0).sum()):
            log.warning(
                "%s: every row counts as taken, also the %d of %d where %s is 0; if these were "
                "not taken, --label %s leaves them out",
                file,
                zeros,
                len(frame),
                name,
                name,
            )
        return frame
    odd = frame[name].filter(labels.is_null())
    if len(odd):
        raise ValueError(
            f"{file}: {name!r} holds {odd[0]!r}, which is no number; a label is 0 where an item "
            "was not taken, else 1"
        )
    return frame.filter(labels != 0)


def evaluate(
    pipeline: Pipeline, questions: Sequence[TestQuestion], topk: int = 10
) -> list[StageMetrics]:
    """The metrics of every stage, in the order of the stages.

    topk: of the metrics of lists. Recall of retrieval is at 100, 500 and 1,000 as well.
    """
    warn_taken(pipeline, questions)
    totals: dict[str, StageTotal] = {}
    for first in range(0, len(questions), BLOCK):
        block = questions[first : first + BLOCK]
        for stage, lists in _lists_by_stage(pipeline, block, topk):
            if stage not in totals:
                totals[stage] = StageTotal(pipeline, topk)
            totals[stage].add(block, lists)
    return [StageMetrics(stage, total.metrics()) for stage, total in totals.items()]


def _lists_by_stage(
    pipeline: Pipeline, block: Sequence[TestQuestion], topk: int
) -> Iterator[tuple[str, list[Candidates]]]:
    """The lists of a block of questions behind each stage."""
    questions = [replace(test.question, number=topk) for test in block]
    pending = pipeline.accept(questions, num_filters=0)
    if len(pipeline.sources) > 1:
        for name in pipeline.sources:
            yield f"{RETRIEVE} {name}", pipeline.retrieve(pending, [name])
    lists = pipeline.retrieve(pending)
    yield RETRIEVE, lists
    for number, name in enumerate(pipeline.filters, start=1):
        pending = pipeline.accept(questions, num_filters=number)
        lists = pipeline.retrieve(pending)
        yield name, lists
    if pipeline.ranker is not None:
        lists = pipeline.rank(pending, lists)
        yield RANK, lists
    for name in pipeline.list_rules:
        lists = pipeline.apply(name, pending, lists)
        yield name, lists


class StageTotal:
    """Adds up the metrics of one stage over blocks of questions."""

    def __init__(self, pipeline: Pipeline, topk: int):
        size = len(pipeline.items)
        nowhere = torch.zeros(size)
        self.topk = topk
        self.num_retrievable = pipeline.num_retrievable
        self.of_lists = MetricSet(METRICS, [topk], size, nowhere)
        self.of_retrieval = MetricSet(["recall"], CUTOFFS, size, nowhere)
        self.shown = np.zeros(size, bool)
        self.lengths = 0
        self.count = 0

    def add(self, block: Sequence[TestQuestion], lists: Sequence[Candidates]) -> None:
        """Count the lists of a block."""
        for metrics, longest in ((self.of_lists, self.topk), (self.of_retrieval, CUTOFFS[-1])):
            items = np.zeros((len(block), longest), np.int64)
            hits = np.zeros(items.shape, bool)
            for row, (test, candidates) in enumerate(zip(block, lists)):
                best = candidates.items[:longest]
                items[row, : len(best)] = best
                hits[row, : len(best)] = np.isin(best, test.items)
            relevant = torch.tensor([test.num_relevant for test in block])
            metrics.update(Ranked(torch.from_numpy(items), torch.from_numpy(hits), relevant))
        for candidates in lists:
            self.shown[candidates.items[: self.topk]] = True
            self.lengths += len(candidates)
        self.count += len(block)

    def metrics(self) -> dict[str, float]:
        """All metrics by key; `candidates`: the mean length of the lists."""
        values = self.of_retrieval.compute() | self.of_lists.compute()
        values[f"coverage@{self.topk}"] = float(self.shown[1:].sum()) / self.num_retrievable
        values["candidates"] = self.lengths / self.count
        return values


def warn_taken(pipeline: Pipeline, questions: Sequence[TestQuestion]) -> None:
    """Warn where artifacts learned from what is tested."""
    pairs = repeated = 0
    for source in pipeline.sources.values():
        for first in range(0, len(questions), BLOCK):
            block = questions[first : first + BLOCK]
            for test, (taken, _) in zip(block, source.taken([test.question for test in block])):
                pairs += len(test.items)
                repeated += int(np.isin(test.items, taken).sum())
    if repeated:
        log.warning(
            "%.0f %% of the tested items are in the data of an artifact, for the same user: such "
            "an artifact knows the answer, and the rule `seen` leaves it out; test on what was "
            "taken later",
            100 * repeated / pairs,
        )
