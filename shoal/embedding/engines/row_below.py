"""RowsBelow: an engine below another, as the log that the upper one writes its rows to.

So three tiers are two engines of two: GPU memory over (host memory over a disk). A place of a log
names a record for good; here it is version × rows + id, and every time rows are written the version
is another: what was read ahead before is known to be old.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class RowsBelow:
    """The rows of a `Tiered` engine of a fixed table, by places."""

    segment_rows = 1  # no segments: nothing is ever dead

    def __init__(self, engine: Any):
        self.engine, self.words = engine, engine.log.words
        self._rows = int(engine.table.rows)
        self._version = 0
        self._busy = threading.Lock()  # what is read ahead is read in a thread

    @property
    def next(self) -> int:
        """Places of rows that are written later are no smaller."""
        return (self._version + 1) * self._rows

    def append(self, records: Tensor) -> Tensor:
        """Write rows; their places [n]."""
        ids, order = records[:, 0].sort()
        with self._busy:
            self.engine.restore(self.engine._rows(records[order], ids))
            self._version += 1
        return self._version * self._rows + records[:, 0]

    def snapshot(self) -> dict[int, Tensor]:
        return {}

    def read(self, places: Tensor, segments: dict[int, Tensor] | None = None) -> Tensor:
        """Records [n, words] of places [n], which stay where they are."""
        ids = places % self._rows
        if not len(ids):
            return torch.empty(0, self.words, dtype=torch.int64)
        with self._busy:
            return self.engine._records(ids, self.engine._peek(ids))

    def kill(self, places: Tensor) -> None:
        """They are above now; what is here of them is overwritten when they return."""

    def sparse(self) -> Iterator[tuple[int, Tensor]]:
        return iter(())

    def clear(self) -> None:
        self.engine.forget()
