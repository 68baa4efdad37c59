"""A process of a service as its parent sees it, and the place that it has among the others."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

STABLE_SECONDS = 60.0  # a process that ends sooner has ended soon after its start
LONGEST_PAUSE = 30.0  # before a process that ends again and again is started once more


@dataclass
class Child:
    """A process, as its parent sees it."""

    number: int
    pid: int
    control: socket.socket
    link: socket.socket  # of its copies of files
    state: str = "loading"  # then ready, listening
    lines: bytes = b""
    document: dict[str, Any] = field(default_factory=dict)  # what it told last
    is_asked: bool = False
    born: float = field(default_factory=time.monotonic)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; one to a process that has just ended is lost."""
        with suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")


@dataclass
class Spread:
    """What a process has written, and the processes (pids) that have not read it yet."""

    number: int
    waits: set[int]


@dataclass
class Place:
    """One of the processes that there are to be: how often it ended, and when it is started."""

    ends: int = 0  # in a row, each soon after the start
    start: float | None = 0.0  # when; None: it runs

    def note_end(self, child: Child) -> None:
        """The process that was here has ended: another starts at once, then after longer and longer
        pauses.
        """
        now = time.monotonic()
        self.ends = self.ends + 1 if now < child.born + STABLE_SECONDS else 1
        pause = 0.0 if self.ends == 1 else min(LONGEST_PAUSE, 0.5 * 2**self.ends)
        self.start = now + pause
