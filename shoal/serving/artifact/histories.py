"""The histories of users, as an artifact stores them."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from shoal.recommender.recommender import History, asked_at
from shoal.serving.artifact import files

HISTORIES = "histories.safetensors"
WRONG = "they are not of their shape"


class StoredHistories:
    """The histories of all users."""

    def __init__(self, folder: Path, manifest: dict[str, Any], num_users: int, num_items: int):
        tensors = files.read_tensors(folder, HISTORIES, manifest)
        with files.damaged(f"artifact {folder}: its histories"):
            items, offsets = _lists(tensors, "", num_users, num_items)
            # Items that were taken before these histories, in no order, and their offsets.
            self.earlier: tuple[np.ndarray, np.ndarray] | None = None
            if "earlier_items" in tensors:
                self.earlier = _lists(tensors, "earlier_", num_users, num_items)
            times = tensors["times"].numpy() if "times" in tensors else None
            learned = tensors["learned"].numpy() if "learned" in tensors else None
            marks = [one for one in (times, learned) if one is not None]
            if any(one.shape != items.shape for one in marks):
                raise ValueError(WRONG)
        self.items = items
        self.offsets = offsets
        self.times = times
        self.learned = learned

    def history_of(self, user: int) -> History:
        """The history of one user; the time of the request is that of the last item."""
        first, last = self.offsets[user], self.offsets[user + 1]
        items = self.items[first:last].astype(np.int64)
        if self.times is None:
            return History(items)
        return History(items, asked_at(self.times[first:last], len(items)))

    def learned_by(self, user: int) -> np.ndarray | None:
        """The different items of a user that the model learned from; None: they are not marked."""
        if self.learned is None:
            return None
        places = slice(self.offsets[user], self.offsets[user + 1])
        return np.unique(self.items[places][self.learned[places] > 0]).astype(np.int64)

    def pairs(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All that each of these users took, as pairs: place in `users` [m], item [m]."""
        rows, items = _pairs_of(users, self.items, self.offsets)
        if self.earlier is not None:
            earlier_rows, earlier_items = _pairs_of(users, *self.earlier)
            rows, items = np.append(rows, earlier_rows), np.append(items, earlier_items)
        return rows, items.astype(np.int64)


def _pairs_of(
    users: np.ndarray, items: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The lists of these users as pairs: place in `users` [m], item [m]."""
    starts = offsets[users]
    lengths = offsets[users + 1] - starts
    rows = np.repeat(np.arange(len(users)), lengths)
    # Where each pair stands: behind its list's start by its number within the list.
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return rows, items[np.repeat(starts, lengths) + numbers]


def _lists(
    tensors: dict[str, Tensor], prefix: str, num_users: int, num_items: int
) -> tuple[np.ndarray, np.ndarray]:
    """Items, user by user, and offsets [users + 1]."""
    items, offsets = (tensors[f"{prefix}{name}"].numpy() for name in ("items", "offsets"))
    right = offsets.dtype == np.int64 and offsets.shape == (num_users + 1,)
    right = right and items.ndim == 1 and items.dtype.kind == "i"
    right = right and offsets[0] == 0 and offsets[-1] == len(items)
    right = right and bool((np.diff(offsets) >= 0).all())
    if not right or (len(items) and not 0 <= items.min() <= items.max() < num_items):
        raise ValueError(WRONG)
    return items, offsets
