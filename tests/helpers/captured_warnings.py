"""What is logged as a warning, whatever an earlier run did to the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening() -> Iterator[list[str]]:
    """Warnings of Shoal, as they come."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("shoal")
    level = log.level
    log.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def forget_log() -> None:
    """Undo what a run in this process did to the log, which would keep lines from `caplog`."""
    for name in ("shoal", "shoal.host"):
        log = logging.getLogger(name)
        log.propagate = True
        log.setLevel(logging.NOTSET)
        for handler in list(log.handlers):
            log.removeHandler(handler)
