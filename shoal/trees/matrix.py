"""Samples of a run as a matrix, in two readings: one counts their ids, one fills the matrix.

samples  ->  counts of ids  ->  columns
samples, columns            ->  matrix [n, columns], labels [n], weights [n]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from shoal.data.batch import Batch
from shoal.trees.columns import IdCounts, Ids, TreeColumns, slot_ids

Continues = Callable[[], None]  # called after every batch: other processes wait for this one


@dataclass
class Matrix:
    """Samples as numbers: values float32 [n, columns], labels float32 [n], weights [n] or None."""

    columns: TreeColumns
    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None

    @classmethod
    def num_bytes(cls, num_samples: int, columns: TreeColumns) -> int:
        """Memory of a matrix and of the copy that a library makes of it."""
        return 2 * 4 * num_samples * (columns.width + 2)


@dataclass(frozen=True)
class SampleReader:
    """How the samples of one model are read: its sparse features, and its dense values.

    names: the fields of a batch with ids; None: its field `slots` has all of them.
    dense: the dense values of a batch, [b, num_dense].
    """

    model: str  # in errors
    names: Sequence[str] | None
    num_slots: int
    num_dense: int
    dense: Callable[[Batch], Tensor]

    def ids(self, batch: Batch) -> list[Ids]:
        """The ids of each sparse feature of a batch."""
        return slot_ids(batch, self.names, self.num_slots)

    def fill(self, columns: TreeColumns, values: np.ndarray, batch: Batch) -> None:
        """Write the samples of a batch into rows of a matrix, [b, columns]."""
        columns.fill(values, self.ids(batch), self.dense(batch).numpy())

    def count(self, batches: Iterator[Batch], continues: Continues) -> tuple[int, list[IdCounts]]:
        """The first reading: how many samples there are, and how often each feature's ids."""
        counts = [IdCounts() for _ in range(self.num_slots)]
        num_samples = 0
        for batch in batches:
            num_samples += batch.size
            for id_counts, ids in zip(counts, self.ids(batch)):
                id_counts.add(ids)
            continues()
        return num_samples, counts

    def matrix(
        self,
        num_samples: int,
        columns: TreeColumns,
        batches: Iterator[Batch],
        continues: Continues,
    ) -> Matrix:
        """The second reading: all samples as a matrix."""
        values = np.empty((num_samples, columns.width), np.float32)
        matrix = Matrix(columns, values, labels=np.empty(num_samples, np.float32))
        filled = 0
        for batch in batches:
            rows = slice(filled, filled + batch.size)
            if rows.stop > num_samples:
                raise ValueError(f"the samples of {self.model} grew while they were read")
            assert batch.labels is not None, "a click model learns from labels"
            self.fill(columns, values[rows], batch)
            matrix.labels[rows] = batch.labels.numpy()
            if batch.weights is not None:
                if matrix.weights is None:
                    matrix.weights = np.ones(num_samples, np.float32)
                matrix.weights[rows] = batch.weights.numpy()
            filled = rows.stop
            continues()
        if filled != num_samples:
            raise ValueError(f"the samples of {self.model} became fewer while they were read")
        return matrix
