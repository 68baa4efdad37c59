"""Histories of an artifact: what each user took, in order, and when where the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.runs.artifact.files import ArtifactError, read_tensors

FILE = "histories.safetensors"


class History(NamedTuple):
    """Items, oldest first; and their times in seconds, with that of the request behind them."""

    items: np.ndarray  # int64 [n]
    times: np.ndarray | None = None  # int64 [n + 1]


class Told:
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
        lengths = self.offsets[users + 1] - self.offsets[users]
        ends = np.cumsum(lengths)
        flat = np.repeat(self.offsets[users] - (ends - lengths), lengths)
        flat = flat + np.arange(lengths.sum())
        return np.repeat(np.arange(len(users)), lengths), self.items[flat].astype(np.int64)


def asked_at(times: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Times of `count` items and of the request, now where it is not given: [count + 1]."""
    given = np.asarray(times, dtype=np.int64)
    if given.shape not in ((count,), (count + 1,)):
        raise ValueError(
            f"there are {len(given)} times for {count} items; give one for each, and behind them, "
            "if you like, that of the request"
        )
    if len(given) == count:
        given = np.append(given, given[-1] if count else 0)
    return given


def padded(histories: Sequence[History], length: int) -> np.ndarray:
    """The last `length` items of each: [n, length], left-aligned, 0 pads."""
    found = np.zeros((len(histories), length), np.int64)
    for row, one in zip(found, histories):
        last = one.items[-length:]
        row[: len(last)] = last
    return found


def padded_times(histories: Sequence[History], length: int) -> np.ndarray:
    """Their times and, behind the last item, that of the request: [n, length + 1]."""
    found = np.zeros((len(histories), length + 1), np.int64)
    for row, one in zip(found, histories):
        assert one.times is not None
        last = one.times[-length - 1 :]
        row[: len(last)] = last
    return found
