"""Rows on one GPU: lookup, then dedupe + sum + update, beside plain PyTorch and the byte floor.

    python benchmarks/rows_gpu.py            # every shape, a table
    python benchmarks/rows_gpu.py --check    # kernels against plain torch on the CPU first
    python benchmarks/rows_gpu.py --tune     # phases, kernels, and other shapes of the update

A step is a pull and a push of gradients that are there already, replayed from a CUDA graph; four
sets of ids take turns. Bytes that no step can do without, n ids of u distinct rows:

    forward   8 n (ids)  +  row · u (read)  +  4 dim · n (written)
    backward  4 dim · n (gradients)  +  2 (row + state) · u (read and written)

`floor` is that by the speed of a large copy in the same run (bytes read + bytes written), `share`
is floor / step. Plain PyTorch: nn.EmbeddingBag(sparse=True) and torch.optim's SGD, Adagrad or
SparseAdam; it has no row-wise Adagrad, which is held against its Adagrad. Needs torch and Triton.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.embedding.engines.gpu_growing import GrowingGpuTables
from shoal.embedding.engines.gpu_tables import GpuTables
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.gpu import lookup as gpu_lookup
from shoal.kernels.gpu import segments as gpu_segments
from shoal.kernels.gpu import update as gpu_update
from shoal.optimizers.row_optimizer import RowOptimizer

DEVICE = torch.device("cuda")
SETS = 4  # of ids, in turn
SPREAD = 0x5DEECE66D  # times an id: ids of growing tables lie anywhere


@dataclass(frozen=True)
class Shape:
    name: str
    tables: int
    rows: int
    dim: int
    ids: int  # of each table
    optimizers: tuple[str, ...] = ("sgd", "adagrad", "rowwise_adagrad", "adam")
    power: float = 0.0  # of a power law; 0: every row alike
    grows: bool = False


SHAPES = [
    Shape("26 x 1M x 64, batch 65,536", 26, 1_000_000, 64, 65_536),
    Shape("10M x 64, 1.7M ids", 1, 10_000_000, 64, 1_703_936),
    Shape("26 x 100k x 16, batch 4,096", 26, 100_000, 16, 4_096),
    Shape("10 x 1.6M x 128, 1.05M ids", 10, 1_600_000, 128, 104_857, ("sgd", "adam"), 1.05),
    Shape("the same, growing", 10, 1_600_000, 128, 104_857, ("sgd", "adam"), 1.05, True),
]


def draw(shape: Shape) -> Tensor:
    """Ids of one step: [tables, ids] int64."""
    count = shape.tables, shape.ids
    if not shape.power:
        return torch.randint(0, shape.rows, count, device=DEVICE)
    rest = 1.0 - shape.power
    u = torch.rand(count, device=DEVICE, dtype=torch.float64)
    rank = (1.0 + u * (shape.rows**rest - 1.0)) ** (1.0 / rest)
    rank = rank.long().clamp(1, shape.rows) - 1
    places = torch.stack([torch.randperm(shape.rows, device=DEVICE) for _ in range(shape.tables)])
    return places.gather(1, rank)


def time_of(run: Callable[[int], None], repeats: int = 20, rounds: int = 5) -> float:
    """Milliseconds of run(k), k counting up: the median of several rounds."""
    for k in range(SETS):
        run(k)
    taken = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for k in range(repeats):
            run(k)
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / repeats)
    return statistics.median(taken)


def record(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of run(), after it ran once."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def graph_time(run: Callable[[int], object]) -> float:
    """Milliseconds of run(k), each k recorded."""
    graphs = [record(lambda k=k: run(k)) for k in range(SETS)]
    return time_of(lambda k: graphs[k % len(graphs)].replay())


def copy_speed() -> float:
    """Bytes read and written per millisecond."""
    source = torch.randn(1 << 30, device=DEVICE)
    to = torch.empty_like(source)
    return 2 * 4 * source.numel() / time_of(lambda k: to.copy_(source), 5)


def floor_bytes(shape: Shape, ids: Tensor, optimizer: RowOptimizer) -> int:
    """Bytes that a step cannot do without; see above."""
    n = ids.numel()
    distinct = sum(len(part.unique()) for part in ids)
    row = 4 * shape.dim
    state = sum(row if kind == "dim" else 4 for kind in optimizer.state_names().values())
    return 8 * n + row * distinct + 2 * row * n + 2 * (row + state) * distinct


class Ours:
    """Our tables of a shape, with recorded steps for each set of ids."""

    def __init__(self, shape: Shape, name: str, sets: list[Tensor], dtype: str = "float32"):
        rows = None if shape.grows else shape.rows
        tables = [
            Table(f"t{k}", shape.dim, rows, Init("uniform", 0.01), dtype=dtype)
            for k in range(shape.tables)
        ]
        kind = GrowingGpuTables if shape.grows else GpuTables
        self.store = kind(tables, RowOptimizer(name), 1, DEVICE)
        self.counts = [shape.ids] * shape.tables
        sets = [ids * SPREAD if shape.grows else ids for ids in sets]
        self.lookups = [self.store.look_up(ids.reshape(-1), self.counts) for ids in sets]
        self.grads = torch.randn(sets[0].numel(), shape.dim, device=DEVICE) * 1e-3
        if shape.grows:
            self._fill(shape)
            self.store.make_room([8 * shape.ids] * shape.tables)
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def _fill(self, shape: Shape) -> None:
        for begin in range(0, shape.rows, shape.ids):
            some = torch.arange(begin, min(begin + shape.ids, shape.rows), device=DEVICE) * SPREAD
            lookup = self.store.look_up([some] * shape.tables)
            self.store.push(lookup, torch.zeros(len(lookup.ids), shape.dim, device=DEVICE), 0.0)

    def run(self, k: int) -> None:
        """A step without `begin`, as training makes it: ids are sorted while rows are read."""
        store, lookup = self.store, self.lookups[k]
        store.pull(lookup, learn=True)
        store.apply(store.take_sorted(lookup.counts).segments, self.grads)

    def step(self, k: int) -> None:
        k %= SETS
        if not self.graphs:
            self.store.begin(0.01, self.lookups[0])
            self.graphs = [record(lambda k=k: self.run(k)) for k in range(SETS)]
            self.generation = getattr(self.store, "generation", 0)
        self.store.begin(0.01, self.lookups[k])
        assert getattr(self.store, "generation", 0) == self.generation
        self.graphs[k].replay()


def plain_step(shape: Shape, name: str, sets: list[Tensor]) -> Callable[[int], None]:
    bags = [
        nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True, device=DEVICE)
        for _ in range(shape.tables)
    ]
    parameters = [bag.weight for bag in bags]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.SparseAdam}
    optimizer = kinds.get(name, torch.optim.Adagrad)(parameters, lr=0.01)
    grad = torch.randn(shape.ids, shape.dim, device=DEVICE) * 1e-3

    def step(k: int) -> None:
        optimizer.zero_grad()
        out = [bag(ids[:, None]) for bag, ids in zip(bags, sets[k % SETS])]
        torch.autograd.backward(out, [grad] * len(out))
        optimizer.step()

    return step


def show_table(chosen: list[Shape]) -> None:
    speed = copy_speed()
    print(f"copy {speed / 1e9:.2f} TB/s", flush=True)
    head = "optimizer", "ms", "floor", "share", "torch ms", "times"
    for shape in chosen:
        torch.manual_seed(0)
        sets = [draw(shape) for _ in range(SETS)]
        print(f"\n{shape.name}\n{head[0]:16}" + "".join(f"{word:>10}" for word in head[1:]))
        for name in shape.optimizers:
            ours = Ours(shape, name, sets)
            ms = time_of(ours.step)
            floor = floor_bytes(shape, sets[0], RowOptimizer(name)) / speed
            del ours
            torch.cuda.empty_cache()
            theirs = float("nan")
            if not shape.grows:
                theirs = time_of(plain_step(shape, name, sets), 3, 2)
                torch.cuda.empty_cache()
            row = f"{ms:10.3f}{floor:10.3f}{floor / ms:10.0%}{theirs:10.2f}{theirs / ms:10.1f}"
            print(f"{name:16}{row}", flush=True)


def tune(chosen: list[Shape]) -> None:
    """Times of the phases and kernels alone, and of other shapes of `apply`."""
    for shape in chosen:
        torch.manual_seed(0)
        sets = [draw(shape) for _ in range(SETS)]
        print(f"\n{shape.name}")
        for name in ("adam",) if shape.grows else ("sgd", "adam"):
            tune_one(shape, name, sets)
            torch.cuda.empty_cache()


def tune_one(shape: Shape, name: str, sets: list[Tensor]) -> None:
    ours = Ours(shape, name, sets)
    store, lookups = ours.store, ours.lookups
    store.begin(0.01, lookups[0])
    rows = [store.locate(lookup) for lookup in lookups]
    sorted_ = [store.sort(lookup) for lookup in lookups]
    # What `sort` sorts: rows, or places of the index.
    keys = [torch.empty_like(s.keys).scatter_(0, s.order, s.keys) for s in sorted_]
    phases: dict[str, Callable[[int], object]] = {
        "locate": lambda k: store.locate(lookups[k]),
        "gather": lambda k: gpu_lookup.gather(
            store.arena.values, rows[k], lookups[k], store.recipes, store.grows
        ),
        "torch.sort": lambda k: keys[k].sort(stable=True),
        "sort + list": lambda k: gpu_segments.find_segments(keys[k]),
        "apply": lambda k: store.apply(sorted_[k], ours.grads),
        "step": ours.run,
    }
    for phase, run in phases.items():
        print(f"  {name:5}{phase:16}{graph_time(run):8.3f}", flush=True)
    show_kernels(ours)
    if not shape.grows:
        try_shapes(shape.dim, name, phases["apply"])


def show_kernels(ours: Ours) -> None:
    """Microseconds of each kernel in a step, alone on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for k in range(SETS):
            ours.run(k)
        torch.cuda.synchronize()
    for event in sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:12]:
        us, calls = event.self_device_time_total / SETS, event.count // SETS
        print(f"    {us:7.1f} us {calls:3} x {event.key[:60]}", flush=True)


