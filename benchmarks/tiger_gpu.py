"""TIGER on one GPU: lists in how many milliseconds, epochs in how many seconds.

    python benchmarks/tiger_gpu.py              both parts
    python benchmarks/tiger_gpu.py decode       lists: recorded, not recorded, prefixes recomputed
    python benchmarks/tiger_gpu.py train        an epoch of Amazon Beauty's size
    python benchmarks/tiger_gpu.py --small      tiny shapes, also on a CPU

Lists: 8 layers of encoder and decoder, width 1024, 8 heads x 128, bfloat16; 100,000 items of 4
codes below 256, 200 beams. A history of 2048 places is 512 items. The time is from histories in the
GPU's memory to the best 200 of all items. Recomputing reads the history once too, and computes the
whole text of every beam for each code; its lists must be equal (in float32 all of them; in bfloat16
the table shows how many items are in both).

Epochs: 131,413 prefixes, as many as Amazon Beauty (5-core) has, of 6 items on average and at most
20, batches of 256, 12,101 items of 4 codes, the model's default sizes (--layers: others). Batches
are made before the clock starts. By length: train.bucket=true.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.base import Facts
from shoal.models.nn.beam_search import Beam
from shoal.models.nn.dropout import begin_step, end_steps
from shoal.models.sequential.tiger import TIGER
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BEAUTY = 131_413, 12_101, 20  # prefixes, items, places
LEVELS = 4


def different_codes(items: int, size: int) -> Tensor:
    """Random codes of items, no two alike, of item 0 zeros: [items + 1, 4]."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randperm(min(size**LEVELS - 1, 1 << 24), generator=generator)[:items] + 1
    numbers = numbers * (size**LEVELS // (int(numbers.max()) + 1))
    places = size ** torch.arange(LEVELS - 1, -1, -1)
    codes = numbers.unsqueeze(1) // places % size
    return torch.nn.functional.pad(codes, (0, 0, 1, 0))


def make_model(items: int, size: int, places: int, **options: Any) -> TIGER:
    torch.manual_seed(1)
    facts = Facts(num_items=items + 1, max_len=places, codes=different_codes(items, size))
    return TIGER(TIGER.Options(**options), facts)


def histories(batch: int, places: int, items: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, items + 1, (batch, places), generator=generator).to(DEVICE)


def milliseconds(compute: Callable[[], Any], rounds: int) -> float:
    """The median of some calls."""
    for _ in range(3):
        compute()
    took = []
    for _ in range(rounds):
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        compute()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        took.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(took)


# ---- lists --------------------------------------------------------------------------------------


def recomputed(model: TIGER, history: Tensor) -> tuple[Tensor, ...]:
    """As TIGER.written, without kept keys and values: all places of all texts for each code."""
    rows, size, out = model.rows(), history.shape[0], []
    memory, beam = model.read(history, rows), Beam.empty(size, rows)
    each = rows[1:].view(model.levels, model.size, -1)
    x = model.begin.expand(size, 1, 1, -1)  # [b, w, t, d]
    for level in range(model.levels):
        states = model.decoder(x + model.places[: level + 1], memory)[:, :, -1]
        chances = (states @ each[level].T).float().log_softmax(-1)
        out += [beam.nodes, chances]
        if level + 1 < model.levels:
            prefixes, most = model.tree.prefixes[level], model.options.beam_size
            beam, place, code = beam.grown(chances, prefixes, most)
            before = x.gather(1, place[..., None, None].expand(-1, -1, *x.shape[2:]))
            x = torch.cat([before, each[level][code].unsqueeze(2)], 2)
    return tuple(out)


def best(model: TIGER, written: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Scores and items of the longest list: [b, beams] each."""
    items = torch.arange(1, len(model.codes), device=DEVICE).unsqueeze(0)
    scores, found = model.tree.scores(written, items).topk(
        min(model.options.beam_size, items.numel())
    )
    return scores, found + 1


def decode(small: bool, rounds: int) -> None:
    shape: dict[str, Any] = {"hidden_size": 1024, "inner_size": 4096, "n_layers": 8, "n_heads": 8}
    items, size, beams, cases = 100_000, 256, 200, [(16, 2048, 80.0), (1, 256, 6.0)]
    if small:
        shape = {"hidden_size": 32, "inner_size": 64, "n_layers": 2, "n_heads": 2}
        items, size, beams, cases = 500, 16, 20, [(4, 64, 80.0), (1, 32, 6.0)]
    places = max(tokens for _, tokens, _ in cases) // LEVELS
    model = make_model(items, size, places, beam_size=beams, **shape)
    strategy = Single(World(DEVICE))
    strategy.setup(model, OptimizerSection(), seed=1)
    spread(model)
    model.eval()
    check(model, histories(2, cases[1][1] // LEVELS, items))
    if DEVICE.type == "cuda":
        model.bfloat16()
        model.train(False)  # what was recorded reads other memory
    print(f"\nlists of {beams}, {shape['n_layers']} layers of {shape['hidden_size']}, "
          f"{model.begin.dtype}, ms: median of {rounds}\n")  # fmt: skip
    print(
        "| batch | places | recorded | not recorded | recomputed | history alone | bar | in both |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    every = torch.arange(1, items + 1, device=DEVICE)
    for batch, tokens, bar in cases:
        history = histories(batch, tokens // LEVELS, items)
        asked = Batch(batch, {"history": history})
        rows = model.rows()
        took = [
            milliseconds(lambda a=asked: model.score(a, every).topk(min(beams, items)), rounds),
            milliseconds(lambda h=history, r=rows: best(model, model.written(h, r)), rounds),
            milliseconds(lambda h=history: best(model, recomputed(model, h)), max(3, rounds // 4)),
            milliseconds(lambda h=history, r=rows: model.read(h, r), rounds),
        ]
        ours = model.score(asked, every).topk(min(beams, items)).indices + 1
        theirs = best(model, recomputed(model, history))[1]
        both = (ours.unsqueeze(2) == theirs.unsqueeze(1)).any(2).float().mean()
        shown = " | ".join(f"{one:.2f}" for one in took)
        print(f"| {batch} | {tokens} | {shown} | {bar:.0f} | {float(both):.2%} |", flush=True)


def spread(model: TIGER) -> None:
    """Weights as if it had learned: with its first ones nearly all codes are as likely."""
    torch.manual_seed(3)
    for name, one in model.named_parameters():
        if one.dim() > 1 and "norm" not in name:
            one.add_(torch.randn_like(one) * one.shape[-1] ** -0.5)


def check(model: TIGER, history: Tensor) -> None:
    """In float32 lists are equal to those of recomputing, recorded and not."""
    torch.set_float32_matmul_precision("highest")
    wanted, items = best(model, recomputed(model, history))
    asked, every = Batch(len(history), {"history": history}), torch.arange(1, len(model.codes))
    for how in ("not recorded", "recorded"):
        scores, found = model.score(asked, every.to(DEVICE)).topk(items.shape[1])
        kept = wanted > -500  # behind them nothing is ordered: their beginnings were dropped
        same = torch.equal((found + 1)[kept], items[kept])
        off = float((scores - wanted)[kept].abs().max())
        verdict = "equal" if same and off < 1e-4 else "WRONG"
        print(f"float32, {how}: lists {verdict}, scores differ by at most {off:.1e}", flush=True)


# ---- epochs -------------------------------------------------------------------------------------


def beauty(small: bool, batch_size: int, by_length: bool) -> list[Batch]:
    """Batches of prefixes, mostly short ones."""
    count, items, places = (2_000, 300, 20) if small else BEAUTY
    generator = torch.Generator().manual_seed(4)
    draws = torch.rand(count, generator=generator)
    sizes = (1 - draws).log().div(-0.17).long().clamp(max=places - 1) + 1  # 6 on average
    if by_length:
        sizes = sizes.sort().values
    kept = torch.arange(places) < sizes.unsqueeze(1)
    history = torch.randint(1, items + 1, (count, places), generator=generator) * kept
    target = torch.randint(1, items + 1, (count,), generator=generator)
    batches = []
    for first in range(0, count - batch_size + 1, batch_size):
        some = slice(first, first + batch_size)
        longest = int(sizes[some].max()) if by_length else places
        ids = {"history": history[some, :longest].contiguous(), "target": target[some]}
        if DEVICE.type == "cuda":
            ids = {name: one.pin_memory() for name, one in ids.items()}
        batches.append(Batch(batch_size, dict(ids)))
    return batches


def train(small: bool, layers: int, epochs: int) -> None:
    print(
        f"\nepochs of Amazon Beauty's size, {layers} layers, batches of 256: median of {epochs}\n"
    )
    print("| | seconds | records/s |\n| --- | --- | --- |")
    for name, kind, by_length in (
        ("steps as they are", Single, False),
        ("recorded", Graphed, False),
        ("recorded, by length", Graphed, True),
    ):
        if kind is Graphed and DEVICE.type == "cpu":
            kind = Single  # nothing is recorded there
        batches = beauty(small, 256, by_length)
        model = make_model(300 if small else BEAUTY[1], 256, 20, n_layers=layers)
        strategy = kind(World(DEVICE))
        strategy.setup(model, OptimizerSection(name="adam", lr=1e-3), seed=1)
        model.train()
        took = []
        for epoch in range(epochs + 1):  # the first one warms up and records
            begun = time.perf_counter()
            for step, batch in enumerate(batches):
                begin_step(1, epoch * len(batches) + step, DEVICE)
                loss = strategy.train_step(strategy.receive(batch))
            float(loss)  # waits
            took.append(time.perf_counter() - begun)
        end_steps()
        seconds = statistics.median(took[1:])
        print(f"| {name} | {seconds:.2f} | {len(batches) * 256 / seconds:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=["decode", "train", []], default=[])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    print(torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU", torch.__version__)
    if not args.parts or "decode" in args.parts:
        with torch.inference_mode():
            decode(args.small, args.rounds)
    if not args.parts or "train" in args.parts:
        train(args.small, args.layers, args.epochs)


if __name__ == "__main__":
    main()
