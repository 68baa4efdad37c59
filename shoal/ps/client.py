"""Client: a worker's connections to all servers.

Requests are numbered and answered in any order; several may be under way. While an answer is due
the server is asked for a sign of life, and what it may have lost is sent again. A second thread
tells the servers that this worker lives, whatever it computes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket as sockets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.ps.curve import use_keys
from shoal.ps.keys import Keys
from shoal.ps.spec import Spec
from shoal.ps.wire import (
    WITH_DENSE,
    Header,
    Kind,
    WireError,
    numbers,
    numbers_frame,
    parse_header,
    parse_json,
    parts_frame,
    receive_rows,
    send_ids,
    send_rows,
)
from shoal.world import PeerLost

PING_SECONDS = 1.0
AGAIN_SECONDS = 5.0  # an answer overdue: what was asked is asked again
COPY_BELOW = 1 << 16
PULL_VALUES = 1 << 18  # values of rows in one answer, about: 1 MiB


class ServerError(ValueError):
    """A server refused what it was asked."""


@dataclass(frozen=True)
class Share:
    """Distinct ids of one table, grouped by server: the first counts[0] are server 0's, ..."""

    table: int
    ids: Tensor  # [n]
    counts: list[int]

    def of(self, server: int) -> slice:
        start = sum(self.counts[:server])
        return slice(start, start + self.counts[server])


class Link:
    """The connection to one server."""

    def __init__(self, client: Client, index: int, address: str):
        self.client, self.index, self.address = client, index, address
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
            if now - asked_again > AGAIN_SECONDS:
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


