"""MLPerf's DLRM-DCNv2 at full size on one GPU: bags of ids, row by row and as a whole model.

    python benchmarks/dlrm_dcnv2_gpu.py                        # all parts
    python benchmarks/dlrm_dcnv2_gpu.py --parts copy rows      # some of them, as below
    python benchmarks/dlrm_dcnv2_gpu.py --tiers 0.1            # a tenth of the rows in GPU memory
    python benchmarks/dlrm_dcnv2_gpu.py --device cpu --rows-scale 0.001 --batch 64 --steps 2

26 features in 26 tables of width 128, 204.2M rows in sum (the counts of the Criteo set, at most 40M
each), 214 ids a sample in bags of the sizes that MLPerf states, summed; 13 dense values. Bottom
layers 512-256-128, 3 crosses of rank 512, top layers 1024-1024-512-256-1. Rows learn by row-wise
Adagrad, dense parameters by Adagrad. Ids are drawn on the GPU, with a zipf popularity, and spread.

copy      bytes a second of a large copy: what the memory gives
rows      lookup and update of all bags alone, beside the bytes that they must move; then steps of
          the whole model: samples a second, and milliseconds of the GPU by kernels' names
bfloat16  as rows, with rows of bfloat16
plain     nn.EmbeddingBag(sparse=True) + torch.optim.Adagrad at the largest size that fits
compiled  steps of the whole model, its dense part by torch.compile
tiers     (by --tiers alone) steps whose rows have that share of their bytes in GPU memory, and all
          of them in host memory (105 GB at full size), beside all rows in GPU memory. Each step has
          ids of its own, the next batch is announced before each, as the trainer does, and steps
          before the measured ones fill the slots. Losses of both must agree.

The floor of rows counts each distinct row of a step once where it is read, once where it is read to
be updated and once where it is written, sums and their gradients once each, and ids once. A lookup
cannot know which rows come twice, so beside it stands the floor with one read for every id.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.row_rules import RowsSection, TiersSection
from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.distributed.world import World
from shoal.embedding.rows.bags import Bags
from shoal.embedding.service import LocalRows, Lookup
from shoal.models.base import Facts
from shoal.models.clicks.dcnv2 import DCNV2
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

# fmt: off
ROWS = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956,
        405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152,
        12_973, 108, 36)
BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
# fmt: on
DENSE, DIM, SETS = 13, 128, 4
BOTTOM, TOP, CROSSES, RANK = [512, 256, 128], [1024, 1024, 512, 256], 3, 512
PHASES = {
    "lookup": ("_gather_bags", "_locate"),
    "sorting": ("sort", "radix", "_list_", "_count_seg", "repeat_interleave", "index_elementwise"),
    "update": ("_update", "_sum_pieces"),
    "products": ("gemm", "cutlass", "nvjet", "bmm", "sm90", "sm80", "splitk"),
    "dense optimizer": ("adagrad", "multi_tensor", "foreach"),
    "copies and sums": ("memcpy", "memset", "copy", "cat", "elementwise", "reduce", "triton"),
}
START = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - START:6.1f} s] {text}", flush=True)


def table_rows(scale: float) -> list[int]:
    return [max(3, int(rows * scale)) for rows in ROWS]


def features(args: argparse.Namespace) -> tuple[Feature, ...]:
    sparse = [
        Feature(f"c{k}", "ids", rows=rows) for k, rows in enumerate(table_rows(args.rows_scale))
    ]
    return (*sparse, Feature("dense", "numbers", length=DENSE))


def make_batches(args: argparse.Namespace, scale: float, count: int = SETS) -> list[Batch]:
    """Ids of a zipf popularity over the rows, spread over the table; made where they are used."""
    generator = torch.Generator(args.device).manual_seed(1)
    made = []
    for _ in range(count):
        ids: dict[str, Tensor | Jagged] = {}
        for k, (rows, size) in enumerate(zip(table_rows(scale), BAGS)):
            u = torch.rand(args.batch * size, generator=generator, device=args.device)
            rest = 1.0 - args.power
            most = rows - 1  # row 0 is padding
            rank = (1.0 + u.double() * (most**rest - 1.0)) ** (1.0 / rest)
            rank = rank.long().clamp(1, most) - 1
            spread = rank * 2_654_435_761 % most + 1  # popular rows are not neighbours
            offsets = torch.arange(args.batch + 1, device=args.device) * size
            ids[f"c{k}"] = Jagged(spread, offsets)
        dense = torch.rand(args.batch, DENSE, generator=generator, device=args.device)
        labels = (torch.rand(args.batch, generator=generator, device=args.device) < 0.03).float()
        made.append(Batch(args.batch, ids, {"dense": dense}, labels))
    return made


def wait(args: argparse.Namespace) -> None:
    if args.device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[int], Any], args: argparse.Namespace, steps: int, warm: int) -> float:
    """Milliseconds of call(k), the mean over steps."""
    for k in range(warm):
        call(k)
    wait(args)
    begin = time.perf_counter()
    for k in range(steps):
        call(k)
    wait(args)
    return 1e3 * (time.perf_counter() - begin) / steps


def memory(args: argparse.Namespace) -> str:
    if args.device != "cuda":
        return ""
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return f", {peak:.1f} GiB at most"


def clean(args: argparse.Namespace) -> None:
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


# ---- parts ---------------------------------------------------------------------------------------


def measure_copy(args: argparse.Namespace) -> None:
    """Bytes a second, read and written."""
    size = 1 << (32 if args.device == "cuda" else 24)
    source = torch.empty(size // 4, device=args.device)
    to = torch.empty_like(source)
    ms = timed(lambda k: to.copy_(source), args, 10, 3)
    args.speed = 2 * size / ms * 1e3
    say(f"copy: {args.speed / 1e12:.2f} TB/s")


def make_strategy(
    args: argparse.Namespace, dtype: str, compiled: bool = False, gpu: int | None = None
) -> Single:
    facts = Facts(num_slots=26, num_dense=DENSE, features=features(args), per_feature=True)
    options = DCNV2.Options(
        dim=DIM,
        bottom_layers=BOTTOM,
        layers=TOP,
        cross_layers=CROSSES,
        low_rank=RANK,
        structure="stacked",
    )
    torch.manual_seed(1)
    world = World(args.device)
    strategy = Graphed(world, auto=True) if args.graph else Single(world)
    optimizer = OptimizerSection(name="adagrad", lr=0.005, rows={"name": "rowwise_adagrad"})
    strategy.setup(
        DCNV2(options, facts),
        optimizer,
        1,
        rows=RowsSection(dtype=dtype, tiers=TiersSection(gpu=gpu)),
        precision=args.precision,
        compiled=compiled,
    )
    return strategy


def floors(args: argparse.Namespace, batches: list[Batch], dtype: str) -> dict[str, float]:
    """Bytes of a step, the mean over batches."""
    width = DIM * (2 if dtype == "bfloat16" else 4)
    ids = sum(BAGS) * args.batch
    found = 0.0
    for batch in batches:
        found += sum(len(batch.flat_ids(f"c{k}").unique()) for k in range(26)) / len(batches)
    sums = 26 * args.batch * DIM * 4
    update = found * (2 * width + 2 * 4) + sums
    say(f"{ids:,} ids a step, {found:,.0f} distinct rows")
    return {
        "lookup": found * width + sums + 8 * ids,
        "lookup, a read for every id": ids * width + sums + 8 * ids,
        "update": update + 8 * ids,
        "update, a gradient for every id": update - sums + ids * DIM * 4 + 8 * ids,
    }


def measure_rows(args: argparse.Namespace, batches: list[Batch], dtype: str) -> None:
    """Lookup and update of the tables of a model, without the model."""
    strategy = make_strategy(args, dtype)
    wait(args)
    say(f"rows, {dtype}: tables are made{memory(args)}")
    service = strategy.rows
    assert isinstance(service, LocalRows)
    wanted = []
    for batch in batches:
        lists = [(f"c{k}", batch.ids[f"c{k}"]) for k in range(26)]
        wanted.append([Lookup(n, x.values, bags=Bags(x.offsets)) for n, x in lists])  # type: ignore
    grads = [torch.randn(args.batch, DIM, device=args.device) * 1e-3 for _ in range(26)]
    bytes_ = floors(args, batches, dtype)

    def read(k: int) -> list[Tensor]:
        return service.pull(wanted[k % SETS], learn=False)

    def step(k: int) -> None:
        rows = service.pull(wanted[k % SETS], learn=True)
        for one, grad in zip(rows, grads):
            one.grad = grad
        service.apply(service.collect().rows, 0.01)

    lookup = timed(read, args, args.steps, 3)
    both = timed(step, args, args.steps, 3)
    floor = (bytes_["lookup"] + bytes_["update"]) / args.speed * 1e3
    every = bytes_["lookup, a read for every id"] + bytes_["update, a gradient for every id"]
    least = bytes_["lookup"] / args.speed * 1e3, bytes_["lookup, a read for every id"]
    say(
        f"rows, {dtype}: lookup {lookup:.2f} ms; floor {least[0]:.2f} ms ({least[0] / lookup:.0%}),"
        f" with a read for every id {least[1] / args.speed * 1e3:.2f} ms "
        f"({least[1] / args.speed * 1e3 / lookup:.0%})"
    )
    say(
        f"rows, {dtype}: lookup, sorting and update {both:.2f} ms; floor {floor:.2f} ms "
        f"({floor / both:.0%}), for every id {every / args.speed * 1e3:.2f} ms "
        f"({every / args.speed * 1e3 / both:.0%}){memory(args)}"
    )
    phases(args, step, "rows alone")
    measure_steps(args, batches, strategy, f"model, {dtype} rows, {args.precision} products")


def measure_steps(
    args: argparse.Namespace, batches: list[Batch], strategy: Single, name: str
) -> None:
    def step(k: int) -> Tensor:
        return strategy.train_step(strategy.receive(batches[k % SETS]))

    first = float(step(0))
    if args.graph:
        name += ", recorded"
    ms = timed(step, args, args.steps, 5)
    last = float(step(0))
    if "bfloat16 rows" not in name:  # plain PyTorch has none
        args.best = max(args.best, args.batch / ms * 1e3)
    say(
        f"{name}: {ms:.2f} ms a step, {args.batch / ms * 1e3:,.0f} samples/s; loss {first:.4f} -> "
        f"{last:.4f}{memory(args)}"
    )
    phases(args, step, name)


def measure_compiled(args: argparse.Namespace, batches: list[Batch]) -> None:
    strategy = make_strategy(args, "float32", compiled=True)
    measure_steps(args, batches, strategy, f"model, compiled, {args.precision} products")


def measure_tiers(args: argparse.Namespace) -> None:
    """A share of the rows in GPU memory, beside all of them."""
    batches = make_batches(args, args.rows_scale, args.warm + args.steps + 1)
    rows = table_rows(args.rows_scale)
    budget = int(args.tiers * sum(rows) * 4 * (DIM + 1))
    say(f"{len(batches)} batches; {budget / 1e9:.1f} GB of GPU memory for rows in tiers")
    curves, first = [], 0.0
    for name, gpu in ((f"{args.tiers:.0%} of the rows", budget), ("all rows", None)):
        strategy = make_strategy(args, "float32", gpu=gpu)
        wait(args)
        cached = [e for e in strategy.rows.engines.values() if e.offloaded]
        say(f"{name}: made, {len(cached)} tables in tiers{memory(args)}")
        losses = []
        for k, (batch, following) in enumerate(pairwise(batches)):
            if k == args.warm:
                wait(args)
                before = [one.group.traffic for one in cached]
                begin = time.perf_counter()
            strategy.prefetch(following)
            losses.append(strategy.train_step(batch))
        wait(args)
        ms = 1e3 * (time.perf_counter() - begin) / args.steps
        curves.append(torch.stack(losses).double().cpu())
        line = f"{name}: {ms:.2f} ms a step, {args.batch / ms * 1e3:,.0f} samples/s"
        if cached:
            moved = [
                (now.cold - then.cold, now.ahead - then.ahead)
                for now, then in zip([one.group.traffic for one in cached], before)
            ]
            late, ahead = (sum(part) / args.steps for part in zip(*moved))
            both = (late + ahead) * 4 * (DIM + 4) / 1e9
            line += (
                f"; rows that come in a step: {ahead:,.0f} ahead, {late:,.0f} late, "
                f"{both:.2f} GB each way ({both / ms * 1e3:.0f} GB/s)"
            )
        elif first:
            line += f"; in tiers {ms / first:.0%} of that"
        first = first or ms
        say(line + memory(args))
        del strategy, cached
        clean(args)
    apart = float((curves[0] - curves[1]).abs().max())
    say(f"losses differ by {apart:.1e} at most, of {float(curves[0][-1]):.4f} at the end")


def phases(args: argparse.Namespace, step: Callable[[int], Any], name: str) -> None:
    """Milliseconds of the GPU in a step by what kernels are for, and the largest kernels."""
    if args.device != "cuda":
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for k in range(3):
            step(k)
        torch.cuda.synchronize()
    sums = dict.fromkeys([*PHASES, "other"], 0.0)
    events = [e for e in found.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    for event in events:
        key = event.key.lower()
        phase = next((p for p, words in PHASES.items() if any(w in key for w in words)), "other")
        sums[phase] += event.self_device_time_total / 3e3
    each = ", ".join(f"{phase} {ms:.2f}" for phase, ms in sums.items())
    say(f"    {name}, ms of the GPU: {sum(sums.values()):.2f} in all: {each}")
    events.sort(key=lambda event: -event.self_device_time_total)
    for event in events[: args.kernels]:
        us = event.self_device_time_total / 3
        say(f"    {us:9.1f} us {event.count / 3:5.1f} x {event.key[:90]}")


class Plain(nn.Module):
    """The same model on nn.EmbeddingBag."""

    def __init__(self, rows: list[int]):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(n, DIM, mode="sum", sparse=True, include_last_offset=True) for n in rows
        )
        width = 27 * DIM
        self.bottom = self._relu([DENSE, *BOTTOM])
        self.down = nn.ModuleList(nn.Linear(width, RANK, bias=False) for _ in range(CROSSES))
        self.up = nn.ModuleList(nn.Linear(RANK, width) for _ in range(CROSSES))
        self.top = nn.Sequential(self._relu([width, *TOP]), nn.Linear(TOP[-1], 1))

    @staticmethod
    def _relu(sizes: list[int]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, batch: Batch) -> Tensor:
        pooled = []
        for k, module in enumerate(self.bags):
            lists = batch.ids[f"c{k}"]
            assert isinstance(lists, Jagged)
            pooled.append(module(lists.values, lists.offsets))
        first = x = torch.cat([*pooled, self.bottom(batch.dense["dense"])], 1)
        for down, up in zip(self.down, self.up):
            x = torch.addcmul(x, first, up(down(x)))
        return self.top(x).squeeze(1)


def measure_plain(args: argparse.Namespace) -> None:
    """At the largest size that fits, by the same precision of products."""
    for share in args.plain_scales:
        scale = share * args.rows_scale
        module = optimizers = step = batches = None
        try:
            with torch.device(args.device):
                module = Plain(table_rows(scale))
            rows = list(module.bags.parameters())
            known = {id(p) for p in rows}
            dense = [p for p in module.parameters() if id(p) not in known]
            optimizers = [torch.optim.Adagrad(rows, lr=0.005), torch.optim.Adagrad(dense, lr=0.005)]
            batches = make_batches(args, scale)

            def step(k: int, module=module, optimizers=optimizers, batches=batches) -> None:
                batch, half = batches[k % SETS], args.precision == "bfloat16"
                with torch.autocast(args.device, torch.bfloat16, enabled=half):
                    logits = module(batch)
                    loss = binary_cross_entropy_with_logits(logits, batch.labels)
                loss.backward()
                for one in optimizers:
                    one.step()
                    one.zero_grad(set_to_none=True)

            ms = timed(step, args, max(1, args.steps // 3), 1)
            rate = args.batch / ms * 1e3
            say(
                f"plain PyTorch, {sum(table_rows(scale)):,} rows: {ms:.2f} ms a step, "
                f"{rate:,.0f} samples/s; shoal's, of all float32 rows, is {args.best / rate:.1f} x"
                f"{memory(args)}"
            )
            return
        except torch.OutOfMemoryError:
            say(f"plain PyTorch: {sum(table_rows(scale)):,} rows do not fit")
        finally:
            del module, optimizers, step, batches
            clean(args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows-scale", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=55_296)
    parser.add_argument("--power", type=float, default=1.05)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--kernels", type=int, default=14, help="so many largest are listed")
    parser.add_argument("--plain-scales", type=float, nargs="+", default=[0.5, 0.4, 0.25, 0.1])
    parser.add_argument("--most-seconds", type=float, default=400.0, help="no part begins later")
    parser.add_argument("--graph", action="store_true", help="steps are recorded")
    parser.add_argument("--tiers", type=float, help="share of the rows' bytes in GPU memory")
    parser.add_argument("--warm", type=int, default=30, help="steps of --tiers before the measured")
    parts = ["copy", "rows", "bfloat16", "plain", "compiled"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    args = parser.parse_args()
    args.speed, args.best = 4.0e12, 0.0  # an H200's copy, until it is measured
    torch.set_float32_matmul_precision("high")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU (to try the script)"
    rows = sum(table_rows(args.rows_scale))
    say(f"{where}, torch {torch.__version__}; {rows:,} rows x {DIM}, batch {args.batch:,}")
    if args.tiers is not None:
        measure_tiers(args)
        return
    batches: list[Batch] = []
    calls: dict[str, Callable[[], None]] = {
        "copy": lambda: measure_copy(args),
        "rows": lambda: measure_rows(args, batches, "float32"),
        "bfloat16": lambda: measure_rows(args, batches, "bfloat16"),
        "plain": lambda: measure_plain(args),
        "compiled": lambda: measure_compiled(args, batches),
    }
    for part in parts:
        if part not in args.parts:
            continue
        if time.perf_counter() - START > args.most_seconds:
            say(f"{part} is left out: it is late")
            continue
        try:
            if part in ("rows", "compiled", "bfloat16") and not batches:
                batches.extend(make_batches(args, args.rows_scale))
            if part == "plain":
                batches.clear()
            calls[part]()
        except Exception:  # the other parts are measured all the same
            traceback.print_exc()
            say(f"{part} failed")
        clean(args)


if __name__ == "__main__":
    main()
