"""Link: a worker's connection to one server.

Requests are numbered and answered in any order; several may be under way. While an answer is due
the server is asked for a sign of life, and what it may have lost is sent again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

from shoal.ps.wire import Header, Kind, parse_header, parse_json
from shoal.world import PeerLost

if TYPE_CHECKING:
    from shoal.ps.client import Client

COPY_BELOW = 1 << 16  # smaller frames are copied into zmq's own memory, which is cheaper


class ServerError(ValueError):
    """A server refused what it was asked."""


class Link:
    """The connection to one server."""

    def __init__(self, client: Client, index: int, address: str, again_after: float):
        self.client, self.index, self.address = client, index, address
        self.again_after = again_after  # seconds: what was asked is asked again
        self.socket = client.connect(address)
        self.greeting = Header(Kind.HELLO, client.worker)
        self.due: dict[int, tuple[Header, list[Any]]] = {}  # asked and not answered
        self.came: dict[int, tuple[Header, list[memoryview]]] = {}

    @property
    def name(self) -> str:
        return f"server {self.index} at {self.address}"

    def ask(self, header: Header, frames: Sequence[Any]) -> None:
        """Send a request; `answer` has what comes back."""
        self.due[header.sequence] = header, list(frames)
        self._send(header, frames)

    def _send(self, header: Header, frames: Sequence[Any]) -> None:
        large = any(len(frame) > COPY_BELOW for frame in frames)
        self.client.bytes_sent += sum(len(frame) for frame in frames)
        # A server that does not take our key leaves nobody to send to: that is silence, too.
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([header.pack(), *frames], zmq.NOBLOCK, copy=not large)

    def answer(self, number: int, patience: float | None = None) -> list[memoryview]:
        """The frames of an answer; waits for it as long as the server lives."""
        patience = patience or self.client.timeout
        heard = asked_again = time.monotonic()
        while number not in self.came:
            if self._take():
                heard = time.monotonic()
                continue
            now = time.monotonic()
            if self.client.failure:
                raise PeerLost(self.client.failure)
            if now - heard > patience:
                raise PeerLost(
                    f"{self.name} has not answered for {now - heard:.0f} s: it died, or the "
                    "network to it is cut; its own message, on its host, says more"
                )
            self._send(self.client.header(Kind.PING), [])
            if now - asked_again > self.again_after:
                asked_again = now
                for header, frames in self.due.values():
                    self._send(header, frames)
        header, frames = self.came.pop(number)
        if header.kind == Kind.ERROR:
            raise self._error(parse_json(frames[0]))
        return frames

    def _take(self) -> bool:
        """One message, within a second; whether there was one."""
        try:
            frames = [f.buffer for f in self.socket.recv_multipart(copy=False)]
        except zmq.Again:
            return False
        header = parse_header(frames[0])
        if self.due.pop(header.sequence, None) is not None:
            self.came[header.sequence] = header, frames[1:]
        elif header.kind == Kind.ERROR and header.sequence == 0:
            raise self._error(parse_json(frames[1]))
        return True

    def _error(self, found: dict[str, Any]) -> Exception:
        text = f"{self.name}: {found.get('message')}"
        return PeerLost(text) if found.get("lost") else ServerError(text)
