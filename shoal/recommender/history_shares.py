"""Shares of a history's items in a score, for models that score any history."""

import numpy as np
import torch

from shoal.recommender.explanation import MOST_ITEMS, Breakdown, shapley
from shoal.recommender.recommender import Catalogue, History

BLOCK = 256  # histories that are read at a time


def of_history(
    catalogue: Catalogue, user: int, history: History, item: int, longest: int | None = None
) -> Breakdown:
    """Shares of a history's items in a score; the rest is the score without them.

    longest: how many items a model reads of a sequence; None: it is no sequence.
    """
    count = len(history.items)
    if longest is not None:
        first = max(0, count - longest)
        history = _kept(history, np.arange(count) >= first)
        count = min(len(history.items), MOST_ITEMS)
    older = np.ones(len(history.items) - count, bool)
    item_ids = torch.tensor([item])

    def values(kept: np.ndarray) -> np.ndarray:
        histories = [_kept(history, np.concatenate([older, one])) for one in kept]
        scores = torch.empty(len(histories), 1)
        with torch.inference_mode():
            for first in range(0, len(histories), BLOCK):
                block = histories[first : first + BLOCK]
                fill = catalogue.fill(catalogue.of_histories(block, user), item_ids)
                fill(0, len(block), 0, 1, scores[first : first + BLOCK])
        return scores[:, 0].double().numpy()

    shares, rest, error = shapley(count, values)
    rest_is = f"the {len(older)} items before these" if len(older) else "an empty history"
    return Breakdown(history.items[len(older) :].tolist(), shares, rest, rest_is, error)


def _kept(history: History, kept: np.ndarray) -> History:
    """A history of the items at these places alone."""
    times = None if history.times is None else history.times[np.append(kept, True)]
    return History(history.items[kept], times)
