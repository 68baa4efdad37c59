"""dynamicemb's cached table on one GPU: a share of the rows in GPU memory, all of them on the host.

    python benchmarks/dynamicemb_table.py                            # Adam, 64M rows, 98 GB of host
    python benchmarks/dynamicemb_table.py --optimizer sgd --rows 192000000
    TRITON_INTERPRET=1 python benchmarks/dynamicemb_table.py --device cpu --rows 4000 --batch 40 \\
        --iterations 4                                               # to try the script

The shape is that of NVIDIA's recsys-examples, corelib/dynamicemb/benchmark (BatchedDynamicEmbedding
Tables): 10 tables of float32 × 128, 104,857 ids of each in a step, one id a sample, by a power law
of 1.05 over each table; 100 batches are made before, all of them pass once, then they are timed
once more: lookup, and update by a gradient that is there. The next batch is not announced.

ratio 1.0, 0.8   slots in GPU memory for that share of the rows that the 100 batches use
ratio 0.1        slots for a tenth of all rows (there: HybridStorage)
announced        beside each: the next batch is announced before a step, as shoal's trainer does

Theirs has 268M rows, of Adam 412 GB with its state; here rows are as many as host memory takes, and
ids are drawn over those. A column says how many distinct rows a step has, and theirs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

import torch
from torch import Tensor

from shoal.embedding.engines.budgets import row_bytes
from shoal.embedding.engines.gpu_cache import CachedGpuTables
from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer

TABLES, DIM, POWER, LR = 10, 128, 1.05, 0.1
# published, H100 80GB HBM3: ratio -> ms of a step of dynamicemb, of TorchRec's TBE
PUBLISHED = {
    "adam": {"1.0": (12.28, 14.37), "0.8": (24.33, 15.00), "0.1": (33.31, 24.07)},
    "sgd": {"1.0": (10.87, 4.15), "0.8": (20.83, 4.77), "0.1": (27.23, 13.56)},
}
THEIR_DISTINCT = 433_723
START = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - START:6.1f} s] {text}", flush=True)


def make_batches(args: argparse.Namespace) -> list[Tensor]:
    """Ids of every step, those of the tables one after the other, in one numbering: [n] each."""
    generator = torch.Generator(args.device).manual_seed(42)
    each, rest = args.rows // TABLES, 1.0 - POWER
    found = []
    for _ in range(args.iterations):
        shape = TABLES, args.batch // TABLES
        u = torch.rand(shape, generator=generator, device=args.device, dtype=torch.float64)
        rank = (1.0 + u * (each**rest - 1.0)) ** (1.0 / rest)
        first = torch.arange(TABLES, device=args.device)[:, None] * each
        found.append((rank.long().clamp(1, each - 1) + first).view(-1))
    return found


def slots_of(batches: list[Tensor], args: argparse.Namespace) -> dict[str, int]:
    """Rows in GPU memory for each ratio; prints what the batches use."""
    distinct = statistics.mean(len(ids.unique()) for ids in batches)
    used = torch.zeros(args.rows, dtype=torch.bool, device=args.device)
    for ids in batches:
        used[ids] = True
    footprint = int(used.sum())
    say(
        f"{args.batch:,} ids a step, {distinct:,.0f} distinct (theirs {THEIR_DISTINCT:,}); "
        f"{footprint:,} rows in {args.iterations} steps"
    )
    most = max(len(ids.unique()) for ids in batches)
    return {
        "1.0": max(footprint, most),
        "0.8": max(int(0.8 * footprint), most),
        "0.1": max(args.rows // 10, most),
    }


def run(
    tables: GpuTables, batches: list[Tensor], grads: Tensor, args: argparse.Namespace, ahead: bool
) -> float:
    """Milliseconds of a step, the mean: one pass over all batches."""
    if args.device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for k, ids in enumerate(batches):
        if ahead and isinstance(tables, CachedGpuTables):
            tables.prefetch([batches[(k + 1) % len(batches)]])
        lookup = tables.look_up(ids, [len(ids)])
        tables.pull(lookup, learn=True)
        tables.push(lookup, grads, LR)
    if args.device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / len(batches)


def measure(args: argparse.Namespace) -> None:
    optimizer = RowOptimizer(args.optimizer)
    table = Table("t", DIM, args.rows, Init("normal", 0.01))
    batches = make_batches(args)
    slots = slots_of(batches, args)
    size = row_bytes(table, optimizer)
    say(f"{args.rows:,} rows of {size} bytes with the state of {args.optimizer}")
    grads = torch.randn(args.batch // TABLES * TABLES, DIM, device=args.device) * 1e-3
    print(f"{'ratio':9}{'GB on GPU':>10}{'ms':>9}{'announced':>11}{'hits':>8}"
          f"{'dynamicemb':>12}{'TBE':>8}")  # fmt: skip
    for ratio in args.ratios:
        tables = CachedGpuTables(table, optimizer, 1, args.device, slots[ratio])
        run(tables, batches, grads, args, False)  # rows come, kernels are compiled
        before = tables.traffic
        plain = run(tables, batches, grads, args, False)
        now = tables.traffic
        hits = 1 - (now.cold - before.cold) / (len(batches) * len(batches[0]))
        run(tables, batches[:3], grads, args, True)
        announced = run(tables, batches, grads, args, True)
        tables.check()
        theirs = PUBLISHED.get(args.optimizer, {}).get(ratio, (float("nan"),) * 2)
        print(
            f"{ratio:9}{slots[ratio] * size / 1e9:10.1f}{plain:9.2f}{announced:11.2f}{hits:8.1%}"
            f"{theirs[0]:12.2f}{theirs[1]:8.2f}",
            flush=True,
        )
        del tables
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    fits = args.device != "cuda" or args.rows * size < 0.8 * torch.cuda.mem_get_info()[0]
    if fits:
        tables = GpuTables([table], optimizer, 1, args.device)
        run(tables, batches[:5], grads, args, False)
        ms = run(tables, batches, grads, args, False)
        print(f"{'all rows':9}{args.rows * size / 1e9:10.1f}{ms:9.2f}")
    else:
        say("all rows do not fit into GPU memory, with their state")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=64_000_000)
    parser.add_argument("--batch", type=int, default=1_048_570, help="ids of a step, of all tables")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--ratios", nargs="+", default=["1.0", "0.8", "0.1"])
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU (to try the script)"
    say(f"{where}, torch {torch.__version__}; published figures: H100 80GB HBM3")
    measure(args)


if __name__ == "__main__":
    main()
