"""Candidates: items that may answer a question, and how they came to their places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Candidates:
    """The items of one question by number, the best first.

    items       int64 [n], each once
    scores      float64 [n]; nan for an item that nothing has scored
    sources     bool [n, sources]: which of them brought the item
    moves       int64 [n, stages]: by how many places a stage moved it, up is positive
    propensity  float64 [n]: the chance with which the item was drawn for its place, given the items
                above it; nan where nothing was drawn
    place_propensity  float64 [n]: the chance that the item stands at its place, whoever is above
                it; nan where it is not known
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    moves: np.ndarray
    propensity: np.ndarray
    place_propensity: np.ndarray

    @staticmethod
    def of(
        items: np.ndarray, scores: np.ndarray, sources: np.ndarray, num_stages: int
    ) -> Candidates:
        """Candidates that no stage has moved."""
        moves = np.zeros((len(items), num_stages), np.int64)
        unknown = np.full(len(items), np.nan)
        return Candidates(items, scores, sources, moves, unknown, unknown)

    def __len__(self) -> int:
        return len(self.items)

    def chosen(self, order: np.ndarray) -> Candidates:
        """The candidates at these places, in this order."""
        return Candidates(
            items=self.items[order],
            scores=self.scores[order],
            sources=self.sources[order],
            moves=self.moves[order],
            propensity=self.propensity[order],
            place_propensity=self.place_propensity[order],
        )

    def with_added(self, items: np.ndarray) -> Candidates:
        """The candidates with others behind them, which no source brought and nothing scored."""
        count = len(items)
        unknown = np.full(count, np.nan)
        return Candidates(
            items=np.append(self.items, items),
            scores=np.append(self.scores, unknown),
            sources=np.pad(self.sources, ((0, count), (0, 0))),
            moves=np.pad(self.moves, ((0, count), (0, 0))),
            propensity=np.append(self.propensity, unknown),
            place_propensity=np.append(self.place_propensity, unknown),
        )

    def without_place_propensity(self) -> Candidates:
        """The candidates, with chances of places that are not known any more."""
        return replace(self, place_propensity=np.full(len(self), np.nan))

    def by_scores(self, scores: np.ndarray) -> Candidates:
        """The candidates with these scores, the best first; equal ones keep their order, and
        those without a score come last."""
        return replace(self, scores=scores).chosen(np.argsort(-scores, kind="stable"))

    def moved_from(self, before: Candidates, stage: int) -> Candidates:
        """With the places by which a stage moved each; an item that it added came from the end."""
        places = places_of(self.items, before.items)
        places[places < 0] = len(before)
        moves = self.moves.copy()
        moves[:, stage] = places - np.arange(len(self))
        return replace(self, moves=moves)


def places_of(wanted: np.ndarray, items: np.ndarray) -> np.ndarray:
    """The place of each wanted item among others, which are different; -1 where it is not there.

    >>> places_of(np.array([7, 5, 9]), np.array([9, 4, 7])).tolist()
    [2, -1, 0]
    """
    if not len(items):
        return np.full(len(wanted), -1)
    order = np.argsort(items)
    places = order[np.searchsorted(items, wanted, sorter=order).clip(max=len(items) - 1)]
    return np.where(items[places] == wanted, places, -1)
