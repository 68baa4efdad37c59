"""Placed items: with which chance a pipeline shows an item at a place, without showing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.serving.pipeline.candidates import Candidates, places_of
from shoal.serving.pipeline.pipeline import PendingQuestion, Pipeline
from shoal.serving.pipeline.question import PipelineQuestion

EXACT = "exact"


@dataclass(frozen=True)
class PlacedItems:
    """The chance of items to stand at the first places of an answer.

    items    by number of the pipeline, int64 [n], each once
    chances  float64 [n, places]
    """

    items: np.ndarray
    chances: np.ndarray

    def of(self, items: np.ndarray) -> np.ndarray:
        """The chance of these items, float64 [len(items), places]; 0 for one that cannot come."""
        rows = places_of(items, self.items)
        if not len(self.items):
            return np.zeros((len(items), self.chances.shape[1]))
        return np.where((rows >= 0)[:, None], self.chances[rows], 0.0)


def placed_items(
    pipeline: Pipeline, questions: Sequence[PipelineQuestion], num_draws: int
) -> list[PlacedItems]:
    """The chances of the items of each question, for as many places as it asks for.

    They are exact where nothing is drawn, and where `explore` is the last rule and knows them. Else
    they are shares of `num_draws` lists (see `is_exact`): right in the mean.
    """
    pending = pipeline.accept(questions)
    lists = pipeline.rank(pending, pipeline.retrieve(pending))
    names = list(pipeline.list_rules)
    first_drawn = next((n for n, name in enumerate(names) if pipeline.list_rules[name].draws), None)
    for name in names[:first_drawn]:
        lists = pipeline.apply(name, pending, lists)
    if first_drawn is None:
        return [_shown(entry, candidates) for entry, candidates in zip(pending, lists)]
    rules = names[first_drawn:]
    placed = []
    for entry, candidates in zip(pending, lists):
        chances = None
        if len(rules) == 1:
            rule = pipeline.list_rules[rules[0]]
            chances = rule.place_chances(candidates, entry.request.number)
        if chances is None:
            placed.append(_drawn(pipeline, rules, entry, candidates, num_draws))
        else:
            placed.append(PlacedItems(candidates.items, chances))
    return placed


def is_exact(pipeline: Pipeline, num_places: int) -> bool:
    """Whether `placed_items` of this pipeline are exact for so many places."""
    rules = list(pipeline.list_rules.values())
    if not any(rule.draws for rule in rules):
        return True
    empty = Candidates.of(
        np.zeros(0, np.int64), np.zeros(0), np.zeros((0, len(pipeline.sources)), bool), 0
    )
    is_last = not any(rule.draws for rule in rules[:-1])
    return is_last and rules[-1].place_chances(empty, num_places) is not None


def _shown(entry: PendingQuestion, candidates: Candidates) -> PlacedItems:
    """The list that is shown, with certainty."""
    items = candidates.items[: entry.request.number]
    return PlacedItems(items, np.eye(len(items), entry.request.number))


def _drawn(
    pipeline: Pipeline,
    rules: Sequence[str],
    entry: PendingQuestion,
    candidates: Candidates,
    num_draws: int,
) -> PlacedItems:
    """Shares of lists that are drawn."""
    number = entry.request.number
    counts: dict[int, np.ndarray] = {}
    for _ in range(num_draws):
        lists = [candidates]
        for name in rules:
            lists = pipeline.apply(name, [entry], lists)
        for place, item in enumerate(lists[0].items[:number].tolist()):
            counts.setdefault(item, np.zeros(number))[place] += 1
    chances = np.array(list(counts.values())).reshape(len(counts), number) / num_draws
    return PlacedItems(np.array(list(counts), np.int64), chances)
