"""The work of one training step, as bytes and operations: nothing here knows a machine.

A Work comes from a config (step_counter.py), or from plain figures.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Popularity:
    """How often rows of a table are looked up: expected distinct rows of a number of ids.

    >>> Popularity.uniform(1000).distinct(10**6)
    1000.0
    """

    points: tuple[tuple[float, float], ...]  # ids -> distinct ones, ascending
    top: float  # the share of all ids that are the most popular one

    def distinct(self, ids: float) -> float:
        """Expected distinct rows of `ids` ids; interpolated linearly on logarithmic scales."""
        if ids <= 1:
            return max(0.0, ids)
        x, (sizes, seen) = math.log(ids), self._logarithms
        k = min(max(1, bisect(sizes, x)), len(sizes) - 1)
        share = (x - sizes[k - 1]) / (sizes[k] - sizes[k - 1])
        return min(ids, math.exp(seen[k - 1] + min(1.0, share) * (seen[k] - seen[k - 1])))

    @cached_property
    def _logarithms(self) -> tuple[list[float], list[float]]:
        return [math.log(n) for n, _ in self.points], [math.log(d) for _, d in self.points]

    def missed(self, ids: float, slots: float) -> float:
        """Rows of the next `ids` that are not among the last `slots` distinct ones.

        >>> Popularity.uniform(1000).missed(10, 1000)
        0.0
        """
        sizes, seen = self._logarithms
        if slots < 1:
            return self.distinct(ids)
        k = bisect(seen, math.log(slots))
        if k >= len(seen):
            return 0.0
        added = seen[k] - seen[k - 1]
        share = (math.log(slots) - seen[k - 1]) / added if k and added > 0 else 0.0
        before = math.exp(sizes[max(0, k - 1)] + share * (sizes[k] - sizes[max(0, k - 1)]))
        return max(0.0, min(self.distinct(before + ids) - slots, self.distinct(ids)))

    @classmethod
    def uniform(cls, rows: float) -> Popularity:
        """Popularity where every row is looked up equally often."""
        return cls.zipf(rows, 0.0)

    @classmethod
    def zipf(cls, rows: float, alpha: float) -> Popularity:
        """The k-th row is looked up in proportion to 1 / k^alpha."""
        edges = np.unique(np.floor(np.geomspace(1, max(1.0, rows) + 1, 400)))
        if len(edges) < 2:
            return cls(((1.0, 1.0), (1e15, 1.0)), 1.0)
        counts = np.diff(edges)
        middle = np.sqrt(edges[:-1] * (edges[1:] - 1).clip(1))
        weights = middle**-alpha
        return cls.of_shares(weights / (weights * counts).sum(), counts)

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Popularity:
        """Popularity from how often each row was looked up: counts [rows]."""
        distinct_counts, times = np.unique(counts[counts > 0], return_counts=True)
        if not len(distinct_counts):
            return cls.uniform(max(1, len(counts)))
        return cls.of_shares(distinct_counts / counts.sum(), times)

    @classmethod
    def of_shares(cls, shares: np.ndarray, times: np.ndarray) -> Popularity:
        """Popularity from kinds of rows: the share of all ids of a row, and the number of rows."""
        sizes = np.geomspace(1, 1e13, 53)
        missed = np.exp(sizes[:, None] * np.log1p(-np.minimum(shares, 1 - 1e-12))[None, :])
        seen = ((1.0 - missed) * times[None, :]).sum(axis=1)
        points = tuple((float(n), float(max(1.0, d))) for n, d in zip(sizes, seen))
        return cls(points, float(shares.max()))


@dataclass(frozen=True)
class TableWork:
    """One table, and what a sample reads of it."""

    name: str
    rows: int  # of a table that grows: as many as are expected
    dim: int
    ids: float  # of a sample
    vectors: float  # of a sample, after pooling
    popularity: Popularity
    value_bytes: int  # of a row
    state_bytes: int = 0  # of a row, of its optimizer
    id_seconds: float = 0.0  # that a library takes for an id beside all this
    whole: bool = False  # every step reads and updates all rows (an output layer)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its optimizer's state."""
        return self.value_bytes + self.state_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all rows with their optimizers' state."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Operations:
    """What a device does: floating-point operations, bytes in order, kernels."""

    products: float = 0.0  # operations in products of matrices
    attention: float = 0.0  # operations in attention
    elementwise: float = 0.0  # bytes read and written by everything else
    kernels: float = 0.0  # that are launched

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.products + other.products,
            self.attention + other.attention,
            self.elementwise + other.elementwise,
            self.kernels + other.kernels,
        )

    def times(self, factor: float) -> Operations:
        """Every kind of operation multiplied by a factor."""
        return Operations(
            products=factor * self.products,
            attention=factor * self.attention,
            elementwise=factor * self.elementwise,
            kernels=factor * self.kernels,
        )


@dataclass(frozen=True)
class Work:
    """One step of a global batch."""

    name: str
    batch: int  # samples of all processes
    samples: float  # of an epoch
    tables: tuple[TableWork, ...]
    forward: Operations  # of a sample
    backward: Operations
    forward_step: Operations = field(default_factory=Operations)  # of a step, for any batch
    backward_step: Operations = field(default_factory=Operations)
    parameters: int = 0  # dense ones
    optimizer_bytes: float = 28.0  # that an update moves for a dense parameter
    precision: str = "float32"  # of products
    recorded: bool = False  # whether a step is one recorded graph, launched at once
    sent_bytes: int = 4  # of a number of a row that travels
    reduced_bytes: int = 4  # of a dense gradient that travels
    input_bytes: float = 0.0  # of a sample, from the host to its device
    input_seconds: float = 0.0  # of a core, to make a sample
    ahead: bool = True  # whether batches are made while others are trained
    pooled: bool = True  # whether rows are summed where they lie, before they travel
    joined: float = 1.0  # on GPUs: what is left of elementwise work where kernels join operations
    overlapped: bool = False  # whether dense gradients travel while rows are updated
    sources: tuple[str, ...] = ()  # where the figures are from

    @property
    def ids(self) -> float:
        """Ids of a sample, of all tables that are looked up."""
        return sum(table.ids for table in self.tables if not table.whole)

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows with their optimizers' state."""
        return sum(table.bytes for table in self.tables)

    def of_batch(self, batch: int) -> Work:
        """This work with another global batch."""
        return replace(self, batch=batch)
