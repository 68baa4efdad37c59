"""The work of a step of models that others published: MLPerf's DLRM-DCNv2, NVIDIA's HSTU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shoal.planning.step_work import Operations, Popularity, TableWork, Work

DLRM_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)
DLRM_HOTNESS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
    *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
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
