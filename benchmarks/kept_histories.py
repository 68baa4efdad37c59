"""A request with one new event, with and without what is kept of the history before it, on a CPU.

    python benchmarks/kept_histories.py [--lengths 200 2000] [--rounds 20]

HSTU (8 layers, width 64, 2 heads, with times) is trained for some steps on random data and
exported. One person asks for 10 items again and again, each time with one more event. Answered
directly by the artifact, one thread, without HTTP; a history without keeping is computed whole. The
two take turns; printed are medians, and the largest difference of a score.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import shoal
from shoal.serving.artifact.artifact import Artifact

ITEMS = 10_000


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.machine()}, one thread, torch {torch.__version__}")
    print(
        "| history | computed whole, ms | kept, ms | times faster | kept, MB | scores differ by |"
    )
    print("| --- " * 6 + "|")
    with tempfile.TemporaryDirectory(prefix="kept-") as scratch:
        for length in options.lengths:
            artifact = exported(Path(scratch) / str(length), length + options.rounds + 8)
            measure(artifact, length, options.rounds)


def exported(folder: Path, max_len: int) -> Path:
    """An artifact of a model that reads so many items."""
    values = {
        "data.name": "random",
        "data.random": {"users": 4, "items": ITEMS, "interactions": 8_000},
        "data.max_len": max_len,
        "model.n_layers": 8,
        "model.n_heads": 2,
        "train.epochs": 1,
        "train.batch_size": 1,
        "train.eval_every": 0,
        "run.output": str(folder / "run"),
        "run.log_level": "error",
        "run.progress": False,
        "run.trackers": [],
        "run.device": "cpu",
    }
    shoal.run("HSTU", config_dict=values)
    shoal.export(folder / "run", to=folder / "artifact")
    return folder / "artifact"


def measure(folder: Path, length: int, rounds: int) -> None:
    """One row of the table."""
    whole, keeping = Artifact(folder), Artifact(folder)
    kept = keeping.keep_histories(1 << 30)
    assert kept is not None
    random = np.random.default_rng(1)
    numbers = random.integers(1, len(whole.items), length + rounds + 1)
    items = whole.items.values[numbers].tolist()
    times = np.cumsum(random.integers(1, 10**5, length + rounds + 2)).tolist()
    seconds: dict[str, list[float]] = {"whole": [], "kept": []}
    worst = 0.0
    for count in range(length, length + rounds + 1):
        answers = []
        for name, artifact in (("whole", whole), ("kept", keeping)):
            asked = {"history": items[:count], "times": times[: count + 1]}
            begun = time.perf_counter()
            answers.append(artifact.recommend(**asked))
            seconds[name].append(time.perf_counter() - begun)
        assert [item for item, _ in answers[0]] == [item for item, _ in answers[1]]
        worst = max(worst, *(abs(a - b) for (_, a), (_, b) in zip(*answers)))
    first, second = (1e3 * statistics.median(seconds[name][1:]) for name in ("whole", "kept"))
    cells = (length, f"{first:.1f}", f"{second:.1f}", f"{first / second:.1f}")
    print(f"| {' | '.join(map(str, cells))} | {kept.bytes / 1e6:.1f} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    main()
