"""Training HSTU at NVIDIA's published size on one GPU, tables and optimizer included.

    python benchmarks/hstu_gpu.py             # 8 layers, width 1024, 4 heads of 256, 32 x 4,099
    python benchmarks/hstu_gpu.py --zipf      # lengths by Zipf (1.2), at most 4,096
    python benchmarks/hstu_gpu.py --small     # a shape for a look on a CPU

A model as users write them, trained by the strategy of `shoal train`: tables of items and of users
(50M x 128 each, Adam; --tier-gb of GPU memory for rows, the rest in host memory), a product to the
model's width, the layers of HSTU in bfloat16, one label at every place. NVIDIA's recsys-examples
publish 187 ms, 701K tokens/s, 342 TFLOPS for each of sixteen H100. Operations are counted as there:
causal attention 4 * T * T * width / 2 forward, 2.5 times that backward; products 2 * tokens *
inputs * outputs forward, twice that backward; nothing else.
"""

import argparse
import statistics
import sys
import time
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.row_rules import RowsSection, TiersSection
from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.models.nn.hstu import HSTULayer, places_of, with_pads, without_pads
from shoal.training.strategies.base import Single

LAYERS, HEADS = 8, 4


class Ranking(Model):
    """Labels of every place of a history: ids item [b, l] and user [b], 0 is a pad."""

    kind = "clicks"

    def __init__(self, args: argparse.Namespace):
        super().__init__(None, Facts(max_len=args.length))
        items, users = (
            Table(name, args.dim, rows, Init("normal", 0.02), padding=0)
            for name, rows in (("item", args.rows), ("user", args.users))
        )
        self.embed = Embeddings(item=items, user=users)
        self.project = nn.Linear(args.dim, args.width)
        options = types.SimpleNamespace(
            hidden_size=args.width, n_heads=HEADS, attention_size=None, linear_size=None,
            use_positions=False, use_times=False, linear_dropout_prob=0.0, layer_norm_eps=1e-6,
        )  # fmt: skip
        self.layers = nn.ModuleList(HSTULayer(options, args.length) for _ in range(LAYERS))
        self.head = nn.Linear(args.width, 1)

    def forward(self, batch: Batch) -> Output:
        history = batch.tensor("item")
        vectors = self.embed(batch, ["item", "user"])
        x = self.project(vectors["item"] + vectors["user"].unsqueeze(1))
        x = x * (history > 0).unsqueeze(-1)
        places = places_of(x, history, None, self.layers[0].widest)
        x = without_pads(x, places[1])
        for layer in self.layers:
            x = layer(x, *places)
        logits = with_pads(self.head(x).float(), places[1], len(history)).squeeze(-1)
        real = (history > 0).float()
        assert batch.labels is not None
        loss = F.binary_cross_entropy_with_logits(logits, batch.labels, real, reduction="sum")
        return Output(loss, real.sum())


def make_batches(args: argparse.Namespace, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        shape = (args.batch, args.length)
        chance = torch.rand(shape, generator=generator, dtype=torch.float64)
        items = (args.rows**chance).long().clamp(1, args.rows - 1)  # zipf, 1
        users = torch.randint(1, args.users, (args.batch,), generator=generator)
        lengths = torch.full((args.batch,), args.length)
        if args.zipf:
            lengths = zipf(args.batch, args.length, generator)
        items[torch.arange(args.length) >= lengths.unsqueeze(1)] = 0
        labels = (torch.rand(shape, generator=generator) < 0.3).float()
        ids = {"item": items, "user": users}
        if args.device == "cuda":
            ids, labels = {name: x.pin_memory() for name, x in ids.items()}, labels.pin_memory()
        made.append(Batch(args.batch, ids, {}, labels))
    return made


def zipf(count: int, most: int, generator: torch.Generator) -> Tensor:
    """Lengths whose chance is 1 / length^1.2."""
    chance = torch.arange(1, most + 1, dtype=torch.float64).pow(-1.2)
    return torch.multinomial(chance, count, replacement=True, generator=generator) + 1


def operations(args: argparse.Namespace, batch: Batch) -> float:
    lengths = (batch.tensor("item") > 0).sum(1).double()
    products = 3 * 2 * lengths.sum() * args.width * 5 * args.width
    attention = 3.5 * (4 * lengths.square() * args.width / 2).sum()
    return float(LAYERS * (products + attention))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--users", type=int, default=50_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=4099)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tier-gb", type=float, help="GPU memory for rows; else all of them")
    parser.add_argument("--zipf", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.small:
        args.rows, args.users, args.dim, args.width = 1000, 1000, 8, 64
        args.batch, args.length, args.steps = 4, 50, 3
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    begun = time.perf_counter()
    torch.manual_seed(1)
    strategy = Single(World(args.device))
    budget = None if args.tier_gb is None else int(args.tier_gb * 1e9)
    section = OptimizerSection(name="sparse_adam", lr=0.001)
    rows = RowsSection(tiers=TiersSection(gpu=budget))
    strategy.setup(Ranking(args), section, 1, rows=rows, precision="bfloat16")
    batches = make_batches(args, 6)
    print(f"{time.perf_counter() - begun:.0f} s until the first step", flush=True)
    seconds = []
    following = strategy.receive(batches[0])
    for step in range(6 + args.steps):
        wait()
        begin = time.perf_counter()
        batch, following = following, strategy.receive(batches[(step + 1) % len(batches)])
        strategy.prefetch(following)
        loss = strategy.train_step(batch)
        wait()
        seconds.append(time.perf_counter() - begin)
    took = statistics.median(seconds[6:])
    tokens = statistics.mean(float((batch.tensor("item") > 0).sum()) for batch in batches)
    done = statistics.mean(operations(args, batch) for batch in batches)
    memory = torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else 0.0
    print(
        f"{args.batch} x {args.length}: {1e3 * took:.1f} ms a step, {tokens / took:,.0f} tokens/s, "
        f"{done / took / 1e12:.1f} TFLOPS, {memory:.1f} GiB, loss {float(loss):.4f}",
        flush=True,
    )
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            strategy.train_step(strategy.receive(batches[0]))
            wait()
        for one in sorted(seen.key_averages(), key=lambda e: -e.device_time_total)[:22]:
            print(f"  {one.device_time_total / 1e3:8.2f} ms {one.count:5d}  {one.key[:90]}")


if __name__ == "__main__":
    main()
