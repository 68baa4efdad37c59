"""What checkpoints cost: step time with and without one every 100 steps, and memory besides.

    python benchmarks/checkpoints.py [--rows 5000000] [--dim 16] [--every 100] [--rounds 5]

A click model (DNN) on one table, one process; ids by a power law, as clicks are. Rounds alternate
without checkpoints, with whole ones, and with deltas (checkpoint.whole_every), each of so many
steps in a folder of its own on the disk of --place; medians over the rounds. Two shares of the time
that training takes are told apart, in processor time, which other programs do not spoil: what the
training thread itself does for checkpoints (a consistent copy), and what the writer does in the
background, on another core where one is idle. Memory is the highest resident size of a round above
that at its begin. The first whole checkpoint, which a run of deltas begins with, is taken before
the rounds and told apart.
"""

from __future__ import annotations

import argparse
import functools
import platform
import resource
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models import find
from shoal.models.base import Facts
from shoal.training.checkpoint.writing import Checkpoints
from shoal.training.strategies.base import Single

SLOTS, DENSE = 26, 13
READY = 64  # batches, used in turns


def draw(rows: int, batch: int) -> list[Batch]:
    """Batches whose ids follow a power law."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(READY):
        uniform = torch.rand(batch, SLOTS, generator=generator, dtype=torch.float64)
        ids = ((rows**uniform).long() - 1) * 7919 % rows
        dense = torch.randn(batch, DENSE, generator=generator)
        labels = torch.randint(0, 2, (batch,), generator=generator).float()
        found.append(Batch(batch, {"slots": ids}, {"dense": dense}, labels))
    return found


class Peak:
    """The highest resident size while it lasts, in MiB above that at its begin."""

    def __enter__(self) -> Peak:
        self._first = self.highest = resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.highest = max(self.highest, resident())
        self.spent = time.thread_time()  # of processor time, which no checkpoint costs

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def above(self) -> float:
        return (self.highest - self._first) / 2**20


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Case:
    """One way to save, or none."""

    def __init__(self, name: str, place: Path, whole_every: int):
        self.name, self.place, self.whole_every = name, place, whole_every
        self.seconds: list[float] = []  # these four: a step, one entry a round
        self.training: list[float] = []  # of processor time, the training thread's
        self.in_saves: list[float] = []  # of that in `save`
        self.besides: list[float] = []  # of processor time, all other threads'
        self.above: list[float] = []
        self.step = 0
        self.checkpoints: Checkpoints | None = None
        if whole_every:
            self.checkpoints = Checkpoints(place / name, World(), 2, whole_every=whole_every)

    def save(self, strategy: Single) -> None:
        assert self.checkpoints is not None
        state = {"step": self.step, "best_step": None}
        self.checkpoints.save(strategy, state)

    def round(self, strategy: Single, batches: list[Batch], steps: int, every: int) -> None:
        """Some steps, and what they took."""
        saving = 0.0
        if self.checkpoints is not None:  # what changed in the others' rounds is none of this
            strategy.train_step(batches[0])
            self.step += 1
            self.save(strategy)
            self.checkpoints.wait()
        with Peak() as peak:
            begun, mine, all_of_us = time.perf_counter(), time.thread_time(), time.process_time()
            for _ in range(steps):
                strategy.train_step(batches[self.step % len(batches)])
                self.step += 1
                if self.checkpoints is not None and self.step % every == 0:
                    before = time.thread_time()
                    self.save(strategy)
                    saving += time.thread_time() - before
            self.seconds.append((time.perf_counter() - begun) / steps)
            mine = time.thread_time() - mine
            if self.checkpoints is not None:  # the writer's last work belongs to these steps
                self.checkpoints.wait()
            all_of_us = time.process_time() - all_of_us
        all_of_us -= peak.spent
        self.training.append(mine / steps)
        self.in_saves.append(saving / steps)
        self.besides.append((all_of_us - mine) / steps)
        self.above.append(peak.above)


def main() -> None:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--rows", type=int, default=5_000_000)
    given.add_argument("--dim", type=int, default=16)
    given.add_argument("--batch", type=int, default=1024)
    given.add_argument("--every", type=int, default=100)
    given.add_argument("--steps", type=int, default=500, help="of a round")
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--whole_every", type=int, default=20)
    given.add_argument("--threads", type=int, default=1)
    given.add_argument("--place", help="folder for the checkpoints; default: a temporary one")
    args = given.parse_args()
    torch.set_num_threads(args.threads)
    model = find("DNN")
    options = model.Options(dim=args.dim, layers=[400, 400, 400])
    strategy = Single()
    strategy.setup(
        model(options, Facts(num_slots=SLOTS, num_dense=DENSE, rows=args.rows)),
        OptimizerSection(name="adagrad", lr=0.01),
        seed=1,
    )
    strategy.model.train()
    batches = draw(args.rows, args.batch)
    store: Any = next(iter(strategy.stores.values()))
    place = Path(tempfile.mkdtemp(prefix="shoal-checkpoints-", dir=args.place))
    try:
        cases = [
            Case("none", place, 0),
            Case("whole", place, 1),
            Case("deltas", place, args.whole_every),
        ]
        for batch in batches:  # warm
            strategy.train_step(batch)
        begun = time.perf_counter()
        cases[2].save(strategy)
        first = time.perf_counter() - begun
        assert cases[2].checkpoints is not None
        cases[2].checkpoints.wait()  # its writer must not share the first round
        for _ in range(args.rounds):
            for case in cases:
                case.round(strategy, batches, args.steps, args.every)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(
        f"{platform.machine()}, torch {torch.__version__}, {args.threads} thread(s); table "
        f"{args.rows} x {args.dim} with Adagrad ({store.memory / 2**20:.0f} MiB), batch "
        f"{args.batch} x {SLOTS}; a checkpoint every {args.every} steps, {args.rounds} rounds of "
        f"{args.steps}"
    )
    print(f"the first whole checkpoint held training up for {first:.2f} s")
    print(
        "\n| checkpoints | ms a step | step time | training thread | of it in save | background | "
        "MiB above |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    none = cases[0]
    for case in cases:
        share = functools.partial(_share, of=none.training)
        # Rounds that are neighbours in time are compared.
        print(
            f"| {case.name} | {1e3 * statistics.median(case.seconds):.2f} "
            f"| {_share(case.seconds, of=none.seconds) - 100:+.1f} % "
            f"| {share(case.training) - 100:+.1f} % | {share(case.in_saves):.1f} % "
            f"| {share(case.besides) - share(none.besides):.1f} % | {max(case.above):.0f} |"
        )
    print(
        "\nstep time: by the clock; the next three: processor time, of the training thread's "
        "without checkpoints"
    )


def _share(seconds: list[float], of: list[float]) -> float:
    """The median of the rounds' ratios, in percent."""
    return 100 * statistics.median(one / base for one, base in zip(seconds, of))


if __name__ == "__main__":
    main()