class Client:
    """What a worker asks of all servers."""

    def __init__(
        self,
        addresses: Sequence[str],
        worker: int = 0,
        keys: Keys | None = None,
        timeout: float = 10.0,
        session: int | None = None,
    ):
        self.worker, self.keys, self.timeout = worker, keys, timeout
        self.session = session or secrets.randbits(63) | 1
        self.context = zmq.Context()
        self.bytes_sent = 0
        self.failure = ""  # what a server said while nothing was asked
        # Called from the heartbeat when a failure stays unheard, as in a collective that never ends
        self.on_lost: Callable[[str], None] | None = None
        self._greeted = False
        self.flags = 0  # of rows on the wire
        self._number = 0
        self.pushes = 0  # made so far: the step that the servers count
        self.links = [Link(self, k, address) for k, address in enumerate(addresses)]
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None
        self.spec: Spec | None = None

    def connect(self, address: str) -> zmq.Socket:
        """A socket to a server, which need not be up yet."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * PING_SECONDS))
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if self.keys is not None:
            use_keys(socket, self.keys)
        socket.connect(f"tcp://{address}")
        return socket

    def header(self, kind: Kind, flags: int = 0, step: int = -1) -> Header:
        """The header of a new request."""
        self._number += 1
        return Header(kind, self.worker, flags, self._number, step, self.session)

    def ask_all(self, kind: Kind, frames: Sequence[Any] = (), flags: int = 0) -> list[int]:
        """The same request to every server; the numbers of the requests."""
        requests = []
        for link in self.links:
            header = self.header(kind, flags)
            link.ask(header, frames)
            requests.append(header.sequence)
        return requests

    def tell_all(
        self, kind: Kind, frames: Sequence[Any] = (), patience: float | None = None
    ) -> list[list[memoryview]]:
        """The same request to every server, and all answers."""
        requests = self.ask_all(kind, frames)
        return [link.answer(n, patience) for link, n in zip(self.links, requests)]

    # ---- the life of a worker -------------------------------------------------------------------

    def hello(self, spec: Spec, join_timeout: float = 60.0) -> None:
        """Describe the model to every server; waits for servers that are not up yet."""
        self.spec = spec
        values = {**json.loads(spec.json()), "host": sockets.gethostname()}
        for link in self.links:
            text = json.dumps({**values, "server": link.index}).encode()
            link.greeting = self.header(Kind.HELLO)
            link.ask(link.greeting, [text])
        # Servers that are up must hear of this worker while it waits for others.
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beating.start()
        try:
            for link in self.links:
                link.answer(link.greeting.sequence, join_timeout)
        except PeerLost as error:
            raise PeerLost(
                f"{error}. Start the servers, check their addresses and keys, or raise "
                "launch.join_timeout"
            ) from None
        self._greeted = True

    def _beat(self) -> None:
        """Tell the servers every second that this worker lives, and notice when they do not."""
        links = [(link, self.connect(link.address)) for link in self.links]
        header = Header(Kind.PING, self.worker, session=self.session).pack()
        heard, failed = dict.fromkeys(range(len(links)), 0.0), 0.0
        while not self._stop.wait(PING_SECONDS):
            for link, socket in links:
                with contextlib.suppress(zmq.Again):
                    socket.send(header, zmq.NOBLOCK)
                while socket.poll(0):
                    answer, heard[link.index] = socket.recv_multipart(), time.monotonic()
                    told = parse_header(answer[0]).kind == Kind.OK and answer[1]
                    if told and not self.failure:  # an error: hello is still on its way
                        self.failure = f"{link.name}: {answer[1].decode(errors='replace')}"
                silent = time.monotonic() - (heard[link.index] or time.monotonic())
                if self._greeted and silent > self.timeout and not self.failure:
                    self.failure = f"{link.name} has not answered for {silent:.0f} s"
            failed = failed or (time.monotonic() if self.failure else 0.0)
            if failed and self.on_lost and time.monotonic() - failed > self.timeout:
                self.on_lost(self.failure)
                self.on_lost = None
        for _, socket in links:
            socket.close()

    def bye(self) -> None:
        """Tell every server that this worker is done."""
        self.tell_all(Kind.BYE)

    def close(self) -> None:
        """Drop the connections."""
        self._stop.set()
        if self._beating is not None:
            self._beating.join()
        for link in self.links:
            link.socket.close()
        self.context.term()

    def second(self) -> Client:
        """A client of the same worker for another thread: sockets must not be shared."""
        addresses = [link.address for link in self.links]
        other = Client(addresses, self.worker, self.keys, self.timeout, self.session)
        other._number = secrets.randbits(40) << 20  # requests of its own
        return other

    # ---- rows -----------------------------------------------------------------------------------

    def start_pull(self, shares: list[Share], step: int = -1) -> Pulling:
        """Ask for the rows of some tables; `wait` has them. step=-1: as they are now.

        Many rows are asked for in several requests: the first travel while others are read.
        """
        assert self.spec is not None
        pulling = Pulling(self, shares, self.flags)
        for link in self.links:
            for some in _cut(shares, self.spec, link.index):
                parts = [(shares[k].table, last - first) for k, first, last in some]
                ids = [shares[k].ids[first:last] for k, first, last in some]
                header = self.header(Kind.PULL, pulling.flags, step)
                link.ask(header, [parts_frame(parts), send_ids(ids, pulling.flags)])
                pulling.asked.append((link, header.sequence, some))
        return pulling

    def start_push(
        self,
        shares: list[Share],
        grads: list[Tensor],
        lr: float,
        loss: float,
        count: float,
        dense: list[Tensor] | None = None,
    ) -> Pushing:
        """Send gradients: grads[k] [n, dim] of shares[k], dense[s] flat for server s."""
        flags = self.flags | (WITH_DENSE if dense is not None else 0)
        requests = []
        for link in self.links:
            k = link.index
            parts = [(share.table, share.counts[k]) for share in shares]
            ids = [share.ids[share.of(k)] for share in shares]
            rows = [grad[share.of(k)] for share, grad in zip(shares, grads)]
            header = self.header(Kind.PUSH, flags, self.pushes)
            frames = [
                numbers_frame(lr, loss, count),
                parts_frame(parts),
                send_ids(ids, flags) if ids else b"",
                send_rows(rows, flags),
                b"" if dense is None else send_rows([dense[k]], 0),
            ]
            link.ask(header, frames)
            requests.append(header.sequence)
        self.pushes += 1
        return Pushing(self, requests, flags)

    # ---- dense parameters -----------------------------------------------------------------------

    def dense(self) -> list[Tensor]:
        """Every server's dense parameters, flat."""
        return [_flat(frames[0]) for frames in self.tell_all(Kind.DENSE)]

    def set_dense(self, dense: list[Tensor], state: dict[str, Tensor]) -> None:
        """Give every server its dense parameters, and the optimizer's state."""
        packed = format_tensors(state) if state else b""
        requests = []
        for link, flat in zip(self.links, dense):
            header = self.header(Kind.SET_DENSE)
            link.ask(header, [send_rows([flat], 0), packed])
            requests.append(header.sequence)
        for link, number in zip(self.links, requests):
            link.answer(number)

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizers' state of all servers."""
        found: dict[str, Tensor] = {}
        for frames in self.tell_all(Kind.STATE):
            found |= parse_tensors(bytes(frames[0]))
        return found

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: str, delta: bool = False) -> None:
        """Let the servers write their rows of this moment; `saved` has the files."""
        self.tell_all(Kind.SAVE, [json.dumps({"folder": folder, "delta": delta}).encode()])

    def saved(self) -> dict[str, Any]:
        """Wait until the rows are written: file -> bytes and checksum."""
        files: dict[str, Any] = {}
        for link in self.links:
            while True:
                header = self.header(Kind.SAVED)
                link.ask(header, [])
                report = parse_json(link.answer(header.sequence)[0])
                if not report["running"]:
                    break
                time.sleep(0.02)
            if "error" in report:
                raise ServerError(f"{link.name}: {report['error']}")
            files |= report["files"]
        return files

    def load(
        self, folder: str, files: dict[str, Any], steps: dict[str, int], fresh: bool = False
    ) -> None:
        """Let every server take over its rows of a checkpoint; fresh: and forget all others."""
        values = {"folder": os.path.abspath(folder), "files": files, "steps": steps}
        self.tell_all(Kind.LOAD, [json.dumps({**values, "fresh": fresh}).encode()])

    def stats(self) -> list[dict[str, Any]]:
        """What each server holds."""
        return [parse_json(frames[0]) for frames in self.tell_all(Kind.STATS)]


