"""`Fitted.recommend` of many users: all of them at once, and one after the other.

    python benchmarks/recommend.py [--models BPR SASRec EASE] [--threads 2] [--rounds 20]

Synthetic data of ml-100k's size (943 users, 1,682 items, 100,000 interactions), one epoch,
the best 10 items of every user without what the user took, ids in and out as Python objects.
Printed are medians over rounds: users per second by the clock, and per second of CPU time, which
other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch

import shoal
from shoal.runs.fit import Fitted

SETTINGS = {
    "run.progress": False,
    "run.trackers": [],
    "run.log_level": "warning",
    "train.epochs": 1,
    "train.eval_every": 0,
}


def main() -> None:
    """Measure and print the table."""
    options = command_line()
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print("\n| model | how | users/s | users per CPU second |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            output = {"run.output": f"{folder}/{model}"}
            result = shoal.run(model, "synthetic", None, {**SETTINGS, **output})
            torch.set_num_threads(options.threads)
            measure(model, Fitted(result["folder"]), options.rounds)


def measure(model: str, fitted: Fitted, rounds: int) -> None:
    """Print the lines of one model."""
    users = [str(k) for k in range(1, 944)]
    some = users[:50]
    hows: dict[str, tuple[int, Callable[[], object]]] = {
        "all at once": (len(users), lambda: fitted.recommend(users)),
        "one by one": (len(some), lambda: [fitted.recommend(one) for one in some]),
    }
    for how, (count, work) in hows.items():
        work()
        wall, cpu = [], []
        for _ in range(rounds):
            begun, worked = time.perf_counter(), time.process_time()
            work()
            wall.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - worked)
        rates = [count / statistics.median(taken) for taken in (wall, cpu)]
        print(f"| {model} | {how} | {rates[0]:,.0f} | {rates[1]:,.0f} |")


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["BPR", "SASRec", "EASE"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
