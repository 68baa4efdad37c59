"""Children: processes of this command, as ranks, servers, and workers that join and leave.

Each leaves its error in a file, so that only this command reports it; Ctrl-C is for this one alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import shoal
from shoal.distributed.liveness import FOLDER, look
from shoal.distributed.openmp_waits import waiting_variables
from shoal.kernels.host_memory import describe_kill
from shoal.launch.child import HANG_TIMEOUT, stop_file
from shoal.launch.hosts import LaunchError
from shoal.launch.watch import Watch

RESUME = "what was saved can be continued with --resume"
Culprit = Callable[[], str | None]  # the message about a server that has failed, which ends the run


class Children:
    """Processes that are started, watched, and described where they fail."""

    module = "shoal"  # what they run
    seconds_to_end = 0.0  # by SIGTERM; 0: they are killed

    def __init__(self, scratch: str, hang_timeout: float, count: int):
        self.scratch, self._hang_timeout, self._count = Path(scratch), hang_timeout, count
        self.beats = self.scratch / "beats"
        self.beats.mkdir()
        self._processes: list[subprocess.Popen] = []
        self.hangs = self._new_watch()
        self.sigterm_time: float | None = None  # when SIGTERM came

    def _start(self, number: int) -> subprocess.Popen:
        raise NotImplementedError  # each kind has its own words and variables

    def __enter__(self) -> Self:
        self.hangs.start()
        try:
            for number in range(self._count):
                self._processes.append(self._start(number))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _new_watch(self) -> Watch:
        return Watch(self._hang_timeout, self._beat_files, starting=self._starting)

    def _beat_files(self) -> dict[str, Path]:
        return {one.name: one for one in self.beats.iterdir() if not one.suffix}

    def _starting(self) -> list[int]:
        """Processes that do not beat yet."""
        beats = map(look, self._beat_files().values())
        beating = {beat.pid for beat in beats if beat is not None}
        return [one.pid for one in self._processes if one.pid not in beating and one.poll() is None]

    def _spawn(
        self, number: int, words: list[str], threads: int, values: dict[str, str] | None = None
    ) -> subprocess.Popen:
        """Start `python -m MODULE WORDS`; values: further variables."""
        variables = {
            "SHOAL_LAUNCHER": str(os.getpid()),
            FOLDER: str(self.beats),
            HANG_TIMEOUT: str(self._hang_timeout),
            "TORCHELASTIC_ERROR_FILE": str(self._failed(number)),
        }
        environment = {
            "OMP_NUM_THREADS": str(threads),
            **waiting_variables(os.environ),
            **os.environ,
            **variables,
            **(values or {}),
        }
        command = [sys.executable, "-u", "-m", self.module, *words]
        return subprocess.Popen(command, env=environment, process_group=0)

    def _statuses(self) -> list[int | None]:
        return [process.poll() for process in self._processes]

    # ---- while they run -------------------------------------------------------------------------

    @contextmanager
    def _handling_sigterm(self, culprit: Culprit) -> Iterator[None]:
        """While this is open, SIGTERM makes all processes save together and end."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.sigterm_time is not None or culprit() is not None:
                raise shoal.Interrupted(number)
            self.sigterm_time = time.monotonic()
            stop_file(self.beats).touch()
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

    def _pause(self, culprit: Culprit, grace: float) -> None:
        """Look again in a moment, unless a server failed or the time to save is over."""
        failed = culprit()
        if failed is not None:
            raise LaunchError(failed, passing=True)
        # Some end at the last moment.
        if self.sigterm_time is not None and time.monotonic() - self.sigterm_time > grace + 2.0:
            raise shoal.Interrupted(signal.SIGTERM)
        time.sleep(0.1)

    # ---- where one fails ------------------------------------------------------------------------

    def _failed(self, number: int) -> Path:
        return self.scratch / f"{number}.failed"

    def _read_report(self, number: int) -> dict[str, Any]:
        """Read the report that a process wrote about its failure."""
        failed = self._failed(number)
        return json.loads(failed.read_text()) if failed.exists() else {}

    def _describe(self, number: int, who: str, ending: str = RESUME) -> str:
        """One message about a process that failed; who: what it is called."""
        process, report = self._processes[number], self._read_report(number)
        status = process.poll() or 0
        if process.pid in self.hangs.hung:
            return self.hangs.hung[process.pid].message(who, ending)
        if status < 0:
            cause = f"was {describe_kill(-status)}"
        else:
            text = "".join(report.get("traceback", [])).rstrip() or report.get("message")
            cause = f"failed (exit status {status}): {text or 'see its output above'}"
        return f"{who} {cause}; {ending}" if ending else f"{who} {cause}"

    def _watch_on(self, number: int) -> None:
        """Continue the watch, which ends when it has found a process that hangs."""
        if self._processes[number].pid in self.hangs.hung:
            self.hangs = self._new_watch()
            self.hangs.start()

    def _end(self) -> None:
        """End all that still run."""
        self.hangs.close()
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate() if self.seconds_to_end else process.kill()
        for process in running:
            try:
                process.wait(self.seconds_to_end or None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
