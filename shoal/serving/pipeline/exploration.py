"""The rule `explore`: chance decides some places, and the answer says how likely each item was.

epsilon    each place takes, with the chance `share`, any item that is left, and else the best one
thompson   each place takes the best by scores to which fresh noise was added
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from shoal.serving.pipeline.candidates import Candidates
from shoal.serving.pipeline.items import PipelineItems
from shoal.serving.pipeline.rule import ListRule, RuleRequest

MOST_PLACES = 100  # of which an answer states the chances of items whoever is above them
REACH = 8.0  # deviations of noise beyond which a chance is below 1e-15
STEP = 0.125  # of the integral over noise, in deviations: its error is below 1e-12


class Explore(ListRule):
    """Draws the items of the list, and states with which chance.

    epsilon: each place takes, with the chance `share`, any item that is left, all with equal
    chance, and else the best one that is left. thompson: each place takes the item whose score +
    spread × normal noise is the highest, with fresh noise at every place; items without a score
    come behind those with one, in their order.

    `propensity` of an item is its chance at this place given the items above it; it is exact for
    both. `place_propensity` is its chance at this place whoever is above it: exact for epsilon, and
    for thompson at the first place (elsewhere not known).
    """

    changes = "order"
    draws = True
    method: Literal["epsilon", "thompson"] = "epsilon"
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    spread: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _has_one_amount(self) -> Explore:
        needed, other = "share", "spread"
        if self.method == "thompson":
            needed, other = other, needed
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ValueError(f"method {self.method} needs {needed}, and no {other}")
        return self

    def apply(
        self, candidates: Candidates, request: RuleRequest, items: PipelineItems
    ) -> Candidates:
        number = min(request.number, len(candidates))
        if self.method == "epsilon":
            shown, chances = self._epsilon(len(candidates), number, request.random)
        else:
            shown, chances = self._thompson(candidates.scores, number, request.random)
        was_drawn = not np.isnan(candidates.propensity).all()
        propensity = candidates.propensity.copy()
        propensity[shown] = chances
        at_place = np.full(len(candidates), np.nan)
        known_places = shown[:MOST_PLACES] if self.method == "epsilon" else shown[:1]
        if not was_drawn and len(known_places):
            if self.method == "epsilon":
                assert self.share is not None
                table = epsilon_chances(len(candidates), len(known_places), self.share)
                rows = np.minimum(known_places, len(table) - 1)
                at_place[known_places] = table[rows, np.arange(len(known_places))]
            else:
                at_place[known_places] = chances[:1]
        explored = replace(candidates, propensity=propensity, place_propensity=at_place)
        is_left = np.ones(len(candidates), bool)
        is_left[shown] = False
        return explored.chosen(np.append(shown, np.flatnonzero(is_left)))

    def place_chances(self, candidates: Candidates, num_places: int) -> np.ndarray | None:
        count = len(candidates)
        if self.method == "epsilon":
            assert self.share is not None
            table = epsilon_chances(count, num_places, self.share)
            return table[np.minimum(np.arange(count), len(table) - 1)]
        if num_places > 1:
            return None
        assert self.spread is not None
        has_score = ~np.isnan(candidates.scores)
        chances = np.zeros((count, num_places))
        if has_score.any():
            chances[has_score, 0] = best_chances(candidates.scores[has_score], self.spread)
        elif count:
            chances[0] = 1.0
        return chances

    def _epsilon(
        self, count: int, number: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places of the shown items in the list before, and the chance of each."""
        assert self.share is not None
        left = list(range(count))
        shown, chances = [], []
        for _ in range(number):
            is_drawn = random.random() < self.share
            chosen = int(random.integers(len(left))) if is_drawn else 0
            chances.append(self.share / len(left) + (1 - self.share) * (chosen == 0))
            shown.append(left.pop(chosen))
        return np.array(shown, np.int64), np.array(chances)

    def _thompson(
        self, scores: np.ndarray, number: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places of the shown items in the list before, and the chance of each."""
        assert self.spread is not None
        left = np.flatnonzero(~np.isnan(scores))
        shown, chances = [], []
        for _ in range(min(number, len(left))):
            noise = random.standard_normal(len(left))
            chosen = int((scores[left] + self.spread * noise).argmax())
            chances.append(best_chances(scores[left], self.spread)[chosen])
            shown.append(left[chosen])
            left = np.delete(left, chosen)
        unscored = np.flatnonzero(np.isnan(scores))[: number - len(shown)]
        places = np.append(np.array(shown, np.int64), unscored)
        return places, np.append(np.array(chances), np.full(len(unscored), np.nan))


@lru_cache(maxsize=256)
def epsilon_chances(count: int, num_places: int, share: float) -> np.ndarray:
    """The chance of each candidate to stand at each place, where every place takes any candidate
    that is left with the chance `share`, and else the best one: float64 [rows, num_places].

    Row j is the candidate of rank j; the last row is that of every rank from num_places on.

    >>> epsilon_chances(4, 1, share=0.4).round(3).tolist()
    [[0.7], [0.1]]
    >>> epsilon_chances(3, 2, share=0.3).sum(axis=0).round(9).tolist()
    [1.0, 1.0]
    """
    num_rows = min(count, num_places + 1)
    ranks = np.arange(num_rows)[:, None]
    chances = np.zeros((num_rows, num_places))
    # [rank, how many better ones were taken]: the chance of that, with the candidate still left.
    state = np.zeros((num_rows, num_places + 1))
    state[:, 0] = 1.0
    num_better = ranks - np.arange(num_places + 1)  # that are left; below 0 the state is empty
    for place in range(min(count, num_places)):
        num_left = count - place
        is_best = num_better == 0
        taken = (1 - share) * is_best + share / num_left
        better_taken = np.where(num_better > 0, 1 - share + share * num_better / num_left, 0.0)
        worse_taken = share * (num_left - 1 - num_better) / num_left
        chances[:, place] = (state * taken).sum(axis=1)
        after = state * worse_taken
        after[:, 1:] += (state * better_taken)[:, :-1]
        state = after
    chances.flags.writeable = False
    return chances


def best_chances(scores: np.ndarray, spread: float) -> np.ndarray:
    """The chance of each to be the highest when spread × normal noise is added, float64 [n].

    The chance of item i is the integral over x of the density of its noisy score at x × the chance
    that all others are below x. What lies REACH deviations below the highest score has none.

    >>> best_chances(np.array([1.0, 1.0, -50.0]), spread=1.0).round(9).tolist()
    [0.5, 0.5, 0.0]
    """
    relative = (scores - scores.max()) / spread
    near = np.flatnonzero(relative > -2 * REACH)
    points = np.arange(-REACH, REACH + STEP, STEP)
    offsets = torch.from_numpy(points[None] - relative[near, None])  # [n, points]
    below = torch.special.log_ndtr(offsets)
    densities = torch.exp(below.sum(0) - below - offsets.square() / 2) / np.sqrt(2 * np.pi)
    chances = np.zeros(len(scores))
    chances[near] = densities.sum(1).numpy() * STEP
    return chances / chances.sum()
