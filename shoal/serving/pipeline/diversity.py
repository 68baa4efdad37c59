"""The rule `diversity`: items that are unlike those above them.

mmr   maximal marginal relevance (Carbonell and Goldstein, 1998)
dpp   a determinantal point process, by greedy steps (Chen, Zhang and Zhou, 2018)
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from shoal.serving.pipeline.candidates import Candidates
from shoal.serving.pipeline.items import PipelineItems
from shoal.serving.pipeline.rule import ListRule, RuleRequest

OWN = 0.01  # of a dpp: what an item has of its own beside all others, so that equal ones may come


class Diversity(ListRule):
    """Items that are unlike those above them. Each place takes the item with the most

        mmr   (1 - weight) × relevance - weight × likeness to the most alike item above it
        dpp   (1 - weight) × relevance + weight × log of its part that those above do not span

    The relevance is the score, from 0 for the worst candidate to 1 for the best. Likeness is that
    of an attribute (values in common / values of either), or of vectors (their cosine). With dpp
    each step adds the most to (1 - weight) × the sum of relevance + weight × log det S, where S
    holds 0.99 × likeness + 0.01 × identity of the chosen items.

    vectors: the name of a source whose item vectors are compared.
    """

    changes = "order"
    weight: Annotated[float, Field(ge=0, le=1)]
    attribute: str | None = None
    vectors: str | None = None
    method: Literal["mmr", "dpp"] = "mmr"

    @model_validator(mode="after")
    def _has_one_likeness(self) -> Diversity:
        if (self.attribute is None) == (self.vectors is None):
            raise ValueError("give attribute or vectors, one of them")
        return self

    def check(self, items: PipelineItems) -> None:
        if self.attribute is not None:
            items.groups(self.attribute)
        elif self.vectors not in items.vectors:
            names = ", ".join(items.vectors) or "none"
            raise ValueError(f"no source {self.vectors!r} has item vectors; there are {names}")

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        if not len(candidates):
            return candidates
        relevance = (1 - self.weight) * scaled(candidates.scores)
        likenesses = _Likenesses(*self._facts(candidates.items, items), self.attribute is not None)
        number = min(request.number, len(candidates))
        choose = _marginal_relevance if self.method == "mmr" else _determinantal
        order = choose(relevance, self.weight, likenesses, number)
        is_left = np.ones(len(candidates), bool)
        is_left[order] = False
        return candidates.chosen(np.append(order, np.flatnonzero(is_left)).astype(np.int64))

    def _facts(self, numbers: np.ndarray, items: PipelineItems) -> tuple[np.ndarray, np.ndarray]:
        """What is compared, [n, values or dim], and how many values each item has, [n]."""
        if self.attribute is None:
            assert self.vectors is not None
            return items.vectors[self.vectors][numbers].astype(np.float64), np.zeros(len(numbers))
        lists = items.groups(self.attribute).of(numbers)
        codes, columns = np.unique(np.concatenate(lists), return_inverse=True)
        sizes = np.array([len(values) for values in lists])
        facts = np.zeros((len(numbers), len(codes)))
        facts[np.repeat(np.arange(len(numbers)), sizes), columns] = 1.0
        return facts, sizes.astype(np.float64)


class _Likenesses:
    """Likeness of candidates: of values in common, or of vectors."""

    def __init__(self, facts: np.ndarray, sizes: np.ndarray, is_of_values: bool):
        self.facts, self.sizes, self.is_of_values = facts, sizes, is_of_values

    def to(self, place: int) -> np.ndarray:
        """The likeness of every candidate to one, float64 [n]."""
        likeness = self.facts @ self.facts[place]
        if self.is_of_values:
            either = self.sizes + self.sizes[place] - likeness
            likeness = np.divide(likeness, either, out=np.zeros_like(likeness), where=either > 0)
        return likeness


def _marginal_relevance(
    relevance: np.ndarray, weight: float, likenesses: _Likenesses, number: int
) -> list[int]:
    """The places of the chosen candidates, in their order, by mmr."""
    is_left = np.ones(len(relevance), bool)
    most_alike = np.zeros(len(relevance))
    order: list[int] = []
    for _ in range(number):
        best = int(np.where(is_left, relevance - weight * most_alike, -np.inf).argmax())
        order.append(best)
        is_left[best] = False
        likeness = likenesses.to(best)
        most_alike = np.maximum(most_alike, likeness) if len(order) > 1 else likeness
    return order


def _determinantal(
    relevance: np.ndarray, weight: float, likenesses: _Likenesses, number: int
) -> list[int]:
    """The places of the chosen candidates, in their order, by a dpp.

    A row of `spanned` is what a chosen item spans of every candidate: a row of the Cholesky factor
    of S. `rest` is what no chosen one spans, the factor by which a candidate multiplies det S.
    """
    is_left = np.ones(len(relevance), bool)
    rest = np.ones(len(relevance))
    spanned = np.zeros((number, len(relevance)))
    order: list[int] = []
    for step in range(number):
        gain = relevance + weight * np.log(np.maximum(rest, 1e-12))
        best = int(np.where(is_left, gain, -np.inf).argmax())
        order.append(best)
        is_left[best] = False
        likeness = (1 - OWN) * likenesses.to(best)
        likeness[best] = 1.0
        earlier = spanned[:step].T @ spanned[:step, best]
        spanned[step] = (likeness - earlier) / np.sqrt(max(rest[best], 1e-12))
        rest = rest - spanned[step] ** 2
    return order


def scaled(scores: np.ndarray) -> np.ndarray:
    """Scores from 0 for the lowest to 1 for the highest; 0 for nan, and where all are equal.

    >>> scaled(np.array([4.0, 2.0, 3.0, np.nan])).tolist()
    [1.0, 0.0, 0.5, 0.0]
    """
    finite = scores[np.isfinite(scores)]
    spread = float(np.ptp(finite)) if len(finite) else 0.0
    if spread == 0:
        return np.zeros(len(scores))
    return np.nan_to_num((scores - finite.min()) / spread, nan=0.0)
