"""Answers: requests that came to a server, and the answers to their senders."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import zmq
from torch import Tensor

from shoal.kernels.wire import native_outlet
from shoal.ps.wire import (
    COPY_BELOW,
    MOST_JSON,
    Kind,
    MessageHeader,
    S,
    WireError,
    json_frame,
    parse_json,
    validated,
)


@dataclass
class Request:
    """A message whose answer is due."""

    address: bytes
    header: MessageHeader
    head: bytes | memoryview = b""  # frame 0: the header, and what may stand behind it
    frames: list[memoryview] = field(default_factory=list)
    ids: list[tuple[int, Tensor]] = field(default_factory=list)  # of a pull: table, its ids

    def only(self, count: int) -> list[memoryview]:
        """The frames, when there are as many as there must be."""
        if len(self.frames) != count:
            raise WireError(f"{len(self.frames)} frames after the header; there must be {count}")
        return self.frames

    def read(self, kind: type[S], wrong: str, max_bytes: int = MOST_JSON) -> S:
        """Parse the only frame; wrong: the beginning of an error, max_bytes: the limit."""
        return validated(kind, parse_json(self.only(1)[0], max_bytes), wrong)


class Answers:
    """The way back to the workers."""

    def __init__(self, socket: zmq.Socket):
        self.socket = socket
        self._outlet = native_outlet(socket)
        self.silent = False  # while requests that were answered before are replayed

    def reply(self, request: Request, frames: list[Any], flags: int = 0) -> None:
        """Answer a request."""
        self._send(request.address, request.header.answer(Kind.OK, flags), frames)

    def reply_message(self, address: bytes, message: Any) -> None:
        """An answer that is one frame, header and all."""
        with contextlib.suppress(zmq.ZMQError):  # the requester is gone
            self.socket.send(address, zmq.NOBLOCK | zmq.SNDMORE)
            # A copy, however large: else zmq reports its end in a thread that needs the GIL.
            self.socket.send(message, zmq.NOBLOCK)

    def reply_rows(self, reader: Any, request: Request, max_values: int) -> bool:
        """Rows that native code reads and sends, so many values; False: Python must do it."""
        if self._outlet is None:
            return False
        return reader.send(self._outlet, request.address, request.head, int(Kind.OK), max_values)

    def refuse(self, address: bytes, header: MessageHeader, why: str, lost: bool = False) -> None:
        """Why it was not done; lost: the run cannot continue."""
        self._send(address, header.answer(Kind.ERROR), [json_frame({"message": why, "lost": lost})])

    def close(self) -> None:
        """Stop answering."""
        self._outlet = None  # native code does not notice that a socket was closed
        self.socket.close()

    def _send(self, address: bytes, header: MessageHeader, frames: list[Any]) -> None:
        if self.silent:
            return
        messages = [address, header.pack(), *frames]
        large = any(len(frame) > COPY_BELOW for frame in frames)
        with contextlib.suppress(zmq.ZMQError):  # the requester is gone
            self.socket.send_multipart(messages, zmq.NOBLOCK, copy=not large)
