"""Work done ahead in threads, its results in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """work(item) of every item, in order, made by `threads` threads before it is asked for.

    One more thread walks over `items`. When the caller stops early, so does everything here.
    """
    waiting: Queue[Future[R] | BaseException | None] = Queue(2 * threads)
    stop = threading.Event()

    def put(entry: Future[R] | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                waiting.put(entry, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def feed() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                if not put(pool.submit(work, item)):
                    return
            put(None)
        except BaseException as error:  # shown where the results are taken
            put(error)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    pool = ThreadPoolExecutor(threads, "shoal-parse")
    feeder = threading.Thread(target=feed, name="shoal-read", daemon=True)
    feeder.start()
    try:
        while (entry := waiting.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry.result()
    finally:
        stop.set()
        feeder.join(2.0)  # not for ever: it may wait for a program that hangs
        pool.shutdown(wait=True, cancel_futures=True)
