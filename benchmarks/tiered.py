"""Rows in host memory over rows on a disk, beside all rows in host memory.

    python benchmarks/tiered.py                 # one table ten times the host budget, zipf ids
    python benchmarks/tiered.py --folder /ssd   # where the disk is; else a temporary folder
    python benchmarks/tiered.py --gpu           # GPU memory over host memory, DLRM end to end

A step is what a worker does with rows: pull of the batch's rows, push of gradients as many; the
next batch is announced before. `model` adds products of the batch as large as a small click model
has, beside which rows are read ahead. Both leaves run in one process, turn by turn, on the same
ids; at the end some rows of both are compared, bit for bit.

With --gpu a step is DLRM's (benchmarks/dlrm_gpu.py: 26 slots, width 64, batch 65,536, Adagrad) with
TF32, its table ten times rows.tiers.gpu, beside the same in GPU memory; steps are recorded
(strategy.graph: auto), and once more not. The next batch is announced before each step, as the
trainer does. Losses of all must agree, up to TF32's rounding in another order.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.data.batch import Batch
from shoal.embedding.engines.budgets import row_bytes
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.engines.traffic import Traffic
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.strategies.base import Strategy


def draw(step: int, args: argparse.Namespace) -> Tensor:
    """Zipf ids of one step, the same in every run: [ids]."""
    generator = torch.Generator().manual_seed(step)
    u = torch.rand(args.batch * args.slots, generator=generator, dtype=torch.float64)
    rest = 1.0 - args.power
    rank = (1.0 + u * (args.rows**rest - 1.0)) ** (1.0 / rest)
    return (rank.long() * 0x9E3779B1) % args.rows  # frequent ids lie anywhere


def run(leaf: RowEngine, steps: range, args: argparse.Namespace, model: list[Tensor]) -> float:
    """Seconds of a step, the mean: rows are written to the disk in some steps alone."""
    total = 0.0
    grads = torch.full((args.batch * args.slots, args.dim), 1e-3)
    following = draw(steps[0], args)
    for step in steps:
        ids, following = following, draw(step + 1, args)
        begin = time.perf_counter()
        leaf.prefetch([following])
        rows = leaf.pull(ids)
        x = rows.view(args.batch, -1)
        for weight in model:
            x = x @ weight
        leaf.push(ids, grads, 0.01)
        total += time.perf_counter() - begin
    return total / len(steps)


def run_gpu(args: argparse.Namespace) -> None:
    """DLRM whose rows have a tenth of what they need in GPU memory, beside all of it."""
    import dlrm_gpu

    from shoal.config.row_rules import RowsSection, TiersSection
    from shoal.config.schema import OptimizerSection
    from shoal.distributed.world import World
    from shoal.training.strategies.base import Single
    from shoal.training.strategies.graphed import Graphed

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    given = argparse.Namespace(
        device=device,
        rows=args.rows // 26 * 26,
        dim=args.dim,
        batch=args.batch,
        power=args.power,
    )
    torch.set_float32_matmul_precision("high")
    batches = dlrm_gpu.make_batches(given, 24, 0)
    table = Table("slots", args.dim, given.rows, Init("uniform", 0.01))
    budget = int(args.share * given.rows * row_bytes(table, RowOptimizer(args.optimizer)))
    print(f"{given.rows:,} x {args.dim}, {args.optimizer}; rows.tiers.gpu {budget / 1e9:.2f} GB")
    print(f"{'a step':34}{'ms':>9}{'samples/s':>13}{'rate':>7}{'hits':>8}")
    first, losses = 0.0, []
    part = f"{args.share:.0%} of them"
    sides = [("all rows in GPU memory", None, Graphed(World(device), auto=True))]
    sides += [(part, budget, Graphed(World(device), auto=True))]
    sides += [(f"{part}, not recorded", budget, Single(World(device)))]
    sides += [("all rows, not recorded", None, Single(World(device)))]
    while sides:
        name, share, strategy = sides.pop(0)
        rows = RowsSection(tiers=TiersSection(gpu=share))
        learns = {"name": args.optimizer}
        section = OptimizerSection(name="adagrad", lr=0.01, rows=learns)
        strategy.setup(dlrm_gpu.make_model(given), section, 1, rows=rows)
        group = strategy.stores["slots"].group
        found, before = [], None
        following = strategy.receive(batches[0])
        for step in range(2 * len(batches) + args.steps):
            if step == 2 * len(batches):
                wait()
                before = group.traffic if group.cached else None
                begin = time.perf_counter()
            batch, following = following, strategy.receive(batches[(step + 1) % len(batches)])
            strategy.prefetch(following)
            found.append(strategy.train_step(batch))
        wait()
        seconds = (time.perf_counter() - begin) / args.steps
        losses.append(torch.stack(found).double().cpu())
        first = first or seconds
        line = f"{name:34}{1e3 * seconds:9.2f}{given.batch / seconds:13,.0f}{first / seconds:7.0%}"
        if before is not None:
            now, total = group.traffic, args.steps * given.batch * 26
            late, ahead = (
                (b - a) / total for a, b in ((before.cold, now.cold), (before.ahead, now.ahead))
            )
            line += f"{1 - late - ahead:8.1%}{ahead:8.1%}{late:8.1%}"
        print(line, flush=True)
        group.check()
        if args.profile and group.cached:
            profile(strategy, batches)
        del strategy, group
    print("largest difference of losses, and from which step on they differ by 1e-5:")
    for other in losses[1:]:
        apart = (losses[0] - other).abs()
        off = (apart > 1e-5).nonzero()
        print(f"  {float(apart.max()):.1e}  {int(off[0]) if len(off) else '-'}")


def profile(strategy: Strategy, batches: list[Batch]) -> None:
    """What the GPU's time goes to."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for batch, following in pairwise(batches[:7]):
            strategy.prefetch(strategy.receive(following))
            strategy.train_step(strategy.receive(batch))
        torch.cuda.synchronize()
    for one in sorted(seen.key_averages(), key=lambda e: -e.device_time_total)[:14]:
        print(f"    {one.device_time_total / 6e3:8.3f} ms a step  {one.count:4d}  {one.key[:70]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=26, help="ids of a sample")
    parser.add_argument("--power", type=float, default=1.05, help="of the law of frequencies")
    parser.add_argument("--share", type=float, default=0.1, help="of the table in host memory")
    parser.add_argument("--steps", type=int, default=60, help="that are measured, of each")
    parser.add_argument("--warm", type=int, default=150, help="steps before")
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--profile", action="store_true", help="with --gpu: kernels by time")
    if "--gpu" in sys.argv:
        parser.set_defaults(rows=10_000_016, dim=64, batch=65_536)
    args = parser.parse_args()
    if args.gpu:
        run_gpu(args)
        return
    optimizer = RowOptimizer(args.optimizer)
    table = Table("table", args.dim, args.rows, Init("uniform", 0.01))
    total = args.rows * row_bytes(table, optimizer)
    folder = args.folder or Path(tempfile.mkdtemp())
    threads = torch.get_num_threads()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, "
        f"torch {torch.__version__}"
    )
    print(
        f"{args.rows:,} x {args.dim}, {args.optimizer}: {total / 1e9:.2f} GB, "
        f"{args.share:.0%} of its rows in host memory; {args.batch:,} x {args.slots} ids a step, "
        f"power {args.power}"
    )
    memory = Native(table, optimizer, 1)
    # All rows have been updated once: none is free for being at its beginning.
    ours = Tiered(table, optimizer, 1, int(args.rows * args.share), folder)
    for start in range(0, args.rows, 1 << 16):
        ids = torch.arange(start, min(start + (1 << 16), args.rows))
        for leaf in (memory, ours):
            leaf.push(ids, torch.full((len(ids), args.dim), 1e-3), 0.01)
    hidden = [torch.randn(args.slots * args.dim, 256) * 0.01, torch.randn(256, 256) * 0.01]
    hidden.append(torch.randn(256, args.slots * args.dim) * 0.01)
    print(f"{'a step':24}{'in memory ms':>14}{'tiered ms':>12}{'rate':>8}{'hits':>8}{'ahead':>10}")
    first = 0
    for name, model in (("rows alone", []), ("rows and a model", hidden * 3)):
        for leaf in (ours, memory):
            run(leaf, range(first, first + args.warm), args, [])
        first += args.warm
        ours.traffic = Traffic()
        sides: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(3):
            part = range(first, first + args.steps // 3)
            for side, leaf in enumerate((memory, ours)):
                sides[side].append(run(leaf, part, args, model))
            first += len(part)
        plain, tiers = (statistics.median(sides[side]) for side in (0, 1))
        seen = ours.traffic
        found = seen.hot + seen.cold
        print(
            f"{name:24}{1e3 * plain:14.2f}{1e3 * tiers:12.2f}{plain / tiers:8.0%}"
            f"{seen.hot / found:8.1%}{seen.ahead:10,}"
        )
    some = torch.randint(0, args.rows, (10_000,))
    equal = torch.equal(ours.pull(some), memory.pull(some))
    print(
        f"rows are {'equal' if equal else 'NOT EQUAL'}; host memory {ours.memory / 1e6:.0f} MB "
        f"(all rows: {memory.memory / 1e6:.0f}), disk {ours.cold.bytes / 1e6:.0f} MB, "
        f"{seen.evicted:,} rows written"
    )
    ours.cold.close()
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
