"""Store: one table's rows as a checkpoint sees them, wherever they live.

An engine (shoal.embedding.engines) is the store that holds rows in this process; it alone reads
and updates them. Models come by a row service (shoal.embedding.service), and never ask which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from shoal.embedding.rows.admission import Admission, Filter, Pending
from shoal.embedding.rows.table import Table


class Every(Enum):
    """In the place of ids: every row of a fixed table, in order."""

    ROW = "every row"


EVERY = Every.ROW
Ids = Tensor | Literal[Every.ROW]


@dataclass(frozen=True)
class Rows:
    """A chunk of rows as checkpoints hold them: keyed by id, in ascending order of id."""

    ids: Tensor  # [n] int64
    values: Tensor  # [n, dim] float32
    state: dict[str, Tensor] = field(default_factory=dict)  # optimizer state, each [n] or [n, dim]

    def select(self, places: Tensor | slice) -> Rows:
        """The rows at these places."""
        state = {key: part[places] for key, part in self.state.items()}
        return Rows(self.ids[places], self.values[places], state)


class Store(Protocol):
    """Rows that are saved and restored by id. Where ranks hold a table together, all call it."""

    table: Table
    admission: Admission | None  # how ids are counted; None: they are not
    step: int  # how many steps the rows have had; set on restore

    def state_shapes(self, n: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every piece of state, and of every counter, of n rows."""

    def export(self, chunk_rows: int = 1 << 20) -> Iterator[Rows]:
        """Every row, in chunks, ascending ids over all chunks."""

    def mark(self) -> int:
        """A point in time for `export(since=...)`; 0: changes are not tracked."""

    def restore(self, rows: Rows) -> None:
        """Take over the given rows, values and state; rows not named stay as they are."""

    def forget(self) -> None:
        """Drop every row of a growing table, and every count."""


class CountedStore(Store, Protocol):
    """A store of a table whose ids are counted (`admission`)."""

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Counters of the ids without a row, in chunks of ascending id."""

    def restore_pending(self, pending: Pending) -> None:
        """Take over counters of ids without a row."""

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of the Bloom filter; (0, 0) where ids are counted exactly."""

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """The Bloom filter in parts; none where ids are counted exactly."""

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of a Bloom filter."""


def as_counted(store: Store) -> CountedStore | None:
    """The store, where its ids are counted; None: they are not."""
    return None if store.admission is None else cast(CountedStore, store)
