"""Link: a worker's connection to one server. Caller: what its connections to all servers share.

Requests are numbered and answered in any order; several may be under way. While an answer is due
a heartbeat goes to the server, and what it may have lost is sent again: now and then, and
at once when another process of it answers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import zmq
from torch import Tensor

from shoal.distributed.curve import Context, CurveKeys
from shoal.distributed.liveness import BEAT
from shoal.distributed.world import PeerLost
from shoal.kernels.wire import native_arriving
from shoal.ps.address import check_private, nobody_listens
from shoal.ps.sockets import connect
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    COPY_BELOW,
    HEADER,
    Kind,
    MessageHeader,
    Wanted,
    WireError,
    in_pieces,
    parse_header,
    parse_json,
    pull_message,
    receive_rows,
)

PING_SECONDS = 1.0  # between signs of life
LOOK_SECONDS = 0.05  # the same, where another server has the same rows
AGAIN_SECONDS = 5.0  # an answer is overdue: the request is sent again

Places = list[tuple[int, int]]  # where values begin in a flat tensor, and how many they are


class ServerError(ValueError):
    """A server refused a request."""


@dataclass(eq=False)
class Caller:
    """A worker's number and session, its keys, and what was heard of the servers."""

    addresses: Sequence[str]  # of the servers, then of the first replica of each, and so on
    worker: int = 0
    keys: CurveKeys | None = None
    timeout: float = 10.0
    session: int = 0  # drawn where none is given
    plain: bool = False  # go to other hosts without keys
    recovery: float = 0.0  # seconds that a server may take to recover; 0: one gone is lost
    replicas: int = 1  # servers that hold the same rows
    joins: bool = False  # a run that is under way: its servers are there, or gone

    def __post_init__(self) -> None:
        if self.keys is None and not self.plain:
            remedy = (
                "set strategy.ps.keys=FOLDER; on a network of your own, strategy.ps.plain=true "
                "does without"
            )
            check_private(self.addresses, "strategy.ps.addresses: the server", remedy)
        self.session = self.session or secrets.randbits(63) | 1
        self.context = Context()
        self.bytes_sent = 0
        self.quiet = False  # another connection of this worker reports servers that are lost
        self.registered = False  # whether all servers know the worker: from then on silence counts
        self.pushed = 0  # pushes that were answered: no process of a server may know of fewer
        self.failure = ""  # an error that a server sent without a request
        # Called from the heartbeat when a failure stays unheard, as in a collective that never ends
        self.on_lost: Callable[[str], None] | None = None
        self._number = 0

    @property
    def patience(self) -> float:
        """Seconds of silence after which a server is given up."""
        return max(self.timeout, self.recovery)

    def connect(self, address: str) -> zmq.Socket:
        """A socket to a server, which need not be up yet."""
        wait = PING_SECONDS if self.replicas == 1 else LOOK_SECONDS
        return connect(self.context, address, self.keys, wait)

    def dense_size(self, server: int) -> int | None:
        """How many dense parameters a server has, all together; None where that is not known."""
        return None

    def header(self, kind: Kind, flags: int = 0, step: int = -1) -> MessageHeader:
        """The header of a new request."""
        self._number += 1
        return MessageHeader(kind, self.worker, flags, self._number, step, self.session)


class ArrivingRows:
    """Rows of one request, copied to their places in a tensor when they come."""

    def __init__(self, header: MessageHeader, to: Tensor, places: Places):
        self.flags = header.flags
        self.to, self.places = to, places  # held here: native code writes there, too
        plain = not self.flags & (BFLOAT16 | COMPRESSED)
        self.core = native_arriving(header.pack(), to.data_ptr(), places) if plain else None

    def take(self, frame: memoryview) -> None:
        """Copy the rows of an answer; WireError where it does not fit the request."""
        if self.core is not None:
            if not self.core.take(frame):
                raise WireError(f"{len(frame)} bytes that are not the rows asked for")
            return
        lengths = [length for _, length in self.places]
        values = receive_rows(frame[HEADER.size :], [sum(lengths)], [1], self.flags)[0].view(-1)
        flat = self.to.view(-1)
        for (place, length), row_values in zip(self.places, values.split(lengths)):
            flat[place : place + length] = row_values


