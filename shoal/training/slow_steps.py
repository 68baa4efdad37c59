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

from shoal.distributed.liveness import BEAT

T = TypeVar("T")
log = logging.getLogger("shoal")


class SlowSteps:
    """Looks at the steps of this process from a thread: `with SLOW.watched(60): ...`."""

    def __init__(self) -> None:
        self._begun: float | None = None  # when the present step began
        self._thread = 0  # the thread that computes it

    def steps(self, steps: Iterable[T]) -> Iterator[T]:
        """Yield the items, and time each step: from one item to the next."""
        for step in steps:
            self._begun, self._thread = time.monotonic(), threading.get_ident()
            yield step
            self._begun = None

    @contextmanager
    def watched(self, seconds: float) -> Iterator[None]:
        """Context that logs a step of more than so many seconds, and again after twice as many."""
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
        last_begun, limit = None, seconds
        while not over.wait(seconds / 8):
            step_start = self._begun
            if step_start != last_begun:
                last_begun, limit = step_start, seconds
            if (
                step_start is not None
                and time.monotonic() - step_start >= limit
                and not BEAT.is_waiting
            ):
                limit *= 2
                log.warning(
                    "a step has computed for %.0f s, and goes on: the machine is busy, the model "
                    "large, or a loop has no end. It is in %s",
                    time.monotonic() - step_start,
                    _stack_of(self._thread),
                )


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame)[::-1][:6] if frame is not None else []
    return ", called by ".join(f"{one.name} ({one.filename}:{one.lineno})" for one in stack)


SLOW = SlowSteps()
