"""The work of one training step, as bytes and operations: nothing here knows a machine.

A Work comes from a config (counting.py) or from plain figures, as published models have them:
`dlrm_dcnv2` (MLPerf's) and `hstu` (NVIDIA's recsys-examples).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Popularity:
    """How many distinct rows some ids of a table are, by their number; what the top one has.

    >>> Popularity.uniform(1000).distinct(10**6)
    1000.0
    """

    points: tuple[tuple[float, float], ...]  # ids -> distinct ones, ascending
    top: float  # the share of all ids that are the most popular one

    def distinct(self, ids: float) -> float:
        """Expected distinct rows of so many ids; between points a straight line of logarithms."""
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
        risen = seen[k] - seen[k - 1]
        share = (math.log(slots) - seen[k - 1]) / risen if k and risen > 0 else 0.0
        before = math.exp(sizes[max(0, k - 1)] + share * (sizes[k] - sizes[max(0, k - 1)]))
        return max(0.0, min(self.distinct(before + ids) - slots, self.distinct(ids)))

    @classmethod
    def uniform(cls, rows: float) -> Popularity:
        """Every row as often as any other."""
        return cls.zipf(rows, 0.0)

    @classmethod
    def zipf(cls, rows: float, alpha: float) -> Popularity:
        """The k-th row is asked for in proportion to 1 / k^alpha."""
        edges = np.unique(np.floor(np.geomspace(1, max(1.0, rows) + 1, 400)))
        if len(edges) < 2:
            return cls(((1.0, 1.0), (1e15, 1.0)), 1.0)
        counts = np.diff(edges)
        middle = np.sqrt(edges[:-1] * (edges[1:] - 1).clip(1))
        weights = middle**-alpha
        return cls.of_shares(weights / (weights * counts).sum(), counts)

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Popularity:
        """Rows that were asked for so often: [rows]."""
        found, times = np.unique(counts[counts > 0], return_counts=True)
        if not len(found):
            return cls.uniform(max(1, len(counts)))
        return cls.of_shares(found / counts.sum(), times)

    @classmethod
    def of_shares(cls, shares: np.ndarray, times: np.ndarray) -> Popularity:
        """Kinds of rows: what a row of the kind has of all ids, and how many rows there are."""
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
        """A row with its optimizer's state."""
        return self.value_bytes + self.state_bytes

    @property
    def bytes(self) -> int:
        """All rows with their state."""
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
        """As much of everything."""
        return Operations(
            *(factor * x for x in (self.products, self.attention, self.elementwise, self.kernels))
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
        """All rows with their state."""
        return sum(table.bytes for table in self.tables)

    def of_batch(self, batch: int) -> Work:
        """The same with another global batch."""
        return replace(self, batch=batch)


# ---- published models ---------------------------------------------------------------------------

DLRM_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)
DLRM_HOTNESS = (
    3,
    2,
    1,
    2,
    6,
    1,
    1,
    1,
    1,
    7,
    3,
    8,
    1,
    6,
    9,
    5,
    1,
    1,
    1,
    12,
    100,
    27,
    10,
    3,
    1,
    1,
)  # ids of each table: 214


def perceptron(widths: Sequence[int]) -> tuple[int, int]:
    """Multiplications and layers of a stack of linear layers, for a sample."""
    pairs = list(pairwise(widths))
    return sum(a * b for a, b in pairs), len(pairs)


def dlrm_dcnv2(batch: int, alpha: float = 1.05) -> Work:
    """MLPerf's DLRM-DCNv2 as its submissions run it: half precision, one recorded graph."""
    dim, width, rank, crosses = 128, 27 * 128, 512, 3
    bottom = perceptron((13, 512, 256, 128))
    top = perceptron((width, 1024, 1024, 512, 256, 1))
    products = 2.0 * (bottom[0] + top[0] + crosses * 2 * width * rank)
    # Half precision. Linear layers, biases and relu are one kernel each way, whose bytes are part
    # of what products reach. Left are the crosses, x' = x0 * (product) + x: four numbers of each
    # place forward, ten backward; and rows put side by side.
    forward, backward = 2.0 * width * (4 * crosses + 2), 2.0 * width * (10 * crosses + 2)
    layers = bottom[1] + top[1] + 2 * crosses
    tables = tuple(
        TableWork(f"t{k}", rows, dim, hot, 1.0, Popularity.zipf(rows, alpha), 4 * dim, 4 * dim)
        for k, (rows, hot) in enumerate(zip(DLRM_ROWS, DLRM_HOTNESS))
    )
    parameters = bottom[0] + top[0] + crosses * 2 * width * rank
    return Work(
        name="DLRM-DCNv2",
        batch=batch,
        samples=4_195_197_692,
        tables=tables,
        forward=Operations(products=products, elementwise=forward),
        backward=Operations(products=2 * products, elementwise=backward),
        forward_step=Operations(kernels=layers + 3 * crosses + 10),
        backward_step=Operations(kernels=3 * layers + 4 * crosses + 20),
        parameters=int(parameters),
        optimizer_bytes=20.0,  # Adagrad: weight and state read and written, gradient read
        precision="bfloat16",
        recorded=True,
        sent_bytes=2,
        reduced_bytes=2,
        overlapped=True,
        input_bytes=4.0 * (13 + 1 + sum(DLRM_HOTNESS)),
        sources=("MLPerf Training, recommendation_v2: tables, ids of a sample, layers",),
    )


def hstu(batch: int, length: int = 4099) -> Work:
    """HSTU as NVIDIA's recsys-examples measure it: 8 layers, width 1024, 4 heads of 256, bfloat16.

    A token is an id of one of two growing tables of 50M rows x 128 (dynamicemb, Adam).
    """
    layers, width, dim, rows = 8, 1024, 128, 50_000_000
    products = 2.0 * length * (layers * 5 * width * width + dim * width)
    attention = layers * 2.0 * length * length * width  # causal: half of all pairs
    # Numbers of the width that a layer moves beside its products. Forward: norm 2, silu of four
    # widths 8, norm and gate of what attention gives 3, residual 3. Backward: gate 5, silu 12, norm
    # and residual 5, sums of biases and scales 6, and norm and silu once more, which are not kept.
    moved = 2.0 * length * width * layers
    popularity = Popularity.zipf(rows, 1.05)
    tables = tuple(
        TableWork(
            *(name, rows, dim, length / 2, length / 2, popularity, 4 * dim, 8 * dim),
            id_seconds=31.8e-9,  # 33.3 ms for 1,048,570 ids without a cache, published beside it
        )
        for name in ("item", "action")
    )
    return Work(
        name="HSTU",
        batch=batch,
        samples=1e8,
        tables=tables,
        forward=Operations(products, attention, 16 * moved),
        backward=Operations(2 * products, 2.5 * attention, 38 * moved),
        forward_step=Operations(kernels=12 * layers + 40),
        backward_step=Operations(kernels=30 * layers + 80),
        parameters=layers * 5 * width * width + dim * width,
        precision="bfloat16",
        input_bytes=16.0 * length,
        pooled=False,
        sources=("NVIDIA recsys-examples, HSTU training benchmark: shapes",),
    )


PUBLISHED = {"dlrm-dcnv2": dlrm_dcnv2, "hstu": hstu}
