"""Client: a worker's connections to all servers.

Requests for rows and gradients are divided among the servers; other requests go to each of them.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket as sockets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.config.section import Section
from shoal.distributed.world import PeerLost
from shoal.ps.spec import Spec
from shoal.ps.wire import (
    ANY_NUMBER,
    COMPRESSED,
    COUNT,
    WITH_DENSE,
    Kind,
    WireError,
    json_frame,
    numbers_frame,
    parse_json,
    parts_frame,
    receive_flat,
    send_ids,
    send_rows,
    validated,
)
from shoal.ps.worker.heartbeat import Heartbeat
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.link import Caller, Link, ServerError
from shoal.ps.worker.replicas import Replicas
from shoal.ps.worker.transfer import (
    REQUEST_VALUES,
    UNDER_WAY,
    Pulling,
    PullMessage,
    Pushing,
    ServerRequest,
    cut,
)

GOODBYE_SECONDS = 15.0  # how long an answer to the goodbye is waited for

# How many frames an answer has at least, of requests that are answered with any.
ANSWER_FRAMES = {
    Kind.HELLO: 2,
    Kind.DENSE: 1,
    Kind.SAVED: 1,
    Kind.STATE: 1,
    Kind.STATS: 1,
    Kind.LEASE: 1,
}

log = logging.getLogger("shoal")


class SaveReport(Section):
    """How far a server is with its files of a checkpoint."""

    running: bool
    files: dict[str, dict[str, Any]] = Field(default_factory=dict)
    error: str | None = None


class Floor(Section):
    """Server 0's answer to the worker that sets the next turn (ps/server/ledger.py)."""

    floor: bool
    turn: dict[str, Any] | None
    stop: bool
    loss: float
    losses: int
    seconds: float
    agreed: dict[str, Any] | None = None


