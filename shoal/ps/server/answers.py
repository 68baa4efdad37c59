"""Answers: requests that came to a server, and what goes back to whoever sent them."""

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

    def read(self, kind: type[S], wrong: str, most: int = MOST_JSON) -> S:
        """What its one frame says; wrong: how an error begins, most: bytes that there may be."""
        return validated(kind, parse_json(self.only(1)[0], most), wrong)


class Answers:
    """The way back to the workers."""

    def __init__(self, socket: zmq.Socket):
        self.socket = socket
        self._outlet = native_outlet(socket)
        self.silent = False  # while requests that were answered before are replayed

    def give(self, request: Request, frames: list[Any], flags: int = 0) -> None:
        """What was asked for."""
        self._send(request.address, request.header.answer(Kind.OK, flags), frames)

    def give_message(self, address: bytes, message: Any) -> None:
        """An answer that is one frame, header and all."""
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            self.socket.send(address, zmq.NOBLOCK | zmq.SNDMORE)
            # A copy, however large: else zmq tells when it is done by a thread that wants the GIL.
            self.socket.send(message, zmq.NOBLOCK)

    def give_rows(self, reader: Any, request: Request, most: int) -> bool:
        """Rows that native code reads and sends, so many values; False: Python must do it."""
        if self._outlet is None:
            return False
        return reader.send(self._outlet, request.address, request.head, int(Kind.OK), most)

    def refuse(self, address: bytes, header: MessageHeader, why: str, lost: bool = False) -> None:
        """Why it was not done; lost: the run cannot continue."""
        self._send(address, header.answer(Kind.ERROR), [json_frame({"message": why, "lost": lost})])

    def close(self) -> None:
        """Nobody is answered any more."""
        self._outlet = None  # native code does not notice that a socket was closed
        self.socket.close()

    def _send(self, address: bytes, header: MessageHeader, frames: list[Any]) -> None:
        if self.silent:
            return
        messages = [address, header.pack(), *frames]
        large = any(len(frame) > COPY_BELOW for frame in frames)
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            self.socket.send_multipart(messages, zmq.NOBLOCK, copy=not large)