def try_shapes(dim: int, name: str, run: Callable[[int], object]) -> None:
    """`apply` with other shapes, one thing changed at a time."""
    usual = gpu_update.update_shape
    others: list[dict[str, int]] = [{}]
    others += [{"AHEAD": ahead} for ahead in (1, 4)]
    others += [{"PROGRAMS": programs} for programs in (2112, 1 << 24)]
    others += [
        {"BLOCK": max(1, size // dim), "num_warps": warps}
        for size, warps in (
            (256, 2),
            (512, 2),
            (512, 4),
            (1024, 2),
            (1024, 8),
            (2048, 4),
            (2048, 8),
        )
    ]
    for other in others:
        given = usual(dim) | other
        gpu_update.update_shape = lambda dim, given=given: given
        print(f"  {name:5}apply {graph_time(run):.3f} {other or 'as it is'}", flush=True)
    gpu_update.update_shape = usual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--shapes", default="", help="numbers of some shapes alone: 0,2")
    given = parser.parse_args()
    chosen = [SHAPES[int(k)] for k in given.shapes.split(",") if k] or SHAPES
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if given.check:
        check()
    (tune if given.tune else show_table)(chosen)


# ---- the kernels against plain torch on the CPU --------------------------------------------------


def checks() -> Iterator[tuple[str, float]]:
    """What was checked, and the largest difference."""
    from shoal.embedding.engines.init import initial_rows, recipe, round_bfloat16, rounding_noise
    from shoal.optimizers.row_optimizer import DEFINITIONS, update_rows

    universe, counts, steps = 3000, [5000, 0, 4000], 5
    every_way = itertools.product((False, True), DEFINITIONS, ("float32", "bfloat16"))
    for grows, name, dtype in every_way:
        if name not in ("adam", "rowwise_adagrad") and (grows or dtype == "bfloat16"):
            continue  # the optimizer is the same function there
        torch.manual_seed(0)
        half = dtype == "bfloat16"
        kinds = [Init("uniform", 0.1), Init("normal", 0.1), Init("normal", 0.2)]
        rows = None if grows else universe
        tables = [Table(f"t{k}", 24, rows, init, 5, dtype=dtype) for k, init in enumerate(kinds)]
        begins = "initial_accumulator_value" in DEFINITIONS[name].defaults
        optimizer = RowOptimizer(name, **({"initial_accumulator_value": 0.1} if begins else {}))
        store = (GrowingGpuTables if grows else GpuTables)(tables, optimizer, 3, DEVICE)
        every = torch.arange(universe)
        values = [initial_rows(table, 3, every) for table in tables]
        values = [round_bfloat16(v) if half else v for v in values]
        begin = optimizer.initial_state()
        shapes = {"row": (universe,), "dim": (universe, 24)}
        state = [
            {key: torch.full(shapes[k], begin[key]) for key, k in DEFINITIONS[name].state.items()}
            for _ in tables
        ]
        worst = 0.0
        for step in range(1, steps + 1):
            ids = [torch.randint(0, universe, (n,)) for n in counts]
            ids[2][1000:] = ids[2][0]  # one has 3000 occurrences
            lookup = store.look_up([part.to(DEVICE) for part in ids])
            want = torch.cat([v[i] for v, i in zip(values, ids)])
            worst = max(worst, float((store.pull(lookup).cpu() - want).abs().max()))
            grads = torch.randn(sum(counts), 24) * 0.1
            store.push(lookup, grads.to(DEVICE), 0.05)
            for t, (part, grad) in enumerate(zip(ids, grads.split(counts))):
                some, inverse = part.unique(return_inverse=True)
                summed = torch.zeros(len(some), 24).index_add_(0, inverse, grad)
                keep = some != 5
                some, summed = some[keep], summed[keep]
                new = values[t][some]
                parts = {key: part[some] for key, part in state[t].items()}
                update_rows(optimizer, new, parts, summed, 0.05, step)
                if half:
                    key = recipe(tables[t], 3).key
                    new = round_bfloat16(new, rounding_noise(key, step, some, 24))
                values[t][some] = new
                for key, part in parts.items():
                    state[t][key][some] = part
        store.check()
        yield f"{name} {dtype} {'growing' if grows else 'fixed'}", worst
    yield "the same bits twice", bits_that_differ()
    store = GpuTables([Table("t", 8, 10)], RowOptimizer("sgd"), 0, DEVICE)
    store.pull(store.look_up([torch.tensor([3, 10])]))
    try:
        store.check()
    except ValueError:
        yield "an id outside is refused", 0.0
    else:
        yield "an id outside is refused", 1.0


def bits_that_differ() -> float:
    """How many values of two tables differ that learned the same, while ids were sorted beside."""
    torch.manual_seed(0)
    ids = torch.randint(0, 300_000, (1 << 20,), device=DEVICE) % 200_000
    ids[: 1 << 18] = 7
    grads = torch.randn(len(ids), 32, device=DEVICE)
    made = []
    for _ in range(2):
        table = Table("t", 32, 200_000)
        store = GpuTables([table], RowOptimizer("adam"), 0, DEVICE)
        lookup = store.look_up([ids])
        for _ in range(5):
            store.begin(0.01, lookup)
            store.pull(lookup, learn=True)
            store.apply(store.take_sorted(lookup.counts).segments, grads)
        made.append(store.arena.values)
    return float((made[0] != made[1]).sum())


def check() -> None:
    """Print what differs by more than rounding; bfloat16 may differ by its last bit."""
    count = 0
    for what, worst in checks():
        count += 1
        bound = 2e-2 if "bfloat16" in what else 2e-5
        if worst > bound:
            print(f"DIFFERS {what}: {worst:.2e}")
        else:
            print(f"{what}: {worst:.1e}", end="; ")
    print(f"\n{count} checked", flush=True)


if __name__ == "__main__":
    main()
