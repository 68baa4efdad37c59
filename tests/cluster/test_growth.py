"""Nothing grows with the number of steps: memory, files, sockets, threads, shared memory.

Processes of real runs are looked at from outside whenever a checkpoint was written. What they have
in the last fifth of the run is compared with the second fifth: by then all is warm.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_configs import MODELS, write_config
from commands import Command, newest_step, processes, shoal

pytestmark = pytest.mark.slow
STEPS = 20_000
EVERY = 250  # steps between two looks
PATIENCE = 3600.0
# What may come to medians of a process between the two fifths, some 12,000 steps apart.
ALLOWED = {"memory": 2 << 20, "lanes": 4 << 20, "files": 2.0, "threads": 1.0, "shared": 1.0}
SMALL: dict[str, Any] = {
    "train.batch_size": 8,  # 400 steps an epoch
    "train.epochs": STEPS // 400,
    "train.eval_every": 5,
    "train.patience": 1000,
    "checkpoint.every_steps": EVERY,
    "checkpoint.every_epochs": 1000,
}
PAIR = ("--worker_num=2", "--server_num=1")
TWICE = f"--train.epochs={2 * STEPS // 400}"  # where each worker's step takes samples of its own
RUNS = {
    "single": ["train", "--strategy.name=single"],
    "ddp": ["train", "--nproc=2", "--strategy.name=ddp"],
    "sharded": ["train", "--nproc=2", "--strategy.name=sharded"],
    "sharded by gloo": [
        *("train", "--nproc=2", "--strategy.name=sharded", "--launch.shared_memory=false")
    ],
    "ps sync": ["launch", *PAIR, "--strategy.ps.mode=sync"],
    "ps async": ["launch", *PAIR, "--strategy.ps.mode=async", TWICE],
    "ps geo": ["launch", *PAIR, "--strategy.ps.mode=geo", TWICE],
}
Samples = dict[tuple[str, str], dict[int, int]]  # process, what -> step -> how much


@pytest.mark.parametrize("name", RUNS)
def test_nothing_grows(tmp_path: Path, name: str) -> None:
    grown = growth(watched(tmp_path, RUNS[name]))
    print({" ".join(key): found for key, found in grown.items()})
    assert not too_much(grown)


def watched(place: Path, words: list[str]) -> Samples:
    """What the processes of a run had, by step."""
    config = write_config(place / "c.yaml", MODELS["BPR"], SMALL)
    first, *rest = words
    command = shoal(first, config, *rest, "--output", place / "run", cwd=place)
    samples: Samples = defaultdict(dict)
    seen, deadline = 0, time.monotonic() + PATIENCE
    while command.process.poll() is None and time.monotonic() < deadline:
        step = newest_step(place / "run")
        if step > seen:
            seen = step
            for who, pid in members(command).items():
                for what, amount in look(pid).items():
                    samples[who, what][step] = amount
        time.sleep(0.01)
    assert command.wait(1) == 0, command.output
    assert seen >= STEPS - EVERY
    return samples


def members(command: Command) -> dict[str, int]:
    """The processes of a command, by name."""
    found = {"launcher": command.process.pid}
    for pid, environment, parent in processes():
        if parent == command.process.pid:
            rank = environment.get("RANK")
            found["server" if rank is None else f"rank {rank}"] = pid
    return found


def look(pid: int) -> dict[str, int]:
    """What one process has now; nothing where it is gone."""
    place = Path(f"/proc/{pid}")
    with suppress(OSError):
        maps = (place / "maps").read_text().splitlines()
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        return {
            # What processes of a host share is touched bit by bit, and has a size of its own.
            "memory": int(status["RssAnon"].split()[0]) << 10,
            "lanes": int(status["RssShmem"].split()[0]) << 10,
            "files": len(os.listdir(place / "fd")),  # sockets among them
            "threads": len(os.listdir(place / "task")),
            "shared": sum("/dev/shm/" in line or "memfd:" in line for line in maps),
        }
    return {}


def growth(samples: Samples) -> dict[tuple[str, str], float]:
    """How much more there is in the last fifth of the steps than in the second."""
    grown = {}
    for key, by_step in samples.items():
        second = [n for step, n in by_step.items() if STEPS / 5 <= step < 2 * STEPS / 5]
        last = [n for step, n in by_step.items() if step >= 4 * STEPS / 5]
        assert len(second) > 5 and len(last) > 5, f"{key} was looked at too seldom"
        grown[key] = statistics.median(last) - statistics.median(second)
    return grown


def too_much(grown: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    return sorted(key for key, amount in grown.items() if amount > ALLOWED[key[1]])
