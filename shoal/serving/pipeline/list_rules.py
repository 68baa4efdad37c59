"""Rules that change a ranked list: first its scores, then its order."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from shoal.serving.pipeline.candidates import Candidates, places_of
from shoal.serving.pipeline.filters import DAY, ItemList, Values
from shoal.serving.pipeline.items import PipelineItems
from shoal.serving.pipeline.rule import ListRule, RuleRequest

# ---- scores -------------------------------------------------------------------------------------


class Boost(ListRule):
    """Adds `weight` to the score of items whose attribute has one of `values`; without `values`,
    weight × the attribute, which is a number then. An item without the attribute gets nothing.
    """

    changes = "scores"
    attribute: str
    weight: float
    values: Values | None = None

    def check(self, items: PipelineItems) -> None:
        self._values(items)

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        amounts = np.nan_to_num(self._values(items)[candidates.items].astype(np.float64), nan=0.0)
        return candidates.by_scores(candidates.scores + self.weight * amounts)

    def _values(self, items: PipelineItems) -> np.ndarray:
        """What the weight is multiplied by, for each item; nan where it has no such number."""
        if self.values is not None:
            return items.members(self.attribute, self.values)
        return items.numbers(self.attribute)


class Freshness(ListRule):
    """Adds `weight` to the score of an item of this moment, half of it to one that is `half_life`
    days old, a quarter after twice as long. An item without a time gets nothing.

    attribute: since when an item is there, as a date or in seconds since 1970.
    """

    changes = "scores"
    attribute: str
    half_life: Annotated[float, Field(gt=0)]
    weight: float

    def check(self, items: PipelineItems) -> None:
        items.times(self.attribute)

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        days = (request.time - items.times(self.attribute)[candidates.items]) / DAY
        share = 0.5 ** (np.maximum(days, 0.0) / self.half_life)
        return candidates.by_scores(candidates.scores + self.weight * np.nan_to_num(share, nan=0.0))


# ---- order --------------------------------------------------------------------------------------


class AtMost(ListRule):
    """At most `number` items of each value of an attribute: of a category, the best so many. Items
    without the attribute are not counted.
    """

    changes = "order"
    number: Annotated[int, Field(ge=1)]
    attribute: str

    def check(self, items: PipelineItems) -> None:
        items.groups(self.attribute)

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        groups = items.groups(self.attribute)
        if groups.is_single:
            return candidates.chosen(np.flatnonzero(self._early(groups.single(candidates.items))))
        counts: dict[int, int] = {}
        kept = []
        for place, codes in enumerate(groups.of(candidates.items)):
            values = codes.tolist()
            if all(counts.get(value, 0) < self.number for value in values):
                kept.append(place)
                for value in values:
                    counts[value] = counts.get(value, 0) + 1
        return candidates.chosen(np.array(kept, np.int64))

    def _early(self, codes: np.ndarray) -> np.ndarray:
        """Which of these are among the first `number` of their code, bool [n]; all of -1 are."""
        order = np.argsort(codes, kind="stable")
        is_first = np.diff(codes[order], prepend=-2) != 0
        starts = np.maximum.accumulate(np.where(is_first, np.arange(len(codes)), 0))
        is_early = np.empty(len(codes), bool)
        is_early[order] = np.arange(len(codes)) - starts < self.number
        return is_early | (codes < 0)


class Diversity(ListRule):
    """Items that are unlike those above them (maximal marginal relevance, Carbonell and Goldstein,
    1998): each place takes the item with the most

        (1 - weight) × relevance - weight × likeness to the most alike item above it

    The relevance is the score, from 0 for the worst candidate to 1 for the best. Likeness is that
    of an attribute (values in common / values of either), or of vectors (their cosine).

    vectors: the name of a source whose item vectors are compared.
    """

    changes = "order"
    weight: Annotated[float, Field(ge=0, le=1)]
    attribute: str | None = None
    vectors: str | None = None

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
        relevance = scaled(candidates.scores)
        facts, sizes = self._facts(candidates.items, items)
        is_left = np.ones(len(candidates), bool)
        most_alike = np.zeros(len(candidates))
        order: list[int] = []
        for _ in range(min(request.number, len(candidates))):
            worth = (1 - self.weight) * relevance - self.weight * most_alike
            best = int(np.where(is_left, worth, -np.inf).argmax())
            order.append(best)
            is_left[best] = False
            likeness = facts @ facts[best]
            if self.attribute is not None:
                either = sizes + sizes[best] - likeness
                likeness = np.divide(
                    likeness, either, out=np.zeros_like(likeness), where=either > 0
                )
            most_alike = np.maximum(most_alike, likeness) if len(order) > 1 else likeness
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


class PinnedItems(ListRule):
    """Puts items at fixed places: the first at `place`, the others behind it. Items that filters or
    the question leave out are not pinned.
    """

    changes = "order"
    items: ItemList
    place: Annotated[int, Field(ge=1)] = 1

    def check(self, items: PipelineItems) -> None:
        items.find(self.items)

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        numbers = items.ids.find(self.items)
        pinned = numbers[(numbers > 0) & request.may_come(numbers)]
        added = pinned[places_of(pinned, candidates.items) < 0]
        longer = candidates.with_added(added)
        places = places_of(pinned, longer.items)
        others = np.setdiff1d(np.arange(len(longer)), places)
        return longer.chosen(np.insert(others, min(self.place - 1, len(others)), places))


class Explore(ListRule):
    """Explores (epsilon-greedy): each place takes, with the chance `share`, any item that is left,
    all with equal chance, and else the best one that is left. The propensity of every shown item,
    given those above it, stands in the answer.
    """

    changes = "order"
    share: Annotated[float, Field(gt=0, le=1)]

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        places = list(range(len(candidates)))
        shown: list[int] = []
        propensity = candidates.propensity.copy()
        for _ in range(min(request.number, len(candidates))):
            count = len(places)
            is_drawn = request.random.random() < self.share
            chosen = int(request.random.integers(count)) if is_drawn else 0
            chance = self.share / count + (1 - self.share) * (chosen == 0)
            place = places.pop(chosen)
            propensity[place] = chance
            shown.append(place)
        explored = replace(candidates, propensity=propensity)
        return explored.chosen(np.array(shown + places, np.int64))


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
