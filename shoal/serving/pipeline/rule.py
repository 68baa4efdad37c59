"""What every rule of a pipeline is: typed arguments, what it reads, and what it does to a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from shoal.serving.pipeline.candidates import Candidates
from shoal.serving.pipeline.items import PipelineItems

Changes = Literal["items", "scores", "order"]


class PipelineSection(BaseModel):
    """Keys of a part of a pipeline's file: no others are allowed, and types are exact."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class RuleRequest:
    """What a rule knows of the question that it answers.

    number   how many items are shown
    time     when it is asked, in seconds since 1970
    taken    items that the asker took, int64 [n]; taken_times: when, float64 [n], nan: not known
    allowed  items that filters let come, whoever asks, bool [num_items]; None: all
    banned   items that may not come in this answer, int64 [n]
    random   what chance is drawn from
    """

    number: int
    time: float
    taken: np.ndarray
    taken_times: np.ndarray
    allowed: np.ndarray | None
    banned: np.ndarray
    random: np.random.Generator

    def may_come(self, items: np.ndarray) -> np.ndarray:
        """Which of these items may come in the answer, bool [n]."""
        free = ~np.isin(items, self.banned)
        return free if self.allowed is None else free & self.allowed[items]


class Rule(PipelineSection):
    """One step of a pipeline's rules.

    changes   `items`: which items may come (before they are retrieved); `scores`; or `order`, the
              list itself. A file has rules in this order.
    """

    changes: ClassVar[Changes]

    def check(self, items: PipelineItems) -> None:
        """Refuse what the rule cannot read of the items; called when a pipeline is opened."""


class ItemFilter(Rule):
    """A rule that decides which items may come."""

    changes = "items"

    def allowed(self, items: PipelineItems) -> np.ndarray | None:
        """The items that may come, bool [num_items], whoever asks; None: all."""
        return None

    def banned(self, request: RuleRequest) -> np.ndarray:
        """Items that may not come in the answer of this request, by number."""
        return np.zeros(0, np.int64)


class ListRule(Rule):
    """A rule that makes another list of a list.

    draws   whether chance decides
    """

    draws: ClassVar[bool] = False

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        """The list after this rule."""
        raise NotImplementedError  # every rule writes its own

    def place_chances(self, candidates: Candidates, num_places: int) -> np.ndarray | None:
        """The chance of each candidate to stand at each of the first places behind this rule,
        float64 [n, num_places]; None: not known."""
        return None
