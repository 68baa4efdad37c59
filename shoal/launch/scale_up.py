"""Growing: a run that lost a process and goes on with fewer gets all of them back.

Some time after the loss, when a checkpoint shows that the run gets on, its ranks are asked to save
and to end; the launcher then starts as many as there were at first. Nobody is in a hurry: a rank
that evaluates finishes that before, and a run that ends meanwhile has ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.world.liveness import look


class MoreRanks(Exception):
    """The ranks have saved and ended, to make room for more of them."""


@dataclass(frozen=True)
class Growth:
    """When a run with fewer processes is to grow."""

    seconds: float  # after its start
    is_time: Callable[[], bool]  # whether it got on since then


class Growing:
    """Asks the ranks of one launch, whose beats are in a folder: `with Growing(growth, beats)`."""

    def __init__(self, growth: Growth | None, beats: Path):
        self._growth, self._beats = growth, beats
        self._over = threading.Event()

    @property
    def asked(self) -> bool:
        """Whether the ranks were asked."""
        return grow_file(self._beats).exists()

    def __enter__(self) -> Growing:
        if self._growth is not None:
            threading.Thread(target=self._ask, args=[self._growth], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _ask(self, growth: Growth) -> None:
        if self._over.wait(growth.seconds):
            return
        while not growth.is_time():
            if self._over.wait(0.1):
                return
        if self._over.is_set():
            return
        with suppress(OSError):  # the launch is over, and its folder gone
            grow_file(self._beats).touch()
            tell_ranks(self._beats)


def tell_ranks(beats: Path) -> list[int]:
    """Send SIGTERM to the ranks of a launch; their process numbers."""
    found = [look(file) for file in beats.iterdir() if not file.suffix]
    ranks = [beat.pid for beat in found if beat is not None]
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return ranks


def grow_file(beats: Path) -> Path:
    """What is there, beside the beats, when SIGTERM means: save, there will be more ranks."""
    return beats.parent / "grow"
