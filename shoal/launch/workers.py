"""Workers that join and leave: start those of this host, and report lost ones; the run continues.

No worker knows another, so none is a rank: each is a process by itself that the servers lend
batches to. The run is over when the servers say so; it fails when none of its workers is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import shoal
from shoal.config.schema import LaunchSection
from shoal.distributed.rank_variables import rank_variables
from shoal.launch.children import Children, Culprit
from shoal.launch.hosts import LaunchError


class Workers(Children):
    """The workers of this host: `with Workers(words, section, scratch) as workers: ...`."""

    def __init__(self, words: list[str], section: LaunchSection, scratch: str):
        super().__init__(scratch, section.hang_timeout, section.nproc)
        self.words, self.section = words, section
        self.lost: list[str] = []  # messages about those that failed
        self._ended: set[int] = set()  # numbers of those that have ended

    def wait(self, culprit: Culprit) -> None:
        """Until none is left; LaunchError where all of them failed by themselves."""
        with self._handling_sigterm(culprit):
            while len(self._ended) < len(self._processes):
                self._pause(culprit, self.section.grace)
                for number, status in enumerate(self._statuses()):
                    if status is not None and number not in self._ended:
                        self._ended.add(number)
                        self._report(number)
        if self.sigterm_time is not None:
            raise shoal.Interrupted(signal.SIGTERM)
        if all((status or 0) > 0 for status in self._statuses()):
            raise LaunchError(f"all workers of this command failed: {self.lost[0]}")

    @property
    def any_ended_well(self) -> bool:
        """Whether any worker left, or saw the end of the run."""
        return 0 in self._statuses()

    def _start(self, number: int) -> subprocess.Popen:
        # Of a process that is alone in its world, and one of several on its host.
        section = self.section
        values = rank_variables(
            section.group_offset + number, 1, number, self._count, section.ip, section.port
        )
        threads = max(1, (os.cpu_count() or 1) // self._count)
        return self._spawn(number, self.words, threads, values)

    def _report(self, number: int) -> None:
        """Name a worker that was lost, at once."""
        process, num_left = self._processes[number], len(self._processes) - len(self._ended)
        if not process.poll():
            return
        ending = f"{num_left} of this command go on" if num_left else "none of this command is left"
        worker_text = (
            f"worker process {self.section.group_offset + number} on host {socket.gethostname()}"
        )
        self.lost.append(self._describe(number, f"{worker_text} (pid {process.pid})", ending))
        print(self.lost[-1], file=sys.stderr, flush=True)
        self._watch_on(number)
