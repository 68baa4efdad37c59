"""One table over several processes on CPUs: milliseconds per step of ddp and sharded.

    python benchmarks/sharded_cpu.py [--ranks 2] [--rows 100000] [--dim 64] [--ids 81920]

A step looks up the ids of every rank, multiplies the rows by a constant, and updates the rows by
Adagrad: lookup, exchange and update, nothing else. One thread per process. Where torchrec can be
imported its DistributedModelParallel takes the same steps in the same run (name another
interpreter that has it with --torchrec).
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.multiprocessing as mp

STEPS, WARM = 12, 3


def draw(step: int, rank: int, args: argparse.Namespace) -> torch.Tensor:
    """The ids of one rank's step: uniform, or by a power law as users' clicks are."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if args.zipf:
        uniform = torch.rand(args.ids, generator=generator, dtype=torch.float64)
        return ((args.rows**uniform).long() - 1) * 7919 % args.rows
    return torch.randint(0, args.rows, (args.ids,), generator=generator)


def shoal_rank(rank: int, port: int, args: argparse.Namespace, queue) -> None:  # type: ignore[no-untyped-def]
    from shoal.config.schema import OptimizerSection, StrategySection
    from shoal.data.batch import Batch
    from shoal.distributed.rank_variables import set_rank
    from shoal.distributed.world import connect
    from shoal.embedding.module import Embeddings
    from shoal.embedding.rows.table import Table
    from shoal.models.base import Model, Output
    from shoal.training.strategies import make_strategy

    class Lookup(Model):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.embed = Embeddings(id=Table("table", args.dim, args.rows))

        def forward(self, batch: Batch) -> Output:
            rows = self.embed(batch)["id"]
            return Output(Seeded.apply(rows), 1)

    set_rank(rank, args.ranks, rank, args.ranks, "127.0.0.1", port)
    world = connect("cpu", 60.0, threads=1)
    cases = {
        "ddp": {"name": "ddp"},
        "sharded, row by hash": {"name": "sharded", "place": "row"},
        "sharded, row by range": {"name": "sharded", "place": "row", "row_by": "range"},
        "sharded, no prefetch": {"name": "sharded", "place": "row", "prefetch": False},
        "sharded, column": {"name": "sharded", "place": "column"},
    }
    for name, values in cases.items():
        strategy = make_strategy(StrategySection(**values), world)
        strategy.setup(Lookup(), OptimizerSection(name="adagrad", lr=0.01), seed=1)
        strategy.model.train()
        batches = [Batch(1, {"id": draw(k, rank, args)}) for k in range(WARM + STEPS)]
        seconds, sent = [], 0
        for number, batch in enumerate(batches):
            world.barrier()
            before, begun = world.bytes_sent, time.perf_counter()
            if number + 1 < len(batches):
                strategy.prefetch(batches[number + 1])
            strategy.train_step(batch)
            seconds.append(time.perf_counter() - begun)
            sent = world.bytes_sent - before
        if rank == 0:
            queue.put((name, 1e3 * statistics.median(seconds[WARM:]), sent / 2**20))
        del strategy
    world.close()


class Seeded(torch.autograd.Function):
    """A loss whose gradient is ready: only lookup and update are measured."""

    @staticmethod
    def forward(ctx, rows):  # type: ignore[no-untyped-def]
        ctx.shape = rows.shape
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        global READY
        if READY is None or READY.shape != ctx.shape:
            READY = torch.full(ctx.shape, 0.01)
        return READY


READY: torch.Tensor | None = None


def torchrec_rank(rank: int, port: int, args: argparse.Namespace, queue) -> None:  # type: ignore[no-untyped-def]
    import torch.distributed as dist
    import torchrec
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(args.ranks), "LOCAL_RANK": str(rank)}
    os.environ["LOCAL_WORLD_SIZE"] = str(args.ranks)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    module = torchrec.EmbeddingCollection(
        tables=[
            torchrec.EmbeddingConfig(
                name="table", embedding_dim=args.dim, num_embeddings=args.rows, feature_names=["id"]
            )
        ],
        device=torch.device("cpu"),
    )
    apply_optimizer_in_backward(torch.optim.Adagrad, module.parameters(), {"lr": 0.01})
    model = DistributedModelParallel(module, device=torch.device("cpu"))
    batches = [
        torchrec.KeyedJaggedTensor(
            ["id"], draw(k, rank, args), lengths=torch.ones(args.ids, dtype=torch.int64)
        )
        for k in range(WARM + STEPS)
    ]
    ready, seconds = torch.full((args.ids, args.dim), 0.01), []
    for batch in batches:
        dist.barrier()
        begun = time.perf_counter()
        model(batch)["id"].values().backward(ready)
        seconds.append(time.perf_counter() - begun)
    if rank == 0:
        queue.put(("torchrec DMP", 1e3 * statistics.median(seconds[WARM:]), float("nan")))
    dist.destroy_process_group()


def spawn(function, args: argparse.Namespace) -> list[tuple[str, float, float]]:  # type: ignore[no-untyped-def]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(function, (port, args, queue), nprocs=args.ranks, join=True)
    found = []
    while not queue.empty():
        found.append(queue.get())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("ranks", 2), ("rows", 100_000), ("dim", 64), ("ids", 81_920)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--zipf", action="store_true", help="ids by a power law, not uniform")
    parser.add_argument("--torchrec", help="an interpreter that can import torchrec")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        for name, ms, _ in spawn(torchrec_rank, args):
            print(f"{name:24s} {ms:10.1f}")
        return
    kind = "power law" if args.zipf else "uniform"
    print(f"{args.rows:,} x {args.dim}, {args.ids:,} {kind} ids per rank, {args.ranks} ranks")
    print(f"{'':24s} {'ms/step':>10s} {'MiB sent/rank':>14s}")
    for name, ms, sent in spawn(shoal_rank, args):
        print(f"{name:24s} {ms:10.1f} {sent:14.1f}", flush=True)
    if args.torchrec:
        command = [args.torchrec, __file__, "--peer", *(["--zipf"] if args.zipf else [])]
        command += [f"--{k}={getattr(args, k)}" for k in ("ranks", "rows", "dim", "ids")]
        subprocess.run(command, check=True, stderr=sys.stderr)


if __name__ == "__main__":
    main()
