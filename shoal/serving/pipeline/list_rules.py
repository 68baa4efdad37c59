"""Rules that change a ranked list: first its scores, then its order."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

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
