"""Embedding rows on the CPU: shoal's native core beside its peers, forward + backward + update.

    python benchmarks/rows_cpu.py [--threads 1 2] [--cases tables zipf bpr pooled grow] [--grow N]

Prints one table. Every line of a case is measured in the same run, step by step in turn, and the
median counts; other programs on the machine make all of them slower, so read the ratios.
Peers: torch.nn.EmbeddingBag(sparse) + torch.optim, and fbgemm's table-batched embeddings where
fbgemm_gpu can be imported.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import RowOptimizer

Step = Callable[[], object]
LR = 0.01


def zipf(n: int, rows: int, generator: torch.Generator, exponent: float = 1.05) -> Tensor:
    """Ids with a zipf popularity, spread over the table: [n]."""
    weights = torch.arange(1, rows + 1, dtype=torch.float64) ** -exponent
    cumulative = weights.cumsum(0) / weights.sum()
    drawn = torch.searchsorted(cumulative, torch.rand(n, generator=generator, dtype=torch.float64))
    return torch.randperm(rows, generator=generator)[drawn.clamp(max=rows - 1)]


def measure(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns so that all meet the same neighbours."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if turn >= 2:
                times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def report(title: str, times: dict[str, float]) -> None:
    """One block of the table: milliseconds and how many times the native core's."""
    ours = next(iter(times.values()))
    print(f"\n{title}")
    for name, ms in times.items():
        print(f"  {name:<46}{ms:10.3f} ms{ms / ours:9.2f} ×")


def fbgemm_step(
    rows: list[int],
    dim: int,
    ids: list[Tensor],
    grads: Tensor,
    rowwise: bool = False,
    offsets: Tensor | None = None,
) -> Step | None:
    """fbgemm's table-batched embeddings over the same ids, or None where it is not installed.

    offsets: of bags that are summed; None: each id is one.
    """
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except ImportError:
        return None
    kind = EmbOptimType.EXACT_ROWWISE_ADAGRAD if rowwise else EmbOptimType.EXACT_ADAGRAD
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
        optimizer=kind,
        learning_rate=LR,
        eps=1e-10,
    )
    module.init_embedding_weights_uniform(-0.1, 0.1)
    flat = torch.cat(ids)
    bags = torch.arange(flat.numel() + 1) if offsets is None else offsets

    def step() -> None:
        module(flat, bags).backward(grads)

    return step


def torch_step(rows: list[int], dim: int, ids: list[Tensor], grads: list[Tensor]) -> Step:
    """nn.EmbeddingBag(sparse) and torch.optim.Adagrad, one id per bag."""
    modules = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum", sparse=True) for n in rows)
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=LR)
    offsets = torch.arange(ids[0].numel())

    def step() -> None:
        optimizer.zero_grad()
        outs = [module(i, offsets) for module, i in zip(modules, ids)]
        torch.autograd.backward(outs, grads)
        optimizer.step()

    return step


def tables(threads: int, generator: torch.Generator) -> None:
    """Many tables, one id each: the shape of a click model."""
    count, rows, dim, batch = 26, 100_000, 16, 4096
    ids = [torch.randint(0, rows, (batch,), generator=generator) for _ in range(count)]
    grads = [torch.randn(batch, dim, generator=generator) for _ in range(count)]
    optimizer = RowOptimizer("adagrad")
    made = [Table(f"t{t}", dim, rows, Init("uniform", 0.1)) for t in range(count)]
    stores = [Native(table, optimizer, 0, threads=threads) for table in made]

    def ours() -> None:
        Native.pull_many(stores, ids)
        Native.push_many(stores, ids, grads, LR)

    steps: dict[str, Step] = {"shoal native, adagrad": ours}
    peer = fbgemm_step([rows] * count, dim, ids, torch.cat(grads, dim=1))
    if peer:
        steps["fbgemm TBE, adagrad"] = peer
    steps["nn.EmbeddingBag(sparse) + optim.Adagrad"] = torch_step([rows] * count, dim, ids, grads)
    report(
        f"{count} tables × {rows:,} × {dim}, batch {batch}, one id each, {threads} thread(s)",
        measure(steps, 11),
    )


def one_zipf(threads: int, generator: torch.Generator) -> None:
    """One large table, ids with a zipf popularity."""
    rows, dim, n = 1_000_000, 64, 81_920
    ids = zipf(n, rows, generator)
    grads = torch.randn(n, dim, generator=generator)
    steps: dict[str, Step] = {}
    for name in ("adagrad", "rowwise_adagrad", "adam"):
        store = make_local(
            Table("z", dim, rows), RowOptimizer(name), 0, backend="native", threads=threads
        )
        steps[f"shoal native, {name}"] = lambda store=store: (  # type: ignore[misc]
            store.pull(ids),
            store.push(ids, grads, LR),
        )
    for rowwise in (False, True):
        peer = fbgemm_step([rows], dim, [ids], grads, rowwise)
        if peer:
            steps[f"fbgemm TBE, {'rowwise_' if rowwise else ''}adagrad"] = peer
    steps["nn.EmbeddingBag(sparse) + optim.Adagrad"] = torch_step([rows], dim, [ids], [grads])
    report(
        f"1 table × {rows:,} × {dim}, {n:,} zipf ids ({len(ids.unique()):,} distinct), "
        f"{threads} thread(s)",
        measure(steps, 9),
    )


