"""ddp: dense gradients in buckets during backward, beside one all-reduce after it.

    python benchmarks/ddp_overlap.py                    # two processes on CPUs, over Gloo
    python benchmarks/ddp_overlap.py --shared-memory    # through shared memory
    torchrun --nproc-per-node=8 benchmarks/ddp_overlap.py --device cuda    # over NCCL

A click model with a large perceptron on narrow rows; both sides are in the same processes and take
turns, step by step in blocks, on the same batches. Buckets are for GPUs: here they are switched on
for CPUs, too. Losses of both must be equal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.clicks.dnn import DNN
from shoal.training.strategy.ddp import DDP
from shoal.world.variables import set_rank
from shoal.world.world import World, connect

SLOTS, DENSE, ROWS, DIM = 26, 13, 100_000, 8


def make_batches(args: argparse.Namespace, world: World) -> list[Batch]:
    """This rank's slices of some global batches."""
    random = torch.Generator().manual_seed(world.rank)
    made = []
    for _ in range(args.block):
        ids = torch.randint(0, ROWS, (args.batch, SLOTS), generator=random)
        dense = torch.rand(args.batch, DENSE, generator=random)
        labels = (ids[:, 0] % 4 == 0).float()
        made.append(Batch(args.batch, {"slots": ids}, {"dense": dense}, labels).to(world.device))
    return made


def make_side(args: argparse.Namespace, world: World, overlap: bool) -> DDP:
    torch.manual_seed(1)
    facts = Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS)
    model = DNN(DNN.Options(dim=DIM, layers=args.layers), facts)
    strategy = DDP(world)
    strategy.overlap = overlap
    strategy.setup(model, OptimizerSection(name="adam", lr=1e-3), seed=1)
    assert (strategy.buckets is not None) == overlap
    return strategy


def run(rank: int, args: argparse.Namespace, port: int) -> None:
    if "RANK" not in os.environ:
        set_rank(rank, args.nproc, rank, args.nproc, "127.0.0.1", port)
    world = connect(args.device, 60.0, args.threads, shared_memory=args.shared_memory)
    batches = make_batches(args, world)
    sides = {name: make_side(args, world, name == "in buckets") for name in ("after", "in buckets")}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(args.rounds + 1):
        for name, strategy in sides.items():
            world.barrier()
            begin = time.perf_counter()
            found = [strategy.train_step(batch) for batch in batches]
            losses[name] += torch.stack(found).tolist()
            if turn:
                taken[name].append((time.perf_counter() - begin) / len(batches))
    if world.is_main:
        size = sum(p.nbytes for p in sides["after"].dense)
        how = f"{world.size} processes, {world.device}, torch {torch.__version__}"
        print(f"{how}; dense gradients {size / 1e6:.1f} MB")
        for name, seconds in taken.items():
            low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
            print(f"{name:12}{1e3 * middle:9.1f} ms a step ({1e3 * low:.1f} to {1e3 * high:.1f})")
        after, ours = (statistics.median(seconds) for seconds in taken.values())
        equal = losses["after"] == losses["in buckets"]
        print(f"ratio {after / ours:.2f}; losses {'equal' if equal else 'NOT EQUAL'}")
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=512, help="of a rank")
    parser.add_argument("--layers", type=int, nargs="+", default=[1024, 1024, 1024, 512])
    parser.add_argument("--block", type=int, default=5, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shared-memory", action="store_true")
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        run(int(os.environ["RANK"]), args, 0)
    else:
        mp.spawn(run, (args, 29_400 + os.getpid() % 500), nprocs=args.nproc, join=True)


if __name__ == "__main__":
    main()
