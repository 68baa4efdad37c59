"""WorkerPool: processes that train several runs at once, and are stopped when not needed.

A run is a folder with its config.yaml; what came of it is read from the files it writes.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.distributed.child_module import command_of
from shoal.experiments.tuning.worker import OUTPUT
from shoal.files.durable import no_links
from shoal.training.run_folder import RunFolder

POLL_SECONDS = 0.05
SECONDS_TO_END = 30.0  # for a run to save and stop


class ForkedRuns:
    """Runs of this host: forks of one process, which has imported everything once."""

    def __init__(self, threads: int):
        """threads: of a run, unless its config or the environment differ."""
        self._threads = threads
        self._pid: int | None = None  # of the process that trains
        self._read = b""
        self._signal: int | None = None  # to be sent as soon as there is that process
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command_of("shoal.experiments.tuning.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"OMP_NUM_THREADS": str(self._threads), **os.environ},
            start_new_session=True,  # Ctrl-C is for the command alone, which stops its runs
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def start(self, folder: Path) -> None:
        """Begin to train in a folder."""
        if self._process.poll() is not None:  # it was killed, for its memory perhaps
            self._process = self._begin()
        assert self._process.stdin is not None
        self._pid, self._read, self._signal = None, b"", None
        self._process.stdin.write(json.dumps(str(folder)).encode() + b"\n")
        self._process.stdin.flush()

    def poll(self) -> int | None:
        """The exit status of the run; None while it trains."""
        assert self._process.stdout is not None
        self._read += self._process.stdout.read() or b""
        lines = self._read.split(b"\n")
        if len(lines) > 1:
            self._pid = int(lines[0])
        if len(lines) > 2:
            self._pid = None
            return int(lines[1])
        if self._signal is not None and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, self._signal)
            self._signal = None
        return self._process.poll()  # a worker that ended took its run with it

    def signal(self, number: int) -> None:
        """Send the run a signal."""
        self._signal = number
        self.poll()

    def close(self) -> None:
        """End the worker, and with it whatever still trains."""
        self._process.kill()
        self._process.wait()


class LaunchedRuns:
    """Runs by a command: the words of a template and `shoal train` behind them."""

    def __init__(self, template: str):
        self._words = shlex.split(template)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Begin to train in a folder."""
        train = [sys.executable, "-m", "shoal", "train", "--resume", str(folder), "--trust"]
        command = [*self._words, *train]
        with open(folder / OUTPUT, "ab", opener=no_links) as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ValueError(f"--launch: cannot start {command[0]}: {error.strerror}") from None

    def poll(self) -> int | None:
        """The exit status of the run; None while it trains."""
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the command, whose part it is to pass it on."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class WorkerPool:
    """Trains `jobs` runs at once, until there are no more or the time is over.

    >>> with WorkerPool(jobs=2) as pool:                                          # doctest: +SKIP
    ...     pool.train(iter(folders), follow=is_hopeless, ended=record)
    """

    def __init__(self, jobs: int, launch: str | None = None, minutes: float | None = None):
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        self._free: list[ForkedRuns | LaunchedRuns] = [
            ForkedRuns(threads) if launch is None else LaunchedRuns(launch) for _ in range(jobs)
        ]
        self._all = list(self._free)
        self._busy: dict[Path, ForkedRuns | LaunchedRuns] = {}
        self._stopped: set[Path] = set()
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        """Let runs that still train save and stop, and end all workers, also after an error."""
        try:
            self._stop_all()
        finally:
            for worker in self._all:
                worker.close()

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def train(
        self,
        folders: Iterator[Path],
        ended: Callable[[Path, int], None],
        follow: Callable[[Path], bool] = lambda folder: False,
    ) -> bool:
        """Train in every folder; False where the time was over before.

        The next folder is taken from `folders` when a process is free. follow: called again and
        again while a run trains; True stops it.
        """
        has_more = True
        while has_more or self._busy:
            if self.is_over:
                self._stop_all()
                return False
            while has_more and self._free:
                folder = next(folders, None)
                if folder is None:
                    has_more = False
                else:
                    self._start(folder)
            for folder in list(self._busy):
                status = self._busy[folder].poll()
                if status is not None:
                    self._free.append(self._busy.pop(folder))
                    self._stopped.discard(folder)
                    ended(folder, status)
                elif folder not in self._stopped and follow(folder):
                    self._stopped.add(folder)
                    self._busy[folder].signal(signal.SIGTERM)
            time.sleep(POLL_SECONDS)
        return True

    def _start(self, folder: Path) -> None:
        until = time.monotonic() + 10.0  # one that was killed with its command may still be ending
        while RunFolder(folder).is_in_use:
            if time.monotonic() > until:
                raise ValueError(f"{folder} is in use by another process; wait for it, or stop it")
            time.sleep(POLL_SECONDS)
        self._free[0].start(folder)
        self._busy[folder] = self._free.pop(0)

    def _stop_all(self) -> None:
        """Let all runs save and stop; the next call continues them."""
        for worker in self._busy.values():
            worker.signal(signal.SIGTERM)
        until = time.monotonic() + SECONDS_TO_END
        while self._busy and time.monotonic() < until:
            for folder in [f for f, worker in self._busy.items() if worker.poll() is not None]:
                self._free.append(self._busy.pop(folder))
            time.sleep(POLL_SECONDS)