class Client(Caller):
    """A worker's connections and requests to all servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flags = 0  # of rows on the wire
        self.pushes = 0  # made so far: the step that the servers count
        count = len(self.addresses) // self.replicas
        self.servers = [Link(self, k % count, one) for k, one in enumerate(self.addresses)]
        self._shards = [self.servers[k::count] for k in range(count)]
        self.links: Sequence[Link | Replicas] = (
            self.servers if self.replicas == 1 else [Replicas(some) for some in self._shards]
        )
        self._heartbeat: Heartbeat | None = None
        self.spec: Spec | None = None
        self.lease: Lease | None = None  # the lease of present pushes, in elastic runs
        self.over = False  # whether server 0 reported that nothing is left to do

    def request(self, link: Link | Replicas, kind: Kind, *frames: Any) -> list[memoryview]:
        """Send a request to one server; returns its answer."""
        return link.wait(link.ask(self.header(kind), frames), least=ANSWER_FRAMES.get(kind, 0))

    def request_all(self, kind: Kind, *frames: Any) -> list[list[memoryview]]:
        """Send one request to every server; returns all answers."""
        return self.request_each(kind, repeat(frames))

    def request_each(self, kind: Kind, frames: Iterable[Sequence[Any]]) -> list[list[memoryview]]:
        """Send each server a request with its own frames; returns all answers."""
        numbers = [link.ask(self.header(kind), some) for link, some in zip(self.links, frames)]
        least = ANSWER_FRAMES.get(kind, 0)
        return [link.wait(number, least=least) for link, number in zip(self.links, numbers)]

    def dense_size(self, server: int) -> int | None:
        return None if self.spec is None else self._dense_sizes[server]

    # ---- the life of a worker -------------------------------------------------------------------

    def start_heartbeat(self) -> None:
        """Send heartbeats to the servers; the worker registers once it has read its data."""
        self._heartbeat = Heartbeat(self, self._shards)

    def hello(self, spec: Spec, join_timeout: float = 60.0) -> None:
        """Describe the model to every server; waits for servers that are not up yet."""
        self.spec = spec
        self._dense_sizes = [spec.dense_size(server) for server in range(spec.servers)]
        self._counted = spec.counted
        host = sockets.gethostname()
        if spec.elastic:  # workers are named by nothing else that a user knows
            host += f" (pid {os.getpid()})"
        values = {**spec.model_dump(mode="json"), "host": host}
        try:
            if spec.elastic:  # server 0 chooses the number of this worker
                self._register(self.servers[:1], values, join_timeout)
            # Servers that are up must hear of this worker while it waits for others.
            self.start_heartbeat()
            self._register(self.servers[spec.elastic :], values, join_timeout)
        except PeerLost as error:
            if self.joins:
                self._deregister()
                raise PeerLost(f"{error}: the run that this worker joins has ended") from None
            raise PeerLost(
                f"{error}. Start the servers, check their addresses and keys, or raise "
                "launch.join_timeout"
            ) from None
        self.registered = True

    def _deregister(self) -> None:
        """Say goodbye to the servers that registered this worker, where others are gone."""
        for link in self.servers:
            if link.life:
                with suppress(PeerLost, ServerError):
                    link.wait(link.ask(self.header(Kind.BYE), []), GOODBYE_SECONDS)

    def _register(self, links: Sequence[Link], values: dict[str, Any], patience: float) -> None:
        texts = [json_frame({**values, "server": link.index}) for link in links]
        numbers = [link.ask(self.header(Kind.HELLO), [text]) for link, text in zip(links, texts)]
        for link, sequence in zip(links, numbers):
            life, number, *_ = link.wait(sequence, patience, ANSWER_FRAMES[Kind.HELLO])
            if len(number) != COUNT.size:
                raise WireError(f"{link.name}: the number of a worker has {len(number)} bytes")
            (self.worker,) = COUNT.unpack(number)
            if not 0 <= self.worker <= ANY_NUMBER:
                raise WireError(f"{link.name}: a worker cannot have the number {self.worker}")
            link.life = bytes(life)

    def bye(self) -> None:
        """Report to every server that this worker is done.

        A server ends with the last goodbye. If its answer to that is lost, it cannot be repeated,
        and nothing is missing: all other requests of this worker were answered before.
        """
        frames = [b"over"] if self.over else []
        numbers = [link.ask(self.header(Kind.BYE), frames) for link in self.links]
        for link, number in zip(self.links, numbers):
            try:
                link.wait(number, GOODBYE_SECONDS)
            except PeerLost as error:
                if self.failure:
                    raise
                log.warning("after the last step: %s. The run itself is complete", error)

    def close(self) -> None:
        """Drop the connections."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for link in self.links:
            link.close()
        self.context.term()

    def second(self) -> Client:
        """A client of the same worker for another thread: sockets must not be shared."""
        other = replace(self)
        for link, own_link in zip(other.servers, self.servers):
            link.life = own_link.life
        other.pushed, other.quiet = self.pushed, True
        other.leave_out(self.left_out)
        other._number = secrets.randbits(40) << 20  # its own requests
        return other

    @property
    def left_out(self) -> list[bool]:
        """For every server, whether it is lost while its replica continues."""
        return [link.left_out for link in self.servers]

    def leave_out(self, is_lost: Sequence[bool]) -> None:
        """Continue without some servers, which this worker or another one has lost."""
        for link, lost in zip(self.servers, is_lost):
            replicas = self.links[link.index]
            if lost and not link.left_out and isinstance(replicas, Replicas):
                replicas.lose(link, link.failure or f"{link.name} is lost to another worker")

    # ---- rows -----------------------------------------------------------------------------------

    def start_pull(self, shares: list[ServerRequest], step: int = -1) -> Pulling:
        """Ask for the rows of some tables; `wait` has them. step=-1: as they are now.

        Their place here is made when the servers are at work already.
        """
        assert self.spec is not None
        dims = [self.spec.tables[share.table].dim for share in shares]
        requests_by_link: list[list[PullMessage]] = []
        for link in self.links:
            requests: list[PullMessage] = []
            for pieces in cut(shares, dims, link.index, REQUEST_VALUES):
                row_ranges = [
                    (shares[k].table, shares[k].ids, first, last) for k, first, last in pieces
                ]
                header = self.header(Kind.PULL, self.flags, step)
                requests.append(PullMessage(link, header, row_ranges, pieces))
            for request in requests[:UNDER_WAY]:
                request.send()
            requests_by_link.append(requests)
        return Pulling(shares, dims, requests_by_link)

    def start_push(
        self,
        shares: list[ServerRequest],
        grads: list[Tensor],
        lr: float,
        loss: float,
        count: float,
        dense: list[Tensor] | None = None,
    ) -> Pushing:
        """Send gradients: grads[k] [n, dim] of shares[k], dense[s] flat for server s."""
        flags = self.flags | (WITH_DENSE if dense is not None else 0)
        pushing = Pushing(self, flags, self.pushes, self.lease)
        place = None if self.lease is None else self.lease.take_place()
        for link in self.links:
            k = link.index
            parts = [(share.table, share.counts[k]) for share in shares]
            ids = [share.ids[share.part_of(k)] for share in shares]
            rows = [grad[share.part_of(k)] for share, grad in zip(shares, grads)]
            frames = [
                numbers_frame(lr, loss, count),
                parts_frame(parts),
                send_ids(ids, flags),
                send_rows(rows, flags),
                b"" if dense is None else send_rows([dense[k]], 0),
            ]
            if any(self._counted):
                shown = [share.seen_by(k) for share in shares if self._counted[share.table]]
                frames.append(send_rows(shown, flags & COMPRESSED))
            if place is not None:
                frames.append(place)
            number = link.ask(self.header(Kind.PUSH, flags, self.pushes), frames)
            pushing.requests.append((link, number))
        self.pushes += 1
        return pushing

    # ---- dense parameters -----------------------------------------------------------------------

    def dense(self) -> list[Tensor]:
        """Every server's dense parameters, flat."""
        answers = self.request_all(Kind.DENSE)
        return [
            receive_flat(frames[0], self.dense_size(server))
            for server, frames in enumerate(answers)
        ]

    def set_dense(self, dense: list[Tensor], state: dict[str, Tensor]) -> None:
        """Give every server its dense parameters, and the optimizer's state."""
        packed = format_tensors(state) if state else b""
        self.request_each(Kind.SET_DENSE, [(send_rows([flat], 0), packed) for flat in dense])

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizers' state of all servers."""
        state: dict[str, Tensor] = {}
        for frames in self.request_all(Kind.STATE):
            try:
                state |= parse_tensors(bytes(frames[0]))
            except SafetensorError as error:
                raise WireError(f"the optimizer's state is not right: {error}") from None
        return state

    # ---- leased batches -------------------------------------------------------------------------

    def ask_lease(self, values: dict[str, Any]) -> dict[str, Any]:
        """Ask server 0 what to do: see Leases."""
        answer = parse_json(self.request(self.links[0], Kind.LEASE, json_frame(values))[0])
        if "floor" in answer:
            validated(Floor, answer, "what server 0 says of a turn")
        return answer

    def set_turn(self, values: dict[str, Any]) -> None:
        """Set at server 0 what comes next."""
        self.request(self.links[0], Kind.TURN, json_frame(values))

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: str | Path, delta: bool = False) -> None:
        """Make the servers write their present rows; `saved` returns the files.

        A server has its own folder for what it writes and reads, the checkpoints of the run,
        and gets only a name in there: the last part of `folder`.
        """
        self.request_all(Kind.SAVE, json_frame({"name": Path(folder).name, "delta": delta}))

    def saved(self) -> dict[str, Any]:
        """Wait until the rows are written: file -> bytes and checksum."""
        files: dict[str, Any] = {}
        for link in self.links:
            while (report := self._save_report(link)).running:
                time.sleep(0.02)
            if report.error is not None:
                raise ServerError(f"{link.name}: {report.error}")
            if isinstance(link, Replicas):
                link.share_answer(self.header(Kind.SAVED), [json_frame({"files": report.files})])
            files |= report.files
        return files

    def _save_report(self, link: Link | Replicas) -> SaveReport:
        return validated(SaveReport, parse_json(self.request(link, Kind.SAVED)[0]), "a save")

    def load(
        self,
        folder: str | Path,
        files: dict[str, Any],
        steps: dict[str, int],
        fresh: bool = False,
    ) -> None:
        """Make every server restore its rows of a checkpoint; fresh: forget all other rows."""
        values = {"name": Path(folder).name, "files": files, "steps": steps, "fresh": fresh}
        self.request_all(Kind.LOAD, json_frame(values))

    def stats(self) -> list[dict[str, Any]]:
        """Statistics of each server: tables, messages, refused messages."""
        reports = [parse_json(frames[0]) for frames in self.request_all(Kind.STATS)]
        if not all(isinstance(report.get("rewritten"), bool) for report in reports):
            raise WireError("figures of a server that do not say whether it dropped rows")
        return reports
