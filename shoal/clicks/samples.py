"""Samples of a click log as columns, and which columns there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shoal.config.data_section import CellOptions, Vocabulary
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.data.raw_columns import gather


@dataclass(frozen=True)
class Layout:
    """The columns of a click log.

    A name may come several times in `dense`: so many values it has. `rows`: ids are folded below
    this number. `others`: what is not named here is passed over; else it is an error. `slot_rows`:
    ids count from 0 in each slot, which has so many; `place` gives those of all slots together.
    `cells`: how the cells of columns of text are read, where that is not as they stand.
    """

    slots: tuple[str, ...]
    dense: tuple[str, ...]
    label: str
    rows: int | None = None
    others: bool = False
    slot_rows: tuple[int, ...] = ()
    cells: Mapping[str, CellOptions] = field(default_factory=dict)

    def features(self) -> tuple[Feature, ...]:
        """The columns as features: slots with one table for all, and numbers."""
        vocabulary: Vocabulary = "growing" if self.rows is None else "hashed"
        slots = [
            Feature(name, "ids", vocabulary=vocabulary, rows=self.rows, table="slots")
            for name in self.slots
        ]
        counts = Counter(self.dense)
        dense = [
            Feature(name, "numbers" if count > 1 else "number", length=count if count > 1 else None)
            for name, count in counts.items()
        ]
        return (*slots, *dense)

    def fold(self, ids: np.ndarray) -> np.ndarray:
        """Ids below `rows`. Those that fit stay; 0 (missing) stays 0, and no other becomes 0."""
        rows = self.rows
        if rows is None or ids.size == 0:
            return ids
        if ids.min() >= 0 and ids.max() < rows:
            return ids
        outside = (ids < 0) | (ids >= rows)
        # Modulo first: id - 1 would overflow for the smallest id.
        folded = (ids % (rows - 1) - 1) % (rows - 1) + 1 if rows > 1 else np.zeros_like(ids)
        return np.where(outside, folded, ids)

    def place(self, ids: np.ndarray, slot: int, out: np.ndarray | None = None) -> np.ndarray:
        """Ids of one slot, from 0, as ids among those of all slots, from 1: int64."""
        if ids.max(initial=0) >= self.slot_rows[slot]:
            ids = ids % self.slot_rows[slot]
        return np.add(ids, 1 + sum(self.slot_rows[:slot]), out=out, dtype=np.int64)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Layout:
        """The layout in a manifest: what `asdict` returned, with the lists of JSON for tuples."""
        lists = {key: tuple(entry.get(key, ())) for key in ("slots", "dense", "slot_rows")}
        return cls(**{**entry, **lists})


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
