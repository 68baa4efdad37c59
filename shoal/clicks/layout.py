"""Layout: which columns a click log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.config.data_section import CellOptions, Vocabulary
from shoal.data.features import Feature


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
