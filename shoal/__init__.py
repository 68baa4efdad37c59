"""Shoal trains recommenders, distributed."""

from __future__ import annotations

import os
import signal
import threading
import time

STARTED = time.perf_counter()  # for the start-up time that result.json states
__version__ = "0.1.0"

__all__ = [
    "Feature",
    "Interrupted",
    "__version__",
    "evaluate",
    "export",
    "fit",
    "load",
    "recommend",
    "run",
    "run_rank",
]


class Interrupted(BaseException):
    """A signal asked the whole command to end. No Exception: nobody is to handle it on the way."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


if "SHOAL_LAUNCHER" in os.environ and threading.current_thread() is threading.main_thread():
    # A rank or a server: its launcher tells of Ctrl-C. Here, because what follows takes a while.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    # `import shoal` stays quick: torch comes in with the first thing that is used.
    rooms = {"run": "run", "run_rank": "run", "evaluate": "trained", "recommend": "trained"}
    rooms |= {"fit": "fit", "Feature": "fit"}
    rooms |= {"export": "artifact.export", "load": "artifact.loaded"}
    if name in rooms:
        from importlib import import_module

        return getattr(import_module(f"shoal.runs.{rooms[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
