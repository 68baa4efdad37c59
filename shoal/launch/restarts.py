"""Restarts: a run that failed is brought back from its last checkpoint, without a person.

A new set of processes, servers included, continues with `--resume`; so nothing is in it that the
failure may have spoiled, and the numbers are those of a run that never failed. Where fewer ranks
are allowed (launch.min_nproc), a run that lost one continues without it, and grows again later:
when a checkpoint shows that it makes progress, its ranks are asked to save and to end, and all of
them are started. A rank that evaluates finishes that before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.config.schema import LaunchSection
from shoal.launch.child import grow_file, signal_ranks
from shoal.launch.hosts import LaunchError
from shoal.training.run_folder import RunFolder


class MoreRanks(Exception):
    """The ranks have saved and ended, to make room for more of them."""


@dataclass(frozen=True)
class Growth:
    """When a run with fewer processes is to grow."""

    seconds: float  # after its start
    is_time: Callable[[], bool]  # whether it made progress since then


@contextmanager
def growing(growth: Growth | None, beats: Path) -> Iterator[None]:
    """Context that signals the ranks of a folder's heartbeats when the run is to grow."""
    over = threading.Event()

    def ask(growth: Growth) -> None:
        seconds = growth.seconds
        while not over.wait(seconds):
            if growth.is_time() and not over.is_set():
                with suppress(OSError):  # the launch is over, and its folder gone
                    grow_file(beats).touch()
                    signal_ranks(beats)
                return
            seconds = 0.1

    if growth is not None:
        threading.Thread(target=ask, args=[growth], daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Restarts:
    """How often a run was brought back, and on how many processes it continues."""

    def __init__(self, section: LaunchSection, folder: RunFolder | None):
        self.section, self.folder = section, folder
        self.nproc, self.done = section.nproc, 0

    def again(self, error: LaunchError) -> None:
        """Report a failure and continue; where a rank was lost and fewer may be, with one less."""
        if not error.passing or self.done == self.section.max_restarts:
            if self.done:
                error.args = (f"{error} (restarts before: {self.done})",)
            raise error
        self.done += 1
        if error.of_rank and 0 < self.section.min_nproc < self.nproc:
            self.nproc -= 1
        fewer = f", on {self._ranks}" if self.nproc != self.section.nproc else ""
        source = "" if self.folder is None else f" from {self._where}"  # the first host knows
        text = f"restart {self.done} of {self.section.max_restarts}{source}{fewer}"
        print(f"{error}\n{text}", file=sys.stderr, flush=True)

    @property
    def growth(self) -> Growth | None:
        """When the processes that are lost are to be tried again; None: never, or none is."""
        if self.nproc == self.section.nproc or not self.section.regrow:
            return None
        first = self._newest
        return Growth(self.section.regrow, lambda: self._newest != first)

    def grow(self) -> None:
        """Continue with all processes again."""
        self.nproc = self.section.nproc
        text = f"going on from {self._where} on all {self._ranks} again (launch.regrow)"
        print(text, file=sys.stderr, flush=True)

    @property
    def _newest(self) -> str | None:
        assert self.folder is not None
        names = [path.name for path in self.folder.checkpoints.glob("step-*")]
        return max(names, default=None)

    @property
    def _where(self) -> str:
        newest = self._newest
        return "the beginning" if newest is None else f"step {int(newest[5:])}"

    @property
    def _ranks(self) -> str:
        return "1 process" if self.nproc == 1 else f"{self.nproc} processes"
