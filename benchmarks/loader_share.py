"""How much of a training epoch waits for batches, of the recipes.

    python benchmarks/loader_share.py [--steps 200] [RECIPE.yaml ... [--data.path=FOLDER ...]]

Two epochs are trained as `shoal train` does it, but end after so many steps; of the second (on a
GPU the first one compiles) the time in which the loop waits for its next batch is added up. Batches
are made many at a time, so that few steps show more than there is. Without a recipe: those that
generate their data.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from shoal.data.batch import Batch  # noqa: E402
from shoal.data.reader import Reader  # noqa: E402
from shoal.distributed.world import World  # noqa: E402
from shoal.runs.build import build  # noqa: E402
from shoal.runs.run import resolve  # noqa: E402
from shoal.training.cursor import Cursor  # noqa: E402
from shoal.training.run_folder import RunFolder  # noqa: E402
from shoal.training.trainer import Trainer  # noqa: E402

GENERATED = ("synthetic-bpr-single", "synthetic-clicks-dnn", "random-bert4rec")


@dataclass
class Waited:
    """Seconds of an epoch, and those of them that went by without a batch."""

    steps: int = 0
    for_batches: float = 0.0

    def wrap(self, reader: Reader, most: int) -> None:
        """Time what `reader` yields, and let it end after `most` batches."""
        batches = reader.batches

        def timed(*args: Any, **kwargs: Any) -> Iterator[Batch]:
            self.steps, self.for_batches = 0, 0.0
            source = iter(batches(*args, **kwargs))
            while self.steps < most:
                before = time.perf_counter()
                batch = next(source, None)
                self.for_batches += time.perf_counter() - before
                if batch is None:
                    return
                self.steps += 1
                yield batch

        reader.batches = timed  # type: ignore[method-assign]


def main() -> None:
    """Measure every recipe and print the table."""
    parser = argparse.ArgumentParser(description="Share of a step that waits for batches.")
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--steps", type=int, default=200)
    options, overrides = parser.parse_known_args()
    recipes = options.recipes or [str(ROOT / "recipes" / f"{name}.yaml") for name in GENERATED]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    print(f"command: python benchmarks/loader_share.py {' '.join(sys.argv[1:])}")
    print(f"machine: {device}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| recipe | steps | ms a step | waits for batches |\n| --- | --- | --- | --- |")
    for recipe in recipes:
        found, whole = measure(recipe, overrides, options.steps)
        print(
            f"| {Path(recipe).stem} | {found.steps} | {1e3 * whole / max(1, found.steps):.2f} | "
            f"{found.for_batches / whole:.1%} |",
            flush=True,
        )


def measure(recipe: str, overrides: list[str], steps: int) -> tuple[Waited, float]:
    """Train so many steps of a recipe in this process."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--train.epochs=2", "--train.eval_every=0", "--run.progress=false"]
        quiet.append("--strategy.name=single")
        config = resolve([recipe], [*overrides, *quiet]).config
        world = World("cuda" if torch.cuda.is_available() else "cpu")
        parts = build(config, world)
        found = Waited()
        found.wrap(parts.reader, steps)
        how = (parts.reader, parts.evaluator, RunFolder(folder), parts.fingerprint)
        trainer = Trainer(parts.config, parts.strategy, *how)
        for epoch in range(2):
            trainer.cursor = Cursor(epoch=epoch)
            begun = time.perf_counter()
            trainer._train(2)  # an epoch without its checkpoint
            seconds = time.perf_counter() - begun
        parts.strategy.close()
        world.close()
        return found, seconds


if __name__ == "__main__":
    main()