class Link:
    """The connection to one server."""

    def __init__(self, caller: Caller, index: int, address: str):
        self.caller, self.index, self.address = caller, index, address
        self.socket = caller.connect(address)
        self.due: dict[int, Callable[[], None]] = {}  # requests without an answer: sends one again
        self.came: dict[int, tuple[MessageHeader, list[Any]]] = {}
        self.rows: dict[int, ArrivingRows] = {}  # of requests that are due
        self._ping = 0  # number of the last request for a sign of life
        self.failure = ""  # why it is lost, as the heartbeat found
        self.left_out = False  # it is lost, and its replica continues
        self.seen: float | None = None  # when it last answered a heartbeat, by the clock
        self.life = b""  # which process of the server it is that answers

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    @property
    def name(self) -> str:
        return f"server {self.index} at {self.address}"

    def expect(self, number: int, rows: ArrivingRows) -> None:
        """Register where the rows of a request go."""
        self.rows[number] = rows

    def ask(self, header: MessageHeader, frames: Sequence[Any]) -> int:
        """Send a request; its number, by which `wait` finds the answer."""
        self._post(header, partial(self._send, in_pieces(header, frames)))
        return header.sequence

    def ask_rows(self, header: MessageHeader, row_ranges: Wanted) -> None:
        """Send a request for rows; `wait` returns when they are where `expect` put them."""
        self._post(header, partial(self._send, [pull_message(header, row_ranges)]))

    def _post(self, header: MessageHeader, send: Callable[[], None]) -> None:
        self.due[header.sequence] = send
        send()

    def _send(self, message: list[Any]) -> None:
        size = sum(map(len, message))
        self.caller.bytes_sent += size - HEADER.size
        # A server that refuses our key leaves no peer to send to: that counts as silence, too.
        with suppress(zmq.Again):
            self.socket.send_multipart(message, zmq.NOBLOCK, copy=size <= COPY_BELOW)

    def wait(self, number: int, patience: float | None = None, least: int = 0) -> list[memoryview]:
        """The frames of an answer, less the header; waits for it as long as the server lives.

        least: how many frames it must have; WireError where it has fewer.
        """
        patience = patience or self.caller.patience
        if number not in self.came:
            with BEAT.waiting(f"an answer of server {self.index}", bounded=True):
                self._listen(number, patience)
        header, frames = self.came.pop(number)
        if header.kind == Kind.ERROR:
            raise self._error(frames)
        count = max(0, len(frames) - 1)  # rows are taken from their frame when they come
        if header.kind != Kind.OK or count < least:
            raise WireError(
                f"{self.name}: an answer of kind {header.kind} with {count} frames; expected is "
                f"{Kind.OK} with {least} or more"
            )
        return frames[1:]

    def _listen(self, number: int, patience: float) -> None:
        """Until an answer is here."""
        heard = asked_again = time.monotonic()
        while number not in self.came:
            frames = self._receive()
            if frames is not None:
                self._sort(frames)
                heard = time.monotonic()
                BEAT.tick()
                continue
            now = time.monotonic()
            if self.failure or self.caller.failure:
                raise PeerLost(self.failure or self.caller.failure)
            if self._is_gone(now - heard):
                raise PeerLost(f"{self.name} is gone")
            if now - heard > patience:
                raise PeerLost(
                    f"{self.name} has not answered for {now - heard:.0f} s: it died, or the "
                    "network to it is cut; its own message, on its host, says more"
                )
            if self.caller.recovery:
                BEAT.tick()  # waiting for a restarted server is no hang
            header = self.caller.header(Kind.PING, step=self.caller.pushed)
            self._ping = header.sequence
            self._send([header.pack()])
            if now - asked_again > AGAIN_SECONDS:
                asked_again = now
                self._ask_again()

    def _is_gone(self, silent: float) -> bool:
        """Whether the process is no more.

        Looked at only where another one has the same rows, or where it would never come again.
        """
        # Without a sign of life it may not be there yet, unless the run is under way.
        can_tell = self.caller.replicas > 1 if self.life else self.caller.joins
        return can_tell and silent > 2 * LOOK_SECONDS and nobody_listens(self.address)

    def _ask_again(self) -> None:
        for send in list(self.due.values()):
            send()

    def _receive(self) -> list[memoryview] | None:
        """The frames of a message, if one comes within a second."""
        try:
            frame = self.socket.recv(copy=False)
        except zmq.Again:
            return None
        frames = [frame.buffer]
        while frame.more:
            frame = self.socket.recv(copy=False)
            frames.append(frame.buffer)
        return frames

    def _sort(self, frames: list[memoryview]) -> None:
        """Keep an answer that is due until its request waits for it."""
        header = parse_header(frames[0])
        rows = self.rows.get(header.sequence)
        if rows is not None and header.kind == Kind.OK:
            if len(frames) != 1:
                raise WireError(f"rows in {len(frames)} frames; there must be one")
            rows.take(frames[0])
            del self.due[header.sequence], self.rows[header.sequence]
            self.came[header.sequence] = header, []
        elif self.due.pop(header.sequence, None) is not None:
            self.rows.pop(header.sequence, None)
            self.came[header.sequence] = header, frames
        elif header.sequence == self._ping and header.kind == Kind.OK and len(frames) == 3:
            before, self.life = self.life, bytes(frames[2])
            if before not in (b"", self.life):  # started again: what was on its way is lost
                self._ask_again()
        elif header.kind == Kind.ERROR and header.sequence == 0:
            raise self._error(frames)

    def _error(self, frames: list[memoryview]) -> Exception:
        if len(frames) < 2:
            return WireError(f"{self.name}: an error without a message")
        report = parse_json(frames[1])
        text = f"{self.name}: {report.get('message')}"
        return PeerLost(text) if report.get("lost") else ServerError(text)
