"""Sequences with and without their pads: seconds of training steps, both sides in one run.

    python benchmarks/packed.py --threads 1
    python benchmarks/packed.py --data .testdata/ml-1m.zip --lengths ml-1m
    python benchmarks/packed.py --device cuda

SASRec (width 64, 2 layers, 2 heads, dropout 0.2, softmax over 3,416 items) and BERT4Rec (the same,
a fifth of the items hidden) train on windows of histories in batches of 256. Lengths: those of
MovieLens-1M's users (--data), or a long tail, log-normal around 30 items, up to max_len. Items are
drawn at random: they do not change the time of a step.

On a CPU `padded` computes every place, and `packed` what the transformer leaves out pads for (one
line: shoal/models/nn/transformer.py, `packs`). On a GPU `packed` are recorded steps of places of
items alone (shoal/training/strategies/graphed.py, `count_tokens`) where there are enough pads, else
attention leaves pads out; a third side is a batch of as many items without pads: the most one could
gain.

Both sides step in turn, and of `--rounds` the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.models.base import Facts, Model
from shoal.models.nn import transformer
from shoal.models.nn.dropout import begin_step
from shoal.models.sequential.bert4rec import BERT4Rec
from shoal.models.sequential.sasrec import SASRec
from shoal.training.strategies import graphed
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

ITEMS, BATCH = 3417, 256


def window_lengths(args: argparse.Namespace, max_len: int) -> np.ndarray:
    """Lengths of all windows: int64 [n], shuffled."""
    draw = np.random.default_rng(1)
    if args.lengths == "ml-1m":
        with zipfile.ZipFile(args.data) as archive:
            name = next(one for one in archive.namelist() if one.endswith("ratings.dat"))
            users = [int(line.split(b"::")[0]) for line in archive.read(name).splitlines()]
        counts = np.bincount(users)[1:] - 3  # less those for validation and test, and the first
        counts = counts[counts > 0]
        windows = np.concatenate([np.full(-(-n // max_len), max_len) for n in counts])
        ends = np.cumsum(-(-counts // max_len)) - 1
        windows[ends] = (counts - 1) % max_len + 1
    else:
        windows = np.clip(draw.lognormal(np.log(30), 1.0, 4 * BATCH).astype(np.int64), 1, max_len)
    draw.shuffle(windows)
    return windows


def batch_of(name: str, lengths: np.ndarray, max_len: int, device: str) -> Batch:
    """Histories and targets of a training batch of these lengths."""
    generator = torch.Generator().manual_seed(2)
    real = torch.arange(max_len) < torch.from_numpy(lengths).unsqueeze(1)
    items = torch.randint(1, ITEMS, (2, len(lengths), max_len), generator=generator) * real
    history, target = items
    if name == "BERT4Rec":
        hidden = (torch.rand(history.shape, generator=generator) < 0.2) & real
        target = history * hidden
        history = history.masked_fill(hidden, ITEMS)
    ids: dict[str, Tensor | Jagged] = {"history": history, "target": target}
    if name == "BERT4Rec":
        asked = target > 0
        offsets = torch.nn.functional.pad(asked.sum(1).cumsum(0), (1, 0))
        ids["masked"] = Jagged(asked.view(-1).nonzero().view(-1), offsets)
    return Batch(len(lengths), ids)


def strategy_of(name: str, max_len: int, device: str) -> Single:
    torch.manual_seed(1)
    facts = Facts(num_items=ITEMS, max_len=max_len, train_items=torch.arange(1, ITEMS))
    how = {"hidden_size": 64, "inner_size": 256, "n_layers": 2, "n_heads": 2}
    how |= {"hidden_dropout_prob": 0.2, "attn_dropout_prob": 0.2}
    kind = {"SASRec": SASRec, "BERT4Rec": BERT4Rec}[name]
    model: Model = kind(kind.Options(**how), facts)  # type: ignore[operator]
    world = World(device=torch.device(device))
    strategy = Graphed(world, auto=True) if device == "cuda" else Single(world)
    strategy.setup(model, OptimizerSection(lr=1e-3), seed=1)
    model.train()
    return strategy


def timed(strategy: Single, batch: Batch, step: int) -> float:
    received = strategy.receive(batch)
    _wait(strategy)
    begun = time.perf_counter()
    begin_step(1, step, strategy.world.device)
    strategy.train_step(received)
    _wait(strategy)
    return time.perf_counter() - begun


def _wait(strategy: Single) -> None:
    if strategy.world.device.type == "cuda":
        torch.cuda.synchronize()


def compare(args: argparse.Namespace, name: str, max_len: int) -> None:
    lengths = window_lengths(args, max_len)[:BATCH]
    batch = batch_of(name, lengths, max_len, args.device)
    strategy = strategy_of(name, max_len, args.device)

    def padded(step: int) -> float:
        used = transformer.packs, transformer.ends_of, graphed.count_tokens
        transformer.packs = transformer.ends_of = lambda *_: None
        graphed.count_tokens = lambda batch: batch
        try:
            return timed(whole, batch, step)
        finally:
            transformer.packs, transformer.ends_of, graphed.count_tokens = used

    sides: dict[str, Callable[[int], float]]
    whole = strategy_of(name, max_len, args.device)  # a recorded step stays as it was recorded
    sides = {"padded": padded, "packed": lambda step: timed(strategy, batch, step)}
    if args.device == "cuda":
        full = np.full(max(1, int(lengths.sum()) // max_len), max_len)
        other, apart = batch_of(name, full, max_len, "cuda"), strategy_of(name, max_len, "cuda")
        sides["no pads"] = lambda step: timed(apart, other, step)
    seconds: dict[str, list[float]] = {one: [] for one in sides}
    for step in range(args.rounds + 3):
        for one, run in sides.items():
            took = run(step)
            if step >= 3:  # those before warm up, and are recorded
                seconds[one].append(took)
    times = [1000 * statistics.median(seconds[key]) for key in sides]
    fill = lengths.mean() / max_len
    shown = " | ".join(f"{each:.2f}" for each in [*times, times[0] / times[1]])
    print(f"| {name} | {args.lengths} | {max_len} | {fill:.0%} | {shown} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--lengths", default="long tail", choices=["long tail", "ml-1m"])
    parser.add_argument("--data", default=".testdata/ml-1m.zip")
    parser.add_argument("--max-len", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--models", nargs="+", default=["SASRec", "BERT4Rec"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    third = " no pads ms |" if args.device == "cuda" else ""
    print(f"| model | lengths | places | real | padded ms | packed ms |{third} ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |" + (" --- |" if third else ""))
    for name in args.models:
        for max_len in args.max_len:
            compare(args, name, max_len)


if __name__ == "__main__":
    main()
