"""Histories of an artifact: what each user took, in order, and when where the model reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.runs.artifact.files import ArtifactError, read_tensors
from shoal.runs.recommender import History, asked_at
from shoal.training.evaluation.phases import Lists

FILE = "histories.safetensors"


class StoredHistories:
    """The histories of all users."""

    def __init__(self, folder: Path, manifest: dict[str, Any], num_users: int, num_items: int):
        found = read_tensors(folder, FILE, manifest)
        if not {"items", "offsets"} <= found.keys():
            raise ArtifactError(f"artifact {folder} is damaged: its histories")
        self.items, self.offsets = found["items"].numpy(), found["offsets"].numpy()
        self.times = found["times"].numpy() if "times" in found else None
        offsets, items = self.offsets, self.items
        if (
            offsets.dtype != np.int64
            or offsets.ndim != 1
            or items.ndim != 1
            or items.dtype.kind != "i"
            or len(offsets) != num_users + 1
            or offsets[0] != 0
            or offsets[-1] != len(items)
            or bool((np.diff(offsets) < 0).any())
            or (len(items) and not 0 <= items.min() <= items.max() < num_items)
            or (self.times is not None and self.times.shape != items.shape)
        ):
            raise ArtifactError(f"artifact {folder} is damaged: its histories")

    def of(self, user: int) -> History:
        """What one user took; asked now, which is as late as the last item."""
        first, last = self.offsets[user], self.offsets[user + 1]
        items = self.items[first:last].astype(np.int64)
        if self.times is None:
            return History(items)
        return History(items, asked_at(self.times[first:last], len(items)))

    def pairs(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each of these users took, as pairs: place in `users` [m], item [m]."""
        rows, items = Lists(self.items, self.offsets).chosen(users).block(0, len(users))
        return rows, items.astype(np.int64)
