"""Meeting: where the processes of a run find each other, and whom it lets in.

One process holds the meeting; all others open a channel to it (channel.py), and what they say there
are set, get, wait, add and the like of bytes by name. Nothing that travels is unpickled or
evaluated, and whoever has not proved to belong here is cut off before a single name is read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from contextlib import suppress

from shoal.world.channel import LARGEST, Place, receive, send
from shoal.world.door import Door
from shoal.world.hosts import WorldError, which_it_has

GUESTS = 8192  # connections at a time that have proved to belong here
ROOM = 256 * LARGEST  # bytes of all names and values


class Meeting:
    """What is said at a meeting, held by a thread of this process: `Meeting(place).close()`."""

    def __init__(self, place: Place, secret: bytes = b""):
        self.place = place
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._news = threading.Condition()
        self._guests = threading.Semaphore(GUESTS)
        try:
            self._door = Door(place, secret, self._serve)
        except OSError as error:
            raise WorldError(_why_not(place, error)) from error

    def close(self) -> None:
        """Let nobody in any more."""
        self._door.close()
        if self.place.path:
            with suppress(OSError):
                os.unlink(self.place.path)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, ValueError, struct.error):
            if not self._guests.acquire(blocking=False):
                return
            try:  # until it leaves, or what it sends makes no sense: its own end names the cause
                while True:
                    send(connection, *self._answer(receive(connection)))
            finally:
                self._guests.release()

    def _answer(self, words: list[bytes]) -> list[bytes]:
        verb, seconds, *rest = words
        (timeout,) = struct.unpack("<d", seconds)
        if verb in (b"get", b"wait"):
            with self._news:
                here = self._news.wait_for(lambda: all(n in self._values for n in rest), timeout)
                return [b"1", *(self._values[n] for n in rest if verb == b"get")] if here else [b""]
        with self._news:
            if verb == b"check":
                return [b"1" if all(name in self._values for name in rest) else b""]
            name, *given = rest
            old = self._values.get(name)
            if verb == b"delete":
                self._values.pop(name, None)
                return [b"1" if old is not None else b""]
            if verb == b"add":
                value = str(int(old or b"0") + int(given[0])).encode()
            elif verb == b"exchange":  # where the value is the one expected, or none is expected
                expected, wanted = given
                if old is None and expected:
                    return [b"1", expected]
                value = wanted if (old or b"") == expected else old or b""
            elif verb == b"set":
                value = given[0]
            else:
                raise ValueError(f"unknown verb {verb!r}")
            self._bytes += len(value) - len(old or b"") + (len(name) if old is None else 0)
            if self._bytes > ROOM:
                raise ValueError("more is said than any run says")
            self._values[name] = value
            self._news.notify_all()
            return [b"1", value]


def _why_not(place: Place, error: OSError) -> str:
    """Error for a place where nobody can meet."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {place.port} on {place.host} is in use by another program; choose another, in "
            "--port, or in the first entry of --workers"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"--ip={place.host} is no address of this host, {which_it_has()}; --ip is an address "
            "of the first host (--group_offset=0), the same in every command"
        )
    return f"nobody can meet at {place}: {error.strerror or error}"


class Guest:
    """A process at a meeting. Each of its threads has a channel of its own."""

    def __init__(self, place: Place, secret: bytes = b"", timeout: float = 60.0):
        self.place, self._secret, self._timeout = place, secret, timeout
        self._own = threading.local()
        self._channel()

    def _channel(self) -> socket.socket:
        if not hasattr(self._own, "channel"):
            self._own.channel = self.place.open(self._secret, self._timeout)
        return self._own.channel

    def ask(self, verb: str, *words: bytes, timeout: float = 0.0) -> list[bytes] | None:
        """The answer; None where it is no, or was not there within so many seconds."""
        try:
            send(self._channel(), verb.encode(), struct.pack("<d", timeout), *words)
            found, *rest = receive(self._channel())
        except (OSError, EOFError) as error:
            raise WorldError(f"the meeting at {self.place} is over: {error}") from error
        return rest if found else None
