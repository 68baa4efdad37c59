"""Workers that come and go: start this host's, and report those that are lost; the run continues.

No worker knows another, so none is a rank: each is a process by itself that the servers lend
batches to. The run is over when the servers say so; it fails when none of its workers is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import shoal
from shoal.config.schema import LaunchSection
from shoal.launch.child import stop_file
from shoal.launch.children import Children
from shoal.launch.hosts import LaunchError
from shoal.world.variables import variables_of_one_alone


class Workers(Children):
    """The workers of this host: `with Workers(words, section, scratch) as workers: ...`."""

    def __init__(self, words: list[str], section: LaunchSection, scratch: str):
        super().__init__(scratch, section.hang_timeout)
        self.words, self.section = words, section
        self.lost: list[str] = []  # messages about those that failed
        self._known: set[int] = set()  # numbers of those that have ended
        self._told_to_stop: float | None = None

    def __enter__(self) -> Workers:
        try:
            for number in range(self.section.nproc):
                self._processes.append(self._start(number))
        except BaseException:
            self._end()
            raise
        self._hangs.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait(self, culprit: Callable[[], str | None]) -> None:
        """Until none is left; LaunchError where all of them failed by themselves.

        culprit: the message about a server that has failed, which ends the run.
        """
        with self._heeding():
            while len(self._known) < len(self._processes):
                time.sleep(0.1)
                for number, process in enumerate(self._processes):
                    if process.poll() is not None and number not in self._known:
                        self._known.add(number)
                        self._report(number)
                failed = culprit()
                if failed is not None:
                    raise LaunchError(failed, passing=True)
                self._look_at_time()
        if self._told_to_stop is not None:
            raise shoal.Interrupted(signal.SIGTERM)
        if all((process.poll() or 0) > 0 for process in self._processes):
            raise LaunchError(f"all workers of this command failed: {self.lost[0]}")

    @property
    def any_ended_well(self) -> bool:
        """Whether one of them left, or saw the end of the run."""
        return any(process.poll() == 0 for process in self._processes)

    def _start(self, number: int) -> subprocess.Popen:
        section = self.section
        values = variables_of_one_alone(section.group_offset + number, number, section.nproc)
        threads = max(1, (os.cpu_count() or 1) // section.nproc)
        return self._spawn(number, self.words, threads, values)

    def _report(self, number: int) -> None:
        """Name a worker that was lost, at once."""
        process, left = self._processes[number], len(self._processes) - len(self._known)
        if not process.poll():
            return
        ending = f"{left} of this command go on" if left else "none of this command is left"
        who = f"worker process {self.section.group_offset + number} on host {socket.gethostname()}"
        self.lost.append(self._describe(number, f"{who} (pid {process.pid})", ending))
        print(self.lost[-1], file=sys.stderr, flush=True)
        self._watch_on(number)

    # ---- SIGTERM ---------------------------------------------------------------------------------

    @contextmanager
    def _heeding(self) -> Iterator[None]:
        """SIGTERM: let the workers save, all together, and end."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._told_to_stop is not None:
                raise shoal.Interrupted(number)
            self._told_to_stop = time.monotonic()
            stop_file(self._beats).touch()
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _look_at_time(self) -> None:
        begun = self._told_to_stop
        most = self.section.grace + 2.0  # for workers that end at the last moment
        if begun is not None and time.monotonic() - begun > most:
            raise shoal.Interrupted(signal.SIGTERM)
