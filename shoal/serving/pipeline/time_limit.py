"""Time limit of a stage: who asks waits no longer, whatever the stage does."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, TypeVar

Result = TypeVar("Result")
THREADS = max(4, 2 * (os.cpu_count() or 1))  # of one stage


class LateStage(Exception):
    """A stage was not done in time."""


class TimeLimit:
    """Calls that must be done within some seconds, in a few threads.

    A call that is late is left behind and keeps its thread until it ends. When all threads are kept
    so, further calls fail at once: late ones cannot pile up. Seconds are those of a clock that is
    never set.

    >>> TimeLimit(seconds=30.0).call(lambda: 5)
    5
    """

    def __init__(self, seconds: float, threads: int = THREADS):
        self.seconds = seconds
        self.threads = threads
        self._free = BoundedSemaphore(threads)
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._started = 0
        self._lock = Lock()

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of work; LateStage where it is not there in time."""
        if not self._free.acquire(blocking=False):
            raise LateStage(f"its {self.threads} threads are busy with calls that are late")
        future: Future[Result] = Future()
        self._calls.put((work, future))
        self._start_thread()
        try:
            return future.result(self.seconds)
        except TimeoutError:
            if future.done():  # the work itself has raised it
                raise
            raise LateStage(f"it was not done within {1000 * self.seconds:g} ms") from None

    def _start_thread(self) -> None:
        """Start one of the threads, until there are all. The process does not wait for their end:
        what is late may never be done."""
        with self._lock:
            if self._started < self.threads:
                self._started += 1
                Thread(target=self._run, name="stage with a time limit", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, future = self._calls.get()
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            # Free before the result is out, so that who has it can call at once.
            self._free.release()
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del work, future, result, error  # nothing is kept while it waits
