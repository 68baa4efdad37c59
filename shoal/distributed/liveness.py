"""Beat: what this process does, in a file that its launcher looks at.

    counter   how many waits have begun and ended
    since     when the last one did, by the clock that all processes of a host share
    waiting   whether it waits for others now, and for what
    bounded   whether that wait has its own limit, with a message that names more

A process that neither waits nor works is one that hangs (shoal.launch.watch).
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_HEAD = struct.Struct("<QQd??B")  # pid, counter, since, waiting, bounded, length of the text
SIZE = 256
FOLDER = "SHOAL_BEATS"  # the variable that names the folder of the beats


@dataclass(frozen=True)
class SeenBeat:
    """A beat, as it was read."""

    pid: int
    counter: int
    since: float
    waiting: bool
    bounded: bool
    what: str


class Beat:
    """The heartbeat of this process; without a file it does nothing."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._counter = 0
        self._waiting = self._bounded = False
        self._what, self._text = "", b""

    def open(self, path: Path) -> None:
        """Write heartbeats to a file from now on; SIGUSR1 writes the stack next to it."""
        with open(path, "w+b") as file:
            file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._write(False, False, "")
        stack = open(stack_of(path), "w")  # noqa: SIM115 (for as long as the process lives)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)

    @property
    def is_waiting(self) -> bool:
        """Whether this process waits for others now; False without a heartbeat file."""
        return self._waiting

    @contextmanager
    def waiting(self, what: str, bounded: bool = False) -> Iterator[None]:
        """Context of a wait for others; bounded: the wait has a time limit."""
        self.begin_waiting(what, bounded)
        try:
            yield
        finally:
            self.end_waiting()

    def begin_waiting(self, what: str, bounded: bool = False) -> None:
        """From now on others are waited for."""
        if self._memory is not None:
            self._write(True, bounded, what)

    def end_waiting(self) -> None:
        """They have come, or never will."""
        if self._memory is not None:
            self._write(False, False, self._what)

    def tick(self) -> None:
        """Something came, though not yet what is waited for."""
        if self._memory is not None:
            self._write(self._waiting, self._bounded, self._what)

    def _write(self, waiting: bool, bounded: bool, what: str) -> None:
        assert self._memory is not None
        self._counter += 1
        if what != self._what or self._counter == 1:
            self._text = what.encode()[:200]
            self._memory[_HEAD.size : _HEAD.size + len(self._text)] = self._text
        self._waiting, self._bounded, self._what = waiting, bounded, what
        now, length = time.monotonic(), len(self._text)
        _HEAD.pack_into(self._memory, 0, os.getpid(), self._counter, now, waiting, bounded, length)


BEAT = Beat()


def stack_of(path: Path) -> Path:
    """The file where the process of a heartbeat writes its stack."""
    return path.with_suffix(".stack")


def look(path: Path) -> SeenBeat | None:
    """The beat in a file; None where there is none yet."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < SIZE:
        return None
    pid, counter, since, waiting, bounded, length = _HEAD.unpack_from(data)
    if not pid:
        return None
    text = data[_HEAD.size : _HEAD.size + length].decode(errors="replace")
    return SeenBeat(pid, counter, since, waiting, bounded, text)
