"""A softmax over a catalogue on a CPU, loss to updated rows: torch, pieces, one pass.

    python benchmarks/softmax_cpu.py [--threads 1 2] [--instructions avx2]

Per shape the milliseconds of one training step of the output layer alone (loss, gradients of the
states, Adam on all rows and biases): by torch (cross_entropy, autograd, torch.optim.Adam), by Shoal
with gradients of rows written down, and by the core's own pass, which never writes them. The three
take turns; printed are medians, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from shoal.embedding.engines.device import Device
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.service import LocalRows
from shoal.kernels import softmax as native
from shoal.optimizers.row_optimizer import RowOptimizer

SHAPES = {  # positions, rows, dim
    "BERT4Rec, batch 8": (26, 49_079, 128),
    "BERT4Rec, batch 16": (51, 49_079, 128),
    "BERT4Rec, batch 64": (205, 49_079, 128),
    "BERT4Rec, batch 128": (410, 49_079, 128),
    "few of few": (26, 3_700, 64),
    "in between": (200, 10_000, 64),
    "SASRec, batch 16": (512, 3_700, 64),
    "SASRec, batch 128": (4_096, 3_700, 64),
}
LR = 1e-3
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def main() -> None:
    """Measure every shape and print the table."""
    options = command_line()
    if options.instructions:
        native._core.use_instruction_set(options.instructions)
    print(f"torch {torch.__version__}, {native._core.instruction_set()}")
    print("| shape | positions | rows | dim | threads | torch, ms | pieces | one pass |", end="")
    print(" torch ÷ pieces | torch ÷ one pass | pieces ÷ one pass | rule takes |")
    print("| --- " * 12 + "|")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, (n, k, dim) in SHAPES.items():
            rounds = max(3, options.rounds // (1 if n * k < 1 << 24 else 3))
            torch_, pieces, fused = measure(steps_of(n, k, dim), rounds, CLOCKS[options.clock])
            ratios = " | ".join(
                f"{statistics.median(a / b for a, b in zip(*pair)):.2f}"
                for pair in ((torch_, pieces), (torch_, fused), (pieces, fused))
            )
            times = " | ".join(f"{1e3 * statistics.median(x):.1f}" for x in (torch_, pieces, fused))
            takes = "one pass" if native.worth_it(n, dim, k) else "pieces"
            print(f"| {name} | {n} | {k:,} | {dim} | {threads} | {times} | {ratios} | {takes} |")


def steps_of(n: int, k: int, dim: int) -> list[Callable[[], None]]:
    """A training step of an output layer, in three ways."""
    hidden = torch.randn(n, dim) * 0.1
    targets = torch.randint(1, k, (n,))

    def shoal(one_pass: bool) -> Callable[[], None]:
        embed = Embeddings(
            output=Table("output", dim, k, Init("normal", 0.1), padding=0, whole=True),
            bias=Table("bias", 1, k, Init("normal", 0.1), padding=0, whole=True),
        )
        rows = LocalRows(
            {
                name: Device(table, RowOptimizer("adam"), 3, "cpu", one_pass)
                for name, table in embed.tables.items()
            }
        )
        embed.attach(rows)
        embed.train()

        def step() -> None:
            rows.begin(object(), [])
            states = hidden.clone().requires_grad_()
            embed.full_softmax("output", states, targets, "bias").backward()
            rows.apply(rows.collect().rows, LR)

        def forced() -> None:
            rules, native.MOST, native.HELD = (native.MOST, native.HELD), 1 << 62, 1 << 62
            try:
                step()
            finally:
                native.MOST, native.HELD = rules

        return forced if one_pass else step

    rows = (torch.randn(k, dim) * 0.1).requires_grad_()
    bias = (torch.randn(k) * 0.1).requires_grad_()
    optimizer = torch.optim.Adam([rows, bias], lr=LR)

    def by_torch() -> None:
        states = hidden.clone().requires_grad_()
        F.cross_entropy(states @ rows.T + bias, targets, reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return [by_torch, shoal(False), shoal(True)]


def measure(
    steps: list[Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of every step, in turns; the first two rounds do not count."""
    seconds: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 2):
        for step, mine in zip(steps, seconds):
            begun = clock()
            step()
            if number > 1:
                mine.append(clock() - begun)
    return seconds


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--instructions", help="one of the core's builds; default: the widest")
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help="cpu: for a busy machine")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