Pieces = list[tuple[int, int, int]]  # number of a share, first and last of its ids


def _cut(shares: list[Share], spec: Spec, server: int) -> list[Pieces]:
    """What one server is asked for, as requests of about PULL_VALUES values; at least one."""
    requests: list[Pieces] = [[]]
    room = PULL_VALUES
    for k, share in enumerate(shares):
        dim = spec.tables[share.table].dim
        piece = share.of(server)
        first = piece.start
        while True:
            last = min(piece.stop, first + max(1, room // dim))
            requests[-1].append((k, first, last))
            room -= (last - first) * dim
            first = last
            if first == piece.stop:
                break
            requests.append([])
            room = PULL_VALUES
    return requests


class Pulling:
    """Rows on their way."""

    def __init__(self, client: Client, shares: list[Share], flags: int):
        self.client, self.shares, self.flags = client, shares, flags
        self.asked: list[tuple[Link, int, Pieces]] = []

    def wait(self) -> list[Tensor]:
        """Rows [n, dim] of every share, only to be read."""
        assert self.client.spec is not None
        tables = self.client.spec.tables
        dims = [tables[share.table].dim for share in self.shares]
        came: list[list[Tensor]] = [[] for _ in self.shares]
        for link, number, pieces in self.asked:
            frames = link.answer(number)
            counts = [last - first for _, first, last in pieces]
            rows = receive_rows(frames[0], counts, [dims[k] for k, _, _ in pieces], self.flags)
            for (k, _, _), piece in zip(pieces, rows):
                came[k].append(piece)
        return [some[0] if len(some) == 1 else torch.cat(some) for some in came]


class Pushing:
    """Gradients on their way."""

    def __init__(self, client: Client, requests: list[int], flags: int):
        self.client, self.requests, self.flags = client, requests, flags

    def wait(self) -> tuple[float, float, list[Tensor]]:
        """Loss and count of the step they were applied in, and the servers' dense parameters."""
        loss = count = 0.0
        dense = []
        for link, number in zip(self.client.links, self.requests):
            frames = link.answer(number)
            loss, count = numbers(frames[0], 2)
            if self.flags & WITH_DENSE and len(frames) > 1:
                dense.append(_flat(frames[1]))
        return loss, count, dense


def _flat(frame: memoryview) -> Tensor:
    if len(frame) % 4:
        raise WireError(f"dense parameters of {len(frame)} bytes")
    return receive_rows(frame, [len(frame) // 4], [1], 0)[0].view(-1)
