"""Rules that decide which items may come. They apply before items are retrieved."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from shoal.serving.pipeline.items import PipelineItems
from shoal.serving.pipeline.rule import ItemFilter, RuleRequest

DAY = 86_400.0  # seconds
Value = bool | str | int | float
Values = Annotated[list[Value], Field(min_length=1, max_length=10_000)]
ItemList = Annotated[list[str | int | float], Field(min_length=1, max_length=10_000)]


class OnlyItems(ItemFilter):
    """These items alone may come."""

    items: ItemList

    def check(self, items: PipelineItems) -> None:
        items.find(self.items)

    def allowed(self, items: PipelineItems) -> np.ndarray:
        return _mask(items, self.items)


class ExcludedItems(ItemFilter):
    """These items may not come."""

    items: ItemList

    def check(self, items: PipelineItems) -> None:
        items.find(self.items)

    def allowed(self, items: PipelineItems) -> np.ndarray:
        return ~_mask(items, self.items)


class SeenItems(ItemFilter):
    """Items that the asker took may not come: those of the question's history, and those of the
    data that the sources learned from.

    days: only items of so many days before the question; an item whose time is not known counts.
    """

    days: Annotated[float, Field(gt=0)] | None = None

    def banned(self, request: RuleRequest) -> np.ndarray:
        if self.days is None:
            return request.taken
        is_old = request.taken_times < request.time - self.days * DAY
        # An item that was taken twice is banned by the later time.
        return request.taken[~is_old]


class AllowedItems(ItemFilter):
    """Items may come whose attribute has one of these values, and no others."""

    attribute: str
    values: Values

    def check(self, items: PipelineItems) -> None:
        items.members(self.attribute, self.values)

    def allowed(self, items: PipelineItems) -> np.ndarray:
        return items.members(self.attribute, self.values)


def _mask(items: PipelineItems, names: list[Any]) -> np.ndarray:
    """The items of these names, bool [num_items]."""
    mask = np.zeros(len(items), bool)
    mask[items.ids.find(names)] = True
    mask[0] = False
    return mask
