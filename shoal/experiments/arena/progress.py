"""The lines that an arena prints while it runs: one for each run that has ended."""

import time
from collections.abc import Callable

from shoal.experiments.report.run_page import time_text


class ArenaProgress:
    """Counts the runs of one call of an arena."""

    def __init__(self, planned: int, finished: int, report: Callable[[str], None]):
        """planned: runs in all; finished: those that need not be trained any more."""
        self._planned = planned
        self._ended = finished
        self._ended_here = 0
        self._report = report
        self._began = time.monotonic()

    def begin(self, place: str, jobs: int) -> None:
        """Report how many runs there are to train."""
        left = self._planned - self._ended
        at_once = f", {jobs} at once" if jobs > 1 else ""
        if left:
            self._report(f"{place}: {left} of {self._planned} runs to train{at_once}")
        else:
            self._report(f"{place}: all {self._planned} runs are finished")

    def report_run(self, line: str) -> None:
        """Report a run that has ended, with what is left."""
        self._ended += 1
        self._ended_here += 1
        left = self._planned - self._ended
        seconds = left * (time.monotonic() - self._began) / self._ended_here
        rest = f"{left} left, about {time_text(seconds)}" if left else "none left"
        self._report(f"[{self._ended}/{self._planned}] {line}; {rest}")
