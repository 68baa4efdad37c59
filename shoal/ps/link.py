"""Link: a worker's connection to one server.

Requests are numbered and answered in any order; several may be under way. While an answer is due
the server is asked for a sign of life, and what it may have lost is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

from shoal.ps.wire import HEADER, Header, Kind, parse_header, parse_json
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
        self.due: dict[int, list[Any]] = {}  # asked and not answered: the message
        self.came: dict[int, tuple[Header, list[Any]]] = {}

    @property
    def name(self) -> str:
        return f"server {self.index} at {self.address}"

    def ask(self, header: Header, frames: Sequence[Any]) -> None:
        """Send a request; `answer` has what comes back."""
        self.post(header.sequence, [header.pack(), *frames])

    def post(self, number: int, message: list[Any]) -> None:
        """Send a request whose frame 0 begins with a header of this number."""
        self.due[number] = message
        self._send(message)

    def _send(self, message: list[Any]) -> None:
        size = sum(map(len, message))
        self.client.bytes_sent += size - HEADER.size
        # A server that does not take our key leaves nobody to send to: that is silence, too.
        try:
            if len(message) == 1:
                self.socket.send(message[0], zmq.NOBLOCK, copy=size <= COPY_BELOW)
            else:
                self.socket.send_multipart(message, zmq.NOBLOCK, copy=size <= COPY_BELOW)
        except zmq.Again:
            pass

    def answer(self, number: int, patience: float | None = None) -> list[memoryview]:
        """The frames of an answer, less the header; waits for it as long as the server lives."""
        return self._wait(number, patience or self.client.timeout)[1:]

    def answer_body(self, number: int) -> memoryview:
        """What stands behind the header in frame 0 of an answer."""
        return self._wait(number, self.client.timeout)[0][HEADER.size :]

    def _wait(self, number: int, patience: float) -> list[memoryview]:
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
            self._send([self.client.header(Kind.PING).pack()])
            if now - asked_again > self.again_after:
                asked_again = now
                for message in self.due.values():
                    self._send(message)
        header, frames = self.came.pop(number)
        if header.kind == Kind.ERROR:
            raise self._error(frames)
        return frames

    def _take(self) -> bool:
        """One message, within a second; whether there was one."""
        try:
            frame = self.socket.recv(copy=False)
        except zmq.Again:
            return False
        frames = [frame.buffer]
        while frame.more:
            frame = self.socket.recv(copy=False)
            frames.append(frame.buffer)
        header = parse_header(frames[0])
        if self.due.pop(header.sequence, None) is not None:
            self.came[header.sequence] = header, frames
        elif header.kind == Kind.ERROR and header.sequence == 0:
            raise self._error(frames)
        return True

    def _error(self, frames: list[memoryview]) -> Exception:
        found = parse_json(frames[1])
        text = f"{self.name}: {found.get('message')}"
        return PeerLost(text) if found.get("lost") else ServerError(text)
