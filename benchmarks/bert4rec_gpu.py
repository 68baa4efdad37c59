"""BERT4Rec records per second on one GPU: Shoal beside plain PyTorch, in alternating runs.

    python benchmarks/bert4rec_gpu.py

The size of the page of TorchRec's example: 500,000 items, length 16, dim 128, 2 heads, 2 layers, a
fifth of the items masked, full softmax, Adam; batch 8, 64 and 512. Needs torch, numpy and pydantic.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from bert4rec_peer import Model as PlainModel  # noqa: E402

from shoal.config.schema import OptimizerSection  # noqa: E402
from shoal.data.batch import Batch, Jagged  # noqa: E402
from shoal.distributed.world import World  # noqa: E402
from shoal.models.base import Facts  # noqa: E402
from shoal.models.sequential.bert4rec import BERT4Rec  # noqa: E402
from shoal.training.strategies.base import Single  # noqa: E402
from shoal.training.strategies.graphed import Graphed  # noqa: E402


class Shape(NamedTuple):
    length: int = 16
    dim: int = 128
    mask: float = 0.2


def batches(
    items: int, shape: Shape, size: int, count: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(history with masks, target) as a reader makes them: ids 1 .. items, mask token items + 1."""
    random = np.random.default_rng(1)
    made = []
    for _ in range(count):
        ids = random.integers(1, items + 1, (size, shape.length))
        hidden = random.random(ids.shape) < shape.mask
        history, target = np.where(hidden, items + 1, ids), np.where(hidden, ids, 0)
        made.append((torch.from_numpy(history), torch.from_numpy(target)))
    return made


def shoal_step(
    items: int, shape: Shape, device: torch.device, path: str, dropout: float = 0.1
) -> Callable:
    """A step of Shoal: model, strategy and rows as in a run. path: graph, fused or plain."""
    empty = torch.empty(0, dtype=torch.int64)
    facts = Facts(2, items + 1, "user_id", "item_id", shape.length, empty, empty)
    torch.manual_seed(1)
    options = BERT4Rec.Options(
        hidden_size=shape.dim,
        mask_ratio=shape.mask,
        hidden_dropout_prob=dropout,
        attn_dropout_prob=dropout,
    )
    model = BERT4Rec(options, facts)
    world = World(device)
    strategy = Graphed(world) if path == "graph" else Single(world, fused=path == "fused")
    strategy.setup(model, OptimizerSection(name="adam", lr=1e-3), seed=1)
    model.train()

    def step(history: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        asked = target > 0  # on the host, as the reader does it
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), asked.sum(1).cumsum(0)])
        masked = Jagged(asked.view(-1).nonzero().view(-1), offsets)
        batch = Batch(len(history), {"history": history, "target": target, "masked": masked})
        return strategy.train_step(strategy.receive(batch))

    return step


def plain_step(items: int, shape: Shape, device: torch.device) -> Callable:
    """A step of plain PyTorch: logits at every position, dense Adam (fused)."""
    torch.manual_seed(1)
    rows = nn.Embedding(items + 2, shape.dim)
    model = PlainModel(rows, items + 2, shape.length, shape.dim, 2, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of = nn.CrossEntropyLoss(ignore_index=0)

    def step(history: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        history, target = history.to(device), target.to(device)
        optimizer.zero_grad()
        loss = loss_of(model(history).view(-1, items + 2), target.view(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(step: Callable, data: list, device: torch.device, warm_up: int) -> tuple[float, float]:
    """Seconds per step over all batches after the first ones, and the last loss."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for one in data[:warm_up]:
        loss = step(*one)
    wait()
    begun = time.perf_counter()
    for one in data[warm_up:]:
        loss = step(*one)
    wait()
    return (time.perf_counter() - begun) / (len(data) - warm_up), float(loss)


SIDES: dict[str, Callable] = {
    "shoal": partial(shoal_step, path="graph"),  # strategy.graph: true
    "shoal, no graph": partial(shoal_step, path="fused"),
    "shoal, no kernels": partial(shoal_step, path="plain"),  # strategy.fused: false
    "plain PyTorch": plain_step,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--mask", type=float, default=0.2)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="0: compare losses only")
    parser.add_argument("--compared", type=int, default=20, help="steps whose losses are compared")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tf32", action="store_true", help="products of 10 bits, on all sides")
    parser.add_argument("--profile", type=int, default=0, help="batch to profile instead")
    options = parser.parse_args()
    device = torch.device(options.device)
    shape = Shape(options.length, options.dim, options.mask)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(f"command: python {' '.join(sys.argv)}\nmachine: {name}, torch {torch.__version__}\n")
    if options.profile:
        profile(SIDES[options.sides[0]](options.items, shape, device), options, shape, device)
        return
    if options.rounds:
        print("| batch | side | ms per step | records/s | × plain PyTorch | loss |")
        print("| --- | --- | --- | --- | --- | --- |")
        steps = {side: SIDES[side](options.items, shape, device) for side in options.sides}
        for size in options.batch:
            compare(size, shape, steps, options, device)
        del steps
    after = f"Shoal's loss after {options.compared} steps"
    print(f"\n| batch | {after} | no graph | no kernels | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for size in options.batch:
        agreement(size, shape, options, device)


def compare(
    size: int,
    shape: Shape,
    steps: dict[str, Callable],
    options: argparse.Namespace,
    device: torch.device,
) -> None:
    """One line for each side: the median of alternating rounds."""
    count = max(16, options.steps // max(1, size // 64))
    data = batches(options.items, shape, size, count + 5)
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    losses = {}
    for step in steps.values():  # every shape comes twice, so that all are recorded
        for one in data * 2:
            step(*one)
    for _ in range(options.rounds):
        for side, step in steps.items():
            one, losses[side] = measure(step, data, device, warm_up=5)
            seconds[side].append(one)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    for side, value in median.items():
        ratio = median.get("plain PyTorch", float("nan")) / value
        print(
            f"| {size} | {side} | {value * 1e3:.3f} | {size / value:.0f} | {ratio:.2f} | "
            f"{losses[side]:.4f} |",
            flush=True,
        )


def agreement(size: int, shape: Shape, options: argparse.Namespace, device: torch.device) -> None:
    """Losses of some steps on the three paths, dropout off; the difference is relative."""
    made = batches(options.items, shape, size, 5)
    data = [made[k % 5] for k in range(options.compared)]
    losses = []
    for path in ("graph", "fused", "plain"):
        step = shoal_step(options.items, shape, device, path, dropout=0.0)
        losses.append(torch.stack([step(*one) for one in data]).double().cpu())
        del step
        gc.collect()
    *ours, plain = losses
    difference = max(float(((one - plain) / plain).abs().max()) for one in ours)
    last = " | ".join(f"{one[-1]:.6f}" for one in losses)
    print(f"| {size} | {last} | {difference:.1e} |", flush=True)


def profile(
    step: Callable, options: argparse.Namespace, shape: Shape, device: torch.device
) -> None:
    """Where the time of a step goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    data = batches(options.items, shape, options.profile, 20)
    for _ in range(3):
        measure(step, data, device, warm_up=1)
    kinds = [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with record(activities=kinds) as found:
        measure(step, data, device, warm_up=1)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=60))


if __name__ == "__main__":
    main()
