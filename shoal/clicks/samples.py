"""Samples of a click log that are held: as columns, and as the batches of a reader, InMemory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch

from shoal.clicks.layout import Layout
from shoal.clicks.per_feature import per_feature
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.data.raw_columns import gather
from shoal.data.reader import Reader


@dataclass(frozen=True)
class Samples:
    """Columns of n samples.

    labels   float32 [n]
    dense    float32 [n, num_dense]
    ids      int64 [n, num_slots]; or, where slots hold lists, their values one after the other
    offsets  None; or int64 [n * num_slots + 1]: slot s of sample i holds the ids
             offsets[i * num_slots + s] to offsets[i * num_slots + s + 1]
    """

    num_slots: int
    labels: np.ndarray
    dense: np.ndarray
    ids: np.ndarray
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def none(cls, layout: Layout) -> Samples:
        """No samples of this layout."""
        slots = len(layout.slots)
        dense = np.zeros((0, len(layout.dense)), np.float32)
        return cls(slots, np.zeros(0, np.float32), dense, np.zeros((0, slots), np.int64))

    @classmethod
    def of_lists(
        cls,
        num_slots: int,
        labels: np.ndarray,
        dense: np.ndarray,
        layout: Layout,
        lists: Sequence[Sequence[int] | np.ndarray],
    ) -> Samples:
        """Samples from lists of ids: one for each slot of each sample, sample after sample."""
        lengths = np.array([len(one) for one in lists], np.int64)
        flat = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one) for one in lists)])
        ids = layout.fold(flat.astype(np.int64, copy=False))
        if (lengths == 1).all():
            return cls(num_slots, labels, dense, ids.reshape(len(labels), num_slots))
        return cls(num_slots, labels, dense, ids, np.concatenate([[0], np.cumsum(lengths)]))

    def cut(self, start: int, stop: int) -> Samples:
        """Samples start to stop - 1, as views."""
        labels, dense = self.labels[start:stop], self.dense[start:stop]
        if self.offsets is None:
            return Samples(self.num_slots, labels, dense, self.ids[start:stop])
        offsets = self.offsets[start * self.num_slots : stop * self.num_slots + 1]
        ids = self.ids[offsets[0] : offsets[-1]]
        return Samples(self.num_slots, labels, dense, ids, offsets - offsets[0])

    def take(self, rows: np.ndarray) -> Samples:
        """The given samples, in the given order."""
        labels, dense = self.labels[rows], self.dense[rows]
        if self.offsets is None:
            return Samples(self.num_slots, labels, dense, self.ids[rows])
        lists = (rows[:, None] * self.num_slots + np.arange(self.num_slots)).reshape(-1)
        ids, offsets = gather(self.ids, self.offsets, lists, 0)
        return Samples(self.num_slots, labels, dense, ids, offsets)

    def batch_of(self, rows: slice | np.ndarray) -> Batch:
        """The batch of the given samples."""
        if isinstance(rows, slice):
            return self.cut(rows.start, rows.stop).batch()
        return self.take(rows).batch()

    def batch(self, first: int = 0) -> Batch:
        """ids `slots` (a tensor [n, num_slots] or a Jagged), dense `dense`, labels.

        first: the number of the first of them in the global batch.
        """
        ids: torch.Tensor | Jagged = torch.from_numpy(self.ids)
        if self.offsets is not None:
            ids = Jagged(torch.from_numpy(self.ids), torch.from_numpy(self.offsets))
        dense = {"dense": torch.from_numpy(self.dense)} if self.dense.shape[1] else {}
        return Batch(len(self), {"slots": ids}, dense, torch.from_numpy(self.labels), first)


def join(parts: Sequence[Samples]) -> Samples:
    """All samples of the parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    labels = np.concatenate([part.labels for part in parts])
    dense = np.concatenate([part.dense for part in parts])
    if all(part.offsets is None for part in parts):
        return Samples(first.num_slots, labels, dense, np.concatenate([p.ids for p in parts]))
    lengths = [
        np.ones(part.ids.size, np.int64) if part.offsets is None else np.diff(part.offsets)
        for part in parts
    ]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    ids = np.concatenate([part.ids.reshape(-1) for part in parts])
    return Samples(first.num_slots, labels, dense, ids, offsets)


# ---- batches ------------------------------------------------------------------------------------


class HeldSamples(Protocol):
    """Samples that are in memory, or in files that are mapped: Samples, those of data/joined.py."""

    def __len__(self) -> int: ...

    def batch_of(self, rows: slice | np.ndarray) -> Batch:
        """The batch of the given samples, in the given order."""
        ...


class ClickReader(Reader):
    """Base: how a global batch is cut over ranks.

    tile: for evaluation, every rank is given whole tiles of so many samples, so that the arithmetic
    of a tile does not depend on the number of ranks; a global batch is then a tile for each rank.
    """

    known_samples: int | None = None  # None: known only when all have been read
    columns: Mapping[str, str] = MappingProxyType({})  # of features that have fields of their own

    def __init__(
        self,
        layout: Layout,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        tile: int | None = None,
    ):
        super().__init__(batch_size, seed, shuffle)
        self.layout, self.tile = layout, tile

    @property
    def num_batches(self) -> int | None:
        """Global batches per epoch, or None where that is known only at the end."""
        if self.known_samples is None:
            return None
        return -(-self.known_samples // self.batch_size)

    def num_tiles(self, size: int) -> int | None:
        """Steps of an evaluation on `size` ranks; None where that is known only at the end."""
        count = self.known_samples
        return None if count is None else -(-count // self.global_size(size))

    def sample(self, rows: int) -> Batch:
        """At most so many samples, to look at: the first; those in memory from front to back."""
        first = next(self.batches(0), None)
        return self.empty() if first is None else first.rows(0, min(rows, first.size))

    def empty(self) -> Batch:
        """A batch without samples, for a rank that has none left."""
        return self.finish(Samples.none(self.layout).batch())

    def describe(self, features: Sequence[Feature]) -> None:
        """Give the ids and numbers of every feature in a field of its own, too."""
        self.columns = {feature.name: feature.column for feature in features}

    def finish(self, batch: Batch) -> Batch:
        if not self.columns:
            return batch
        extended = per_feature(batch, self.layout, self.columns)
        if self.tile is None:  # GAUC groups by a slot, and nothing in training reads them
            del extended.ids["slots"]
        return extended

    def global_size(self, size: int) -> int:
        return self.batch_size if self.tile is None else self.tile * size

    def cut(self, count: int, rank: int, size: int) -> tuple[int, int]:
        if self.tile is None:
            return super().cut(count, rank, size)
        return min(count, rank * self.tile), min(count, (rank + 1) * self.tile)


class InMemory(ClickReader):
    """All samples, loaded or mapped. Order: a pure function of (seed, epoch), or the files'."""

    def __init__(
        self,
        samples: HeldSamples,
        layout: Layout,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        tile: int | None = None,
    ):
        super().__init__(layout, batch_size, seed, shuffle, tile)
        self.samples, self.num_samples = samples, len(samples)
        self.known_samples = self.num_samples

    def make(self, samples: np.ndarray, epoch: int) -> Batch:
        if not self.shuffle and len(samples) and samples[-1] - samples[0] == len(samples) - 1:
            return self.samples.batch_of(slice(int(samples[0]), int(samples[-1]) + 1))  # views
        return self.samples.batch_of(samples)

    def sample(self, rows: int) -> Batch:
        places = np.linspace(0, self.num_samples - 1, min(rows, self.num_samples))
        return self.finish(self.samples.batch_of(places.astype(np.int64)))
