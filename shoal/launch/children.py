"""Children: processes of this command that are no ranks, as servers and workers that come and go.

Each leaves its error in a file, so that only this command reports it; Ctrl-C is for this one alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from shoal.launch.child import HANG_TIMEOUT
from shoal.launch.watch import Watch
from shoal.world.liveness import FOLDER, look

RESUME = "what was saved can be continued with --resume"


class Children:
    """Processes that are started, watched, and described where they fail."""

    def __init__(self, scratch: str, hang_timeout: float):
        self.scratch, self._hang_timeout = Path(scratch), hang_timeout
        self._beats = self.scratch / "beats"
        self._beats.mkdir()
        self._processes: list[subprocess.Popen] = []
        self._hangs = self._new_watch()

    def _new_watch(self) -> Watch:
        return Watch(self._hang_timeout, self._beat_files, starting=self._starting)

    def _beat_files(self) -> dict[str, Path]:
        return {one.name: one for one in self._beats.iterdir() if not one.suffix}

    def _starting(self) -> list[int]:
        """Processes that do not beat yet."""
        beats = map(look, self._beat_files().values())
        known = {beat.pid for beat in beats if beat is not None}
        return [one.pid for one in self._processes if one.pid not in known and one.poll() is None]

    def _spawn(
        self, number: int, words: list[str], threads: int, values: dict[str, str] | None = None
    ) -> subprocess.Popen:
        """Start `shoal WORDS`; values: further variables."""
        own = {
            "SHOAL_LAUNCHER": str(os.getpid()),
            FOLDER: str(self._beats),
            HANG_TIMEOUT: str(self._hang_timeout),
            "TORCHELASTIC_ERROR_FILE": str(self._failed(number)),
        }
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **own, **(values or {})}
        command = [sys.executable, "-u", "-m", "shoal", *words]
        return subprocess.Popen(command, env=environment, process_group=0)

    def _failed(self, number: int) -> Path:
        return self.scratch / f"{number}.failed"

    def _describe(self, number: int, who: str, ending: str = RESUME) -> str:
        """One message about a process that failed; who: what it is called."""
        process, failed = self._processes[number], self._failed(number)
        status = process.poll() or 0
        if process.pid in self._hangs.hung:
            return self._hangs.hung[process.pid].tell(who, ending)
        if status < 0:
            cause = f"was killed by signal {-status} ({signal.Signals(-status).name})"
            if status == -signal.SIGKILL:
                cause += "; the system does that when memory runs out"
        else:
            told = "see its output above"
            if failed.exists():
                found = json.loads(failed.read_text())
                told = "".join(found.get("traceback", [])).rstrip() or found["message"]
            cause = f"failed (exit status {status}): {told}"
        return f"{who} {cause}; {ending}"

    def _watch_on(self, number: int) -> None:
        """Continue the watch, which ends when it has found a process that hangs."""
        if self._processes[number].pid in self._hangs.hung:
            self._hangs = self._new_watch()
            self._hangs.start()

    def _end(self, patience: float = 0.0) -> None:
        """End all that still run; patience: seconds for each to end by SIGTERM."""
        self._hangs.close()
        left = [process for process in self._processes if process.poll() is None]
        for process in left:
            process.terminate() if patience else process.kill()
        for process in left:
            try:
                process.wait(patience or None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
