"""How a command starts: torch and the rooms that it needs come in, without a look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def begin() -> None:
    """The words of the command are parsed: from here on garbage is looked for, as ever."""
    gc.freeze()
    gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """What is imported stays. The collector would walk through all of it again and again."""
    gc.disable()
    try:
        yield
    finally:
        begin()
