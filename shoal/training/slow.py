"""Slow: a step that takes long is named in the log, with the place where it is.

A process that computes is not ended: a first step may compile for minutes. But a loop without end
in a model looks the same from outside, and this shows the line that it is in.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shoal.world.liveness import BEAT

T = TypeVar("T")
log = logging.getLogger("shoal")


class SlowSteps:
    """Looks at the steps of this process from a thread: `with SLOW.watched(60): ...`."""

    def __init__(self) -> None:
        self._begun: float | None = None  # when the present step did
        self._thread = 0  # that computes it

    def steps(self, steps: Iterable[T]) -> Iterator[T]:
        """The same; from one to the next is a step."""
        for step in steps:
            self._begun, self._thread = time.monotonic(), threading.get_ident()
            yield step
            self._begun = None

    @contextmanager
    def watched(self, seconds: float) -> Iterator[None]:
        """In here a step of more than so many seconds is logged, and again after twice as many."""
        over = threading.Event()
        self._begun = None
        thread = threading.Thread(target=self._look_on, args=(seconds, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look_on(self, seconds: float, over: threading.Event) -> None:
        known, limit = None, seconds
        while not over.wait(seconds / 8):
            begun = self._begun
            if begun != known:
                known, limit = begun, seconds
            if begun is not None and time.monotonic() - begun >= limit and not BEAT.is_waiting:
                limit *= 2
                log.warning(
                    "a step has computed for %.0f s, and goes on; if it is a loop without end, "
                    "stop the run and correct it. It is here:\n%s",
                    time.monotonic() - begun,
                    _stack_of(self._thread),
                )


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    found = traceback.extract_stack(frame)[::-1][:12] if frame is not None else []
    return "\n".join(f'  File "{one.filename}", line {one.lineno} in {one.name}' for one in found)


SLOW = SlowSteps()
