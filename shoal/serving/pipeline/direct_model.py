"""The direct model of a doubly robust estimate: the mean label of an item at a place.

A request is predicted by a model of other requests, so that no label predicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.data.ids import Ids
from shoal.serving.pipeline.request_log import LoggedRequest

FOLDS = 5  # of requests; a request is predicted by the others' four
PRIOR = 10.0  # how many labels the expectation of an item at a place is worth


@dataclass(frozen=True)
class DirectModel:
    """Mean labels with shrinkage: an item at a place has the mean of its labels there and of PRIOR
    labels as expected, which are the place's mean plus what the item has above its places' means.

    ids    the items of the log; values: float64 [items, places], row 0 for others
    """

    ids: Ids
    values: np.ndarray

    def table(self, items: Sequence[str], num_places: int) -> np.ndarray:
        """What these items are expected to earn at the first places, float64 [n, num_places]."""
        return self.values[self.ids.find(items), :num_places]


def fit_direct_models(
    requests: Sequence[LoggedRequest], labels: Sequence[np.ndarray], num_places: int
) -> tuple[list[DirectModel], np.ndarray]:
    """A model for each fold of requests, and the fold of each request."""
    ids = Ids(["", *dict.fromkeys(item for request in requests for item in request.items)])
    sizes = [len(values) for values in labels]
    folds = np.arange(len(requests)) % FOLDS
    shown = [item for request, size in zip(requests, sizes) for item in request.items[:size]]
    items = ids.find(shown)
    places = np.concatenate([np.arange(size) for size in sizes])
    of_rows = np.repeat(folds, sizes)
    flat = np.concatenate(labels)
    shape = (FOLDS, len(ids), num_places)
    counts, sums = np.zeros(shape), np.zeros(shape)
    np.add.at(counts, (of_rows, items, places), 1.0)
    np.add.at(sums, (of_rows, items, places), flat)
    models = [
        DirectModel(ids, _shrunk(counts.sum(axis=0) - own_counts, sums.sum(axis=0) - own_sums))
        for own_counts, own_sums in zip(counts, sums)
    ]
    return models, folds


def _shrunk(counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The values of a model of these labels, [items, places] as counts and sums are."""
    mean = sums.sum() / max(1.0, counts.sum())
    of_places = (sums.sum(axis=0) + PRIOR * mean) / (counts.sum(axis=0) + PRIOR)
    above = (sums - counts * of_places).sum(axis=1) / (counts.sum(axis=1) + PRIOR)
    expected = of_places + above[:, None]
    return (sums + PRIOR * expected) / (counts + PRIOR)
