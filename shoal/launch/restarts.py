"""Restarts: a run that failed is brought back from its last checkpoint, without a person.

A new set of processes, servers included, goes on with `--resume`; so nothing is in it that the
failure may have spoiled, and the numbers are those of a run that never failed.
"""

from __future__ import annotations

import sys

from shoal.config.schema import LaunchSection
from shoal.launch.hosts import LaunchError
from shoal.training.run_folder import RunFolder


class Restarts:
    """How often a run was brought back, and on how many processes it goes on."""

    def __init__(self, section: LaunchSection, folder: RunFolder | None):
        self.section, self.folder = section, folder
        self.nproc, self.done = section.nproc, 0
        self._last: str | None = None  # the newest checkpoint at the failure before

    def again(self, error: LaunchError) -> None:
        """Tell of a failure and go on, with fewer processes if it must be; or give up."""
        if not error.passing or self.done == self.section.max_restarts:
            if self.done:
                error.args = (f"{error} (restarts before: {self.done})",)
            raise error
        assert self.folder is not None
        self.done += 1
        names = [path.name for path in self.folder.checkpoints.glob("step-*")]
        newest = max(names, default=None)
        if self.done > 1 and newest == self._last and 0 < self.section.min_nproc < self.nproc:
            self.nproc -= 1
        self._last = newest
        where = "the beginning" if newest is None else f"step {int(newest[5:])}"
        ranks = "1 process" if self.nproc == 1 else f"{self.nproc} processes"
        fewer = f", on {ranks}" if self.nproc != self.section.nproc else ""
        text = f"restart {self.done} of {self.section.max_restarts} from {where}{fewer}"
        print(f"{error}\n{text}", file=sys.stderr, flush=True)
