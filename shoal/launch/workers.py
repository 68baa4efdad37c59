"""Workers that come and go: start this host's, and tell of those that are lost; the run goes on.

No worker knows another, so none is a rank: each is a process by itself that the servers lend
batches to. The run is over when the servers say so; it fails when none of its workers is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import shoal
from shoal.config.schema import LaunchSection
from shoal.launch.child import HANG_TIMEOUT, stop_file
from shoal.launch.hosts import LaunchError
from shoal.launch.watch import Watch
from shoal.world.liveness import FOLDER
from shoal.world.variables import variables_of_one_alone

RESUME = "what was saved can be continued with --resume"


class Workers:
    """The workers of this host: `with Workers(words, section, scratch) as workers: ...`."""

    def __init__(self, words: list[str], section: LaunchSection, scratch: str):
        self.words, self.section, self.scratch = words, section, Path(scratch)
        self.lost: list[str] = []  # what was told of those that failed
        self._beats = self.scratch / "beats"
        self._processes: list[subprocess.Popen] = []
        self._known: set[int] = set()  # numbers of those that have ended
        self._told_to_stop: float | None = None
        self._hangs = self._new_watch()

    def __enter__(self) -> Workers:
        self._beats.mkdir()
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

        culprit: what is told of a server that has failed, which ends the run.
        """
        with self._heeding():
            while len(self._known) < len(self._processes):
                time.sleep(0.1)
                for number, process in enumerate(self._processes):
                    if process.poll() is not None and number not in self._known:
                        self._known.add(number)
                        self._tell(number)
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
        values = {
            "SHOAL_LAUNCHER": str(os.getpid()),
            FOLDER: str(self._beats),
            HANG_TIMEOUT: str(section.hang_timeout),
            # It leaves its error there, so that only we tell of it.
            "TORCHELASTIC_ERROR_FILE": str(self._failed(number)),
        }
        values |= variables_of_one_alone(section.group_offset + number, number, section.nproc)
        threads = str(max(1, (os.cpu_count() or 1) // section.nproc))
        environment = {"OMP_NUM_THREADS": threads, **os.environ, **values}
        command = [sys.executable, "-u", "-m", "shoal", *self.words]
        return subprocess.Popen(command, env=environment, process_group=0)  # Ctrl-C is for us alone

    def _failed(self, number: int) -> Path:
        return self.scratch / f"worker-{number}.failed"

    def _new_watch(self) -> Watch:
        return Watch(self.section.hang_timeout, self._beat_files)

    def _beat_files(self) -> dict[str, Path]:
        return {one.name: one for one in self._beats.iterdir() if not one.suffix}

    def _tell(self, number: int) -> None:
        """Name a worker that was lost, at once."""
        process, failed = self._processes[number], self._failed(number)
        status, left = process.poll() or 0, len(self._processes) - len(self._known)
        ending = f"{left} of this command go on" if left else "none of this command is left"
        host = socket.gethostname()
        who = f"worker process {self.section.group_offset + number} on host {host} "
        who += f"(pid {process.pid})"
        hang = self._hangs.hung.get(process.pid)
        if hang is not None:
            text = hang.tell(who, ending)
            self._hangs = self._new_watch()  # with that the watch has ended
            self._hangs.start()
        elif status < 0:
            name = signal.Signals(-status).name
            why = "; the system does that when memory runs out" * (status == -signal.SIGKILL)
            text = f"{who} was killed by signal {-status} ({name}){why}; {ending}"
        elif status:
            told = "see its output above"
            if failed.exists():
                found = json.loads(failed.read_text())
                told = "".join(found["traceback"]).rstrip() or found["message"]
            text = f"{who} failed (exit status {status}): {told}; {ending}"
        else:
            return
        self.lost.append(text)
        print(text, file=sys.stderr, flush=True)

    # ---- being told to stop ---------------------------------------------------------------------

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

    def _end(self) -> None:
        self._hangs.close()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
