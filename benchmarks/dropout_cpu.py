"""Steps of SASRec and BERT4Rec with dropout on one thread: this tree beside another, alternating.

    python benchmarks/dropout_cpu.py OTHER 128      another checkout with its core built; batch

1,000 items, width 64, 2 layers, 2 heads, dropout 0.5 (SASRec) and 0.1 (BERT4Rec), Adam.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ITEMS = 1000
CASES = [  # model, batch, length, steps timed in a run
    ("SASRec", 128, 50, 8),
    ("SASRec", 128, 200, 2),
    ("SASRec", 2048, 50, 1),
    ("BERT4Rec", 128, 50, 10),
    ("BERT4Rec", 128, 200, 2),
    ("BERT4Rec", 2048, 50, 1),
]
ROUNDS = 3


def run(batch_size: int) -> None:
    """Seconds of the steps of every case, by the shoal that Python finds, as a line of JSON."""
    import torch

    from shoal.config.schema import OptimizerSection
    from shoal.data.batch import Batch
    from shoal.models import find
    from shoal.models.base import Facts
    from shoal.training.steps import seed_step
    from shoal.training.strategies.base import Single

    torch.set_num_threads(1)
    seconds = []
    for name, size, length, steps in CASES:
        if size != batch_size:
            continue
        torch.manual_seed(1)
        model = find(name)
        made = model(model.Options(), Facts(num_items=ITEMS, max_len=length))
        strategy = Single()
        strategy.setup(made, OptimizerSection(name="adam", lr=1e-3), seed=1)
        made.train()
        history = torch.randint(1, ITEMS, (size, length))
        target = torch.randint(1, ITEMS, (size, length))
        if name == "BERT4Rec":
            target *= torch.rand(size, length) < 0.2
        batch = Batch(size, {"history": history, "target": target})
        times = []
        for step in range(steps + 1):
            begun = time.perf_counter()
            seed_step(1, step, 0, torch.device("cpu"))
            strategy.train_step(batch)
            times.append(time.perf_counter() - begun)
        seconds.append(statistics.median(times[1:]))
    print(json.dumps(seconds))


def main(other: Path, batch_size: int) -> None:
    """Run both in turns and print medians."""
    seen: dict[Path, list[list[float]]] = {ROOT: [], other: []}
    for number in range(ROUNDS):
        for tree in (ROOT, other) if number % 2 else (other, ROOT):
            environment = {**os.environ, "PYTHONPATH": str(tree)}
            command = [sys.executable, __file__, str(batch_size)]
            ran = subprocess.run(
                command, env=environment, cwd="/", stdout=subprocess.PIPE, check=True
            )
            seen[tree].append(json.loads(ran.stdout.splitlines()[-1]))
    print("| model | batch × length | other, ms | this, ms | this / other |")
    print("| --- | --- | --- | --- | --- |")
    cases = [case for case in CASES if case[1] == batch_size]
    for number, (name, size, length, _) in enumerate(cases):
        here, there = (
            statistics.median(run[number] for run in seen[t]) * 1e3 for t in (ROOT, other)
        )
        print(f"| {name} | {size} × {length} | {there:.1f} | {here:.1f} | {here / there:.3f} |")


if __name__ == "__main__":
    size = int(sys.argv[-1])
    main(Path(sys.argv[1]).resolve(), size) if len(sys.argv) > 2 else run(size)
