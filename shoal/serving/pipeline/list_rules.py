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
        self._amounts(items)

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        amounts = self._amounts(items)[candidates.items]
        return candidates.by_scores(candidates.scores + self.weight * amounts)

    def _amounts(self, items: PipelineItems) -> np.ndarray:
        """What the weight is multiplied by, for each item."""
        if self.values is not None:
            return items.members(self.attribute, self.values).astype(np.float64)
        return np.nan_to_num(items.numbers(self.attribute), nan=0.0)


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
        counts: dict[int, int] = {}
        kept = []
        for place, codes in enumerate(items.groups(self.attribute).of(candidates.items)):
            values = codes.tolist()
            if all(counts.get(value, 0) < self.number for value in values):
                kept.append(place)
                for value in values:
                    counts[value] = counts.get(value, 0) + 1
        return candidates.chosen(np.array(kept, np.int64))


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
