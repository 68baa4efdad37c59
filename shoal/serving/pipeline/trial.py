"""Trial of a pipeline: what its stages are, and what each costs on a question."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from shoal.serving.pipeline.pipeline import RANK, Pipeline
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.serving.pipeline.rule import Rule

REPEATS = 5  # of which the median counts, after one that is not counted
Result = TypeVar("Result")


@dataclass(frozen=True)
class StageCost:
    """A stage of a pipeline.

    what          the artifact or the arguments of the rule, in words
    items         how many items the list of the trial question has behind it
    milliseconds  what it took; None: it takes part in the retrieval
    """

    stage: str
    what: str
    items: int
    milliseconds: float | None


def trial_question(pipeline: Pipeline, number: int = 10) -> PipelineQuestion:
    """A question of the first user that a source knows, with an empty context."""
    users = next(iter(pipeline.sources.values())).artifact.users
    context = {} if pipeline.ranker is None else dict.fromkeys(pipeline.ranker.context)
    user = users.values[1] if len(users) > 1 else None
    history = None if user is not None else [pipeline.items.ids.values[1]]
    return PipelineQuestion(user, history, number=number, context=context)


def try_stages(pipeline: Pipeline) -> list[StageCost]:
    """The stages in their order, each timed on the trial question."""
    question = trial_question(pipeline)
    pending = pipeline.accept([question])
    costs = []
    for name, source in pipeline.sources.items():
        lists, seconds = _timed(lambda name=name: pipeline.retrieve(pending, [name]))  # type: ignore[misc]
        what = f"{source.artifact.model} by {source.by.replace('_', ' ')}"
        quota = "" if source.quota is None else f", quota {source.quota:,}"
        costs.append(
            StageCost(
                f"retrieve {name}",
                f"{what}, {source.number:,} items{quota}",
                len(lists[0]),
                1000 * seconds,
            )
        )
    texts = {"union": "", **{name: shown(rule) for name, rule in pipeline.filters.items()}}
    for number, (name, text) in enumerate(texts.items()):
        lists = pipeline.retrieve(pipeline.accept([question], num_filters=number))
        costs.append(StageCost(name, text, len(lists[0]), None))
    if pipeline.ranker is not None:
        retrieved = lists
        lists, seconds = _timed(lambda: pipeline.rank(pending, retrieved))
        what = f"{pipeline.ranker.artifact.model}: chance of {pipeline.ranker.label}"
        costs.append(StageCost(RANK, what, len(lists[0]), 1000 * seconds))
    for name, rule in pipeline.list_rules.items():
        before = lists
        lists, seconds = _timed(
            lambda name=name, before=before: pipeline.apply(name, pending, before)  # type: ignore[misc]
        )
        costs.append(StageCost(name, shown(rule), len(lists[0]), 1000 * seconds))
    return costs


def shown(rule: Rule) -> str:
    """The arguments of a rule in words.

    >>> from shoal.serving.pipeline.list_rules import AtMost
    >>> shown(AtMost(number=2, attribute="genre"))
    'number 2, attribute genre'
    """
    texts = []
    for name, value in rule.model_dump(exclude_none=True).items():
        if isinstance(value, list):
            value = ", ".join(map(str, value[:3])) + ", ..." * (len(value) > 3)
        texts.append(f"{name} {value}")
    return ", ".join(texts)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What a stage gives, and its seconds: the median of several."""
    result = work()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return result, median(seconds)
