"""Steps of ours that RESULTS.md has, as shapes: what the planner is held against without a run.

Each has the command that measured it (see RESULTS.md for dates and machines).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from published_models import dlrm_dcnv2, hstu

from shoal.planning.cluster import Estimate
from shoal.planning.prediction import RunLayout
from shoal.planning.presets import CLUSTERS
from shoal.planning.step_work import Operations, Popularity, TableWork, Work

if TYPE_CHECKING:
    from plan import Row

STATE = {"SGD": 0, "Adagrad": 1, "Adam": 2}  # numbers for each number of a row
ALONE = RunLayout("single")


def tables(
    number: int, rows: int, dim: int, optimizer: str, ids: float, alpha: float, vectors: float = 1.0
) -> Work:
    """Rows alone: tables that are looked up and updated."""
    state = 4 if optimizer == "row-wise" else 4 * dim * STATE[optimizer]
    how = (Popularity.zipf(rows, alpha), 4 * dim, state)
    every = tuple(TableWork(f"t{k}", rows, dim, ids, vectors, *how) for k in range(number))
    nothing = Operations()
    return Work("rows", 1, 1.0, every, nothing, nothing, recorded=True, pooled=False)


def dlrm(precision: str) -> Work:
    """benchmarks/dlrm_gpu.py: 26 slots of 384,616 x 64, batch 65,536, Adagrad."""
    rows = tables(26, 384_616, 64, "Adagrad", 1.0, 1.05)
    bottom, pairs = (13 * 512 + 512 * 256 + 256 * 64 + 64 * 64), 27 * 27 * 64
    top = (64 + 27 * 13) * 512 + 512 * 256 + 256
    wide = 2.0 if precision == "bfloat16" else 4.0
    moved = wide * (27 * 64 * 3 + 2 * (512 + 256 + 64 + 64 + 415 + 512 + 256))
    products = 2.0 * (bottom + top + pairs)
    return replace(
        rows,
        name="DLRM",
        batch=65_536,
        forward=Operations(products=products, elementwise=moved),
        backward=Operations(products=2 * products, elementwise=2 * moved),
        forward_step=Operations(kernels=20),
        backward_step=Operations(kernels=40),
        parameters=bottom + top,
        optimizer_bytes=20.0,
        precision=precision,
        input_bytes=4.0 * (13 + 1) + 8 * 26,
        joined=0.5,
    )


def bert4rec(batch: int) -> Work:
    """benchmarks/bert4rec_gpu.py: 500,000 items x 128, length 16, two layers, Adam.

    Products of float32 are three of float16 there, about as fast as TF32.
    """
    rows, dim, length, masked = 500_002, 128, 16, 16 * 0.2
    popularity = Popularity.uniform(rows)
    items = TableWork("item", rows, dim, length, length, popularity, 4 * dim, 8 * dim)
    output = replace(items, name="output", ids=0.0, vectors=0.0, whole=True)
    layer = 12 * dim * dim
    products = 2.0 * (2 * layer * length + masked * rows * dim)
    moved = 4.0 * (2 * 30 * dim * length + 2 * masked * rows)
    attention = 2 * 4.0 * length * length * dim
    return Work(
        name="BERT4Rec",
        batch=batch,
        samples=1.0,
        tables=(items, output),
        forward=Operations(products, attention, moved),
        backward=Operations(2 * products, 2 * attention, 2 * moved),
        forward_step=Operations(kernels=40),
        backward_step=Operations(kernels=80),
        parameters=2 * layer,
        precision="tf32",
        recorded=True,
        pooled=False,
    )


def on_gpu() -> list[Row]:
    """One H200."""
    from plan import Row

    h200, found = CLUSTERS["DGX-H200"], []
    for optimizer, many, one in (
        ("SGD", 0.672, 0.662),
        ("Adagrad", 0.889, 0.861),
        ("row-wise", 0.727, 0.692),
        ("Adam", 1.107, 1.056),
    ):
        work = tables(26, 1_000_000, 64, optimizer, 1.0, 0.0).of_batch(65_536)
        found.append(Row(f"26 x 1M x 64, {optimizer}", work, h200, ALONE, many))
        work = tables(1, 10_000_000, 64, optimizer, 1.0, 0.0).of_batch(1_703_936)
        found.append(Row(f"10M x 64, {optimizer}", work, h200, ALONE, one))
    for optimizer, ms in (("SGD", 0.575), ("Adam", 0.759)):
        work = tables(10, 1_600_000, 128, optimizer, 1.0, 1.05).of_batch(104_857)
        found.append(Row(f"10 x 1.6M x 128, {optimizer}", work, h200, ALONE, ms))
    for precision, ms in (("tf32", 2.849), ("bfloat16", 2.007)):
        found.append(Row(f"DLRM, {precision}", dlrm(precision), h200, ALONE, ms))
    tenth = RunLayout("tiers", in_memory=0.09)
    found.append(Row("DLRM, tf32, a tenth in memory", dlrm("tf32"), h200, tenth, 4.46))
    mlperf = dlrm_dcnv2(55_296)
    every = tuple(replace(table, state_bytes=4) for table in mlperf.tables)
    mlperf = replace(mlperf, tables=every)
    for part in ("forward", "backward"):  # float32 between layers, where others have half
        one = getattr(mlperf, part)
        mlperf = replace(mlperf, **{part: replace(one, elementwise=2 * one.elementwise)})
    found.append(Row("DLRM-DCNv2, compiled", mlperf, h200, ALONE, 20.95))
    for batch, precision, ms in (
        (8, "float32", 1.199),
        (8, "tf32", 1.125),
        (64, "float32", 2.26),
        (512, "float32", 8.566),
        (512, "tf32", 8.28),
    ):
        name = f"BERT4Rec, batch {batch}, {precision}"
        found.append(Row(name, bert4rec(batch), h200, ALONE, ms))
    for batch, length, ms in ((32, 4_099, 154.8), (1, 16_384, 52.5)):
        work = hstu(batch, length)
        own = tuple(replace(t, rows=10_000_000, id_seconds=0.0) for t in work.tables)
        work = replace(work, tables=own, recorded=True)
        found.append(Row(f"HSTU, {batch} x {length:,}", work, h200, ALONE, ms))
    return found


def on_cores() -> list[Row]:
    """Two ARM cores: rows alone, on one thread and on two."""
    from plan import Row

    arm, found = CLUSTERS["arm-2"], []
    rates = replace(arm.efficiency, step=Estimate(0.0, 0.0, 0.0))  # rows alone: no step around them
    arm = replace(arm, efficiency=rates)
    for name, work, one, two in (
        (
            "26 x 100,000 x 16",
            tables(26, 100_000, 16, "Adagrad", 1.0, 0.0).of_batch(4096),
            9.29,
            5.30,
        ),
        (
            "1M x 64, zipf",
            tables(1, 1_000_000, 64, "Adagrad", 1.0, 1.05).of_batch(81_920),
            11.68,
            6.79,
        ),
        (
            "1M x 64, bags of 20",
            tables(1, 1_000_000, 64, "Adagrad", 20.0, 1.05).of_batch(4096),
            14.01,
            8.35,
        ),
    ):
        found.append(Row(f"{name}, 1 thread", work, arm, RunLayout("single"), one))
        found.append(Row(f"{name}, 2 threads", work, arm, RunLayout("single", threads=2), two))
    return found
