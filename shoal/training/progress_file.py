"""RUN/progress.json: the progress of a run, for readers such as `shoal board`.

    time, phase (train, valid, test), epoch, epochs, step, steps     of the epoch or evaluation
    samples_per_second                                               of all ranks
    memory        {"host": bytes, "gpu": bytes or null}              of rank 0, now
    ranks         [{"rank", "host", "pid", "seen", "memory"}]        memory: of this host's
    servers       [{"server", "address", "seen"}]                    strategy ps

Rank 0 replaces it every two seconds, and removes it when the run ends; one that was killed leaves
its last. A disk that does not take it does not end the run.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from shoal.distributed.stop_signals import Agreement
from shoal.distributed.world import World
from shoal.files.durable import no_links
from shoal.training.strategies.base import Strategy

T = TypeVar("T")
EVERY = 2.0  # seconds


class ProgressFile:
    """Written by rank 0 alone; the others' calls do nothing."""

    def __init__(self, folder: Path, strategy: Strategy, agreement: Agreement, samples: int):
        """samples: that all ranks take in a step. All ranks call this together."""
        self.writes = strategy.world.is_main
        self._path, self._strategy, self._agreement = folder / "progress.json", strategy, agreement
        self._samples, self._ranks = samples, _ranks_of(strategy.world)
        self._due = 0.0  # when it is written again
        self._state: dict[str, Any] = {}
        self._last = time.monotonic()  # when the step before was done, or the epoch began
        self._steps, self._seconds = 0, 0.0  # trained since it was written

    def begin_epoch(self) -> None:
        """Steps follow: what was done before them was no training."""
        self._last = time.monotonic()

    def trained(self, epoch: int, epochs: int, step: int, steps: int | None) -> None:
        """Count a step of training, the `step`th of its epoch."""
        if not self.writes:
            return
        now = time.monotonic()
        self._steps, self._seconds = self._steps + 1, self._seconds + now - self._last
        self._last = now
        if now < self._due:
            return
        speed = self._steps * self._samples / max(1e-9, self._seconds)
        self._steps, self._seconds = 0, 0.0
        self._state = {"epoch": epoch, "epochs": epochs, "samples_per_second": speed}
        self._write("train", step, steps)

    def evaluated(self, split: str, steps: Iterable[T], total: int | None) -> Iterator[T]:
        """Yield the steps of an evaluation, and report them as progress."""
        for number, step in enumerate(steps):
            if self.writes and time.monotonic() >= self._due:
                self._write(split, number, total)
            yield step

    def close(self) -> None:
        """The run has ended."""
        if self.writes:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, split: str, step: int, steps: int | None) -> None:
        self._due = time.monotonic() + EVERY
        state = {"time": time.time(), "phase": split, **self._state, "step": step, "steps": steps}
        state |= {"memory": self._memory(), "ranks": self._seen(), "servers": self._servers()}
        hidden = self._path.with_name(".progress.json.new")
        with suppress(OSError):
            with open(hidden, "wb", opener=no_links) as file:
                file.write(json.dumps(state).encode())
            os.replace(hidden, self._path)

    def _memory(self) -> dict[str, int | None]:
        device = self._strategy.world.device
        gpu = torch.cuda.memory_reserved(device) if device.type == "cuda" else None
        return {"host": _resident(os.getpid()), "gpu": gpu}

    def _seen(self) -> list[dict[str, Any]]:
        """Every rank, with when it last agreed with the others."""
        world = self._strategy.world
        return [
            {
                **rank,
                "seen": time.time() if rank["rank"] == world.rank else self._agreement.met,
                "memory": _resident(rank["pid"]) if rank["host"] == world.host else None,
            }
            for rank in self._ranks
        ]

    def _servers(self) -> list[dict[str, Any]]:
        return self._strategy.servers_seen()


def _ranks_of(world: World) -> list[dict[str, Any]]:
    """Host and process of every rank. All ranks call it together."""
    own_bytes = np.frombuffer(f"{os.getpid()} {world.host}".encode(), dtype=np.uint8).copy()
    joined, lengths = world.gather([torch.from_numpy(own_bytes).to(world.device)])
    parts = joined[0].cpu().split([length for (length,) in lengths])
    texts = [part.numpy().tobytes().decode().split(" ", 1) for part in parts]
    return [{"rank": rank, "host": host, "pid": int(pid)} for rank, (pid, host) in enumerate(texts)]


def _resident(pid: int) -> int | None:
    """Bytes of memory that a process of this host has; None where that cannot be read."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