def bpr(threads: int, generator: torch.Generator) -> None:
    """The tables of a small matrix factorisation: 944 users, 1,683 items."""
    user_ids = torch.randint(0, 944, (4096,), generator=generator)
    item_ids = torch.randint(0, 1683, (8192,), generator=generator)
    user_grads = torch.randn(4096, 64, generator=generator)
    item_grads = torch.randn(8192, 64, generator=generator)
    steps: dict[str, Step] = {}
    for backend in ("native", "reference"):
        users, items = (
            make_local(Table("t", 64, n), RowOptimizer("adam"), 0, backend=backend, threads=threads)
            for n in (944, 1683)
        )
        steps[f"shoal {backend}, adam, push of both"] = lambda users=users, items=items: (  # type: ignore[misc]
            users.push(user_ids, user_grads, LR),
            items.push(item_ids, item_grads, LR),
        )
    weight = nn.Parameter(torch.randn(944 + 1683, 64))
    weight.grad = torch.randn(944 + 1683, 64)
    dense = torch.optim.Adam([weight], lr=LR)
    steps["torch.optim.Adam, dense, gradient given"] = dense.step
    report(f"944 × 64 and 1,683 × 64, 4,096 and 8,192 ids, {threads} thread(s)", measure(steps, 60))


def pooled(threads: int, generator: torch.Generator) -> None:
    """Bags of 20 ids, summed."""
    rows, dim, bags, length = 1_000_000, 64, 4096, 20
    ids = zipf(bags * length, rows, generator)
    offsets = torch.arange(0, bags * length + 1, length)
    grads = torch.randn(bags, dim, generator=generator)
    over = Bags(offsets)
    steps: dict[str, Step] = {}
    for name, dtype in (("rowwise_adagrad", "float32"), ("adagrad", "float32"),
                        ("rowwise_adagrad", "bfloat16")):  # fmt: skip
        table = Table("z", dim, rows, dtype=dtype)
        store = Native(table, RowOptimizer(name), 0, threads=threads)
        steps[f"shoal native, {name}, {dtype}"] = lambda store=store: (  # type: ignore[misc]
            store.pull_bags(ids, over),
            store.push_bags(ids, grads, over, LR),
        )
    steps["shoal native, float32, lookup alone"] = partial(
        Native(Table("z", dim, rows), RowOptimizer("sgd"), 0, threads=threads).pull_bags, ids, over
    )
    for rowwise in (True, False):
        peer = fbgemm_step([rows], dim, [ids], grads, rowwise, offsets)
        if peer:
            steps[f"fbgemm TBE, {'rowwise_' if rowwise else ''}adagrad"] = peer
    module = nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=LR)

    def theirs() -> None:
        optimizer.zero_grad()
        module(ids, offsets[:-1]).backward(grads)
        optimizer.step()

    steps["nn.EmbeddingBag(sparse) + optim.Adagrad"] = theirs
    report(
        f"1 table × {rows:,} × {dim}, {bags} bags of {length} zipf ids ({len(ids.unique()):,} "
        f"distinct), summed, {threads} thread(s)",
        measure(steps, 11),
    )


def grow(threads: int, generator: torch.Generator, most: int) -> None:
    """A growing table: step time and memory while new ids come in."""
    dim, batch = 16, 65_536
    grads = torch.randn(batch, dim, generator=generator)
    store = Native(
        Table("g", dim, None, Init("uniform", 0.1)), RowOptimizer("adagrad"), 0, threads=threads
    )
    print(f"\ngrowing table × {dim}, adagrad, {batch:,} ids a step, {threads} thread(s)")
    inserts: list[float] = []
    marks = [m for m in (1_000_000, 10_000_000) if m < most] + [most]

    def spread(numbers: Tensor) -> Tensor:
        return numbers * 0x9E3779B97F4A7C1 - 5  # wraps: any 64-bit ids

    while marks:
        begin = len(inserts) * batch
        ids = spread(torch.arange(begin, begin + batch))
        start = time.perf_counter()
        store.push(ids, grads, LR)
        inserts.append(time.perf_counter() - start)
        if len(store) < marks[0]:
            continue
        marks.pop(0)
        known = [
            spread(torch.randint(0, len(store), (batch,), generator=generator)) for _ in range(9)
        ]
        turn = iter(known * 2)

        def step(turn=turn) -> None:
            ids = next(turn)
            store.pull(ids)
            store.push(ids, grads, LR)

        ms = measure({"step": step}, 9)["step"]
        more = store.memory / len(store) - 4 * 2 * dim
        print(
            f"  {len(store):>12,} rows{ms:10.2f} ms a step{more:8.1f} bytes a row over its floats"
        )
    median = statistics.median(inserts)
    print(
        f"  inserting: {1e3 * median:.1f} ms a step of new ids, longest {1e3 * max(inserts):.1f} "
        f"({max(inserts) / median:.1f} × the median)"
    )


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--cases", nargs="+", default=["tables", "zipf", "bpr", "pooled", "grow"])
    parser.add_argument("--grow", type=float, default=2e6, help="rows the growing table ends with")
    options = parser.parse_args()
    if not has_core():
        raise SystemExit("the native core is not built: cmake -S . -B build && cmake --build build")
    print(f"torch {torch.__version__}, {platform.machine()}, Python {platform.python_version()}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        cases: dict[str, Callable[[int, torch.Generator], None]] = {
            "tables": tables,
            "zipf": one_zipf,
            "bpr": bpr,
            "pooled": pooled,
            "grow": lambda t, g: grow(t, g, int(options.grow)),
        }
        for name in options.cases:
            cases[name](threads, torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
