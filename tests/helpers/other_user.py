"""Another user of this host: what a function gives when that one calls it."""

import encodings.idna  # noqa: F401 (sockets import it, and another user may not read it)
import multiprocessing as mp
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

NO_IDS = 65534
# No other user can be had without it; as root all of these run.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's place needs root")


def as_nobody(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives when another user of this host calls it."""
    context = mp.get_context("fork")
    mine, theirs = context.Pipe()

    def call() -> None:
        os.setgroups([])
        os.setgid(NO_IDS)
        os.setuid(NO_IDS)
        theirs.send(function(*arguments))
        os._exit(0)

    child = context.Process(target=call)
    child.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        child.join()


def reached(paths: list[Path]) -> list[str]:
    """Which of these files, folders and sockets can be listed, read, written or spoken to."""
    got = []
    for path in paths:
        with suppress(OSError):
            os.listdir(path)
            got.append(f"listed {path}")
        for mode in (os.O_RDONLY, os.O_WRONLY):
            with suppress(OSError):
                os.close(os.open(path, mode | os.O_NONBLOCK))
                got.append(f"opened {path}")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.connect(str(path))
            got.append(f"connected to {path}")
    return got
