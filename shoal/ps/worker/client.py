"""Client: a worker's connections to all servers.

What concerns rows and gradients is divided among the servers; the rest is asked of each of them.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket as sockets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.ps.spec import Spec
from shoal.ps.wire import (
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
)
from shoal.ps.worker.caller import Caller
from shoal.ps.worker.heartbeat import Heartbeat
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.link import Link, ServerError
from shoal.ps.worker.replicas import Replicas
from shoal.ps.worker.transfer import (
    REQUEST_VALUES,
    UNDER_WAY,
    Pulling,
    Pushing,
    RowRequest,
    SplitIds,
    cut,
)
from shoal.world.world import PeerLost

GOODBYE_SECONDS = 15.0  # how long an answer to the goodbye is waited for

log = logging.getLogger("shoal")


class Client(Caller):
    """What a worker asks of all servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flags = 0  # of rows on the wire
        self.pushes = 0  # made so far: the step that the servers count
        self._rows: tuple[list[SplitIds], list[Tensor]] = ([], [])  # of the next push
        self.on_push: Callable[[], None] = lambda: None  # called once a push is on its way
        count = len(self.addresses) // self.replicas
        self.servers = [Link(self, k % count, one) for k, one in enumerate(self.addresses)]
        self._shards = [self.servers[k::count] for k in range(count)]
        self.links: Sequence[Link | Replicas] = (
            self.servers if self.replicas == 1 else [Replicas(some) for some in self._shards]
        )
        self._heartbeat: Heartbeat | None = None
        self.spec: Spec | None = None
        self.lease: Lease | None = None  # of which pushes are, where workers come and go
        self.over = False  # server 0 said that nothing is left to do

    def tell(self, link: Link | Replicas, kind: Kind, *frames: Any) -> list[memoryview]:
        """A request to one server, and its answer."""
        return link.wait(link.ask(self.header(kind), frames))

    def tell_all(self, kind: Kind, *frames: Any) -> list[list[memoryview]]:
        """The same request to every server, and all answers."""
        return self.tell_each(kind, repeat(frames))

    def tell_each(self, kind: Kind, frames: Iterable[Sequence[Any]]) -> list[list[memoryview]]:
        """A request to every server, with its own frames, and all answers."""
        numbers = [link.ask(self.header(kind), some) for link, some in zip(self.links, frames)]
        return [link.wait(number) for link, number in zip(self.links, numbers)]

    # ---- the life of a worker -------------------------------------------------------------------

    def knock(self) -> None:
        """Let the servers hear of this worker: it says hello when it has read its data."""
        self._heartbeat = Heartbeat(self, self._shards)

    def hello(self, spec: Spec, join_timeout: float = 60.0) -> None:
        """Describe the model to every server; waits for servers that are not up yet."""
        self.spec = spec
        host = sockets.gethostname()
        if spec.elastic:  # workers are named by nothing else that a user knows
            host += f" (pid {os.getpid()})"
        values = {**spec.model_dump(mode="json"), "host": host}
        try:
            if spec.elastic:  # server 0 says which number it has
                self._greet(self.servers[:1], values, join_timeout)
            self.knock()  # servers that are up must hear of this worker while it waits for others
            self._greet(self.servers[spec.elastic :], values, join_timeout)
        except PeerLost as error:
            if self.joins:
                self._take_leave()
                raise PeerLost(f"{error}: the run that this worker joins has ended") from None
            raise PeerLost(
                f"{error}. Start the servers, check their addresses and keys, or raise "
                "launch.join_timeout"
            ) from None
        self.greeted = True

    def _take_leave(self) -> None:
        """Say goodbye to servers that have greeted this worker, where others are gone."""
        for link in self.servers:
            if link.life:
                with suppress(PeerLost, ServerError):
                    link.wait(link.ask(self.header(Kind.BYE), []), GOODBYE_SECONDS)

    def _greet(self, links: Sequence[Link], values: dict[str, Any], patience: float) -> None:
        texts = [json_frame({**values, "server": link.index}) for link in links]
        numbers = [link.ask(self.header(Kind.HELLO), [text]) for link, text in zip(links, texts)]
        for link, asked in zip(links, numbers):
            life, number = link.wait(asked, patience)
            link.life, self.worker = bytes(life), COUNT.unpack(number)[0]

    def bye(self) -> None:
        """Let every server know that this worker is done.

        A server ends with the last goodbye. If its answer to that is lost nobody is there to give
        it again, and nothing is missing: all else that this worker asked was answered before.
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
        for link, mine in zip(other.servers, self.servers):
            link.life = mine.life
        other.pushed, other.quiet = self.pushed, True
        other.leave_out(self.left_out)
        other._number = secrets.randbits(40) << 20  # its own requests
        return other

    @property
    def left_out(self) -> list[bool]:
        """Of every server: whether it is lost, and its replica continues."""
        return [link.left_out for link in self.servers]

    def leave_out(self, which: Sequence[bool]) -> None:
        """Continue without some servers, which this worker or another one has lost."""
        for link, lost in zip(self.servers, which):
            replicas = self.links[link.index]
            if lost and not link.left_out and isinstance(replicas, Replicas):
                replicas.lose(link, link.failure or f"{link.name} is lost to another worker")

    # ---- rows -----------------------------------------------------------------------------------

    def start_pull(self, shares: list[SplitIds], step: int = -1) -> Pulling:
        """Ask for the rows of some tables; `wait` has them. step=-1: as they are now.

        Their place here is made when the servers are at work already.
        """
        assert self.spec is not None
        dims = [self.spec.tables[share.table].dim for share in shares]
        asked: list[list[RowRequest]] = []
        for link in self.links:
            requests: list[RowRequest] = []
            for some in cut(shares, dims, link.index, REQUEST_VALUES):
                wanted = [(shares[k].table, shares[k].ids, first, last) for k, first, last in some]
                header = self.header(Kind.PULL, self.flags, step)
                requests.append(RowRequest(link, header, wanted, some))
            for one in requests[:UNDER_WAY]:
                one.send()
            asked.append(requests)
        return Pulling(shares, dims, asked)

    def add_rows(self, shares: list[SplitIds], grads: list[Tensor]) -> None:
        """Let the next push have these gradients of rows: grads[k] [n, dim] of shares[k]."""
        self._rows = shares, grads

    def push(
        self, lr: float, loss: float, count: float, dense: list[Tensor] | None = None
    ) -> Pushing:
        """Send the gradients of a summed loss of `count` terms, with the rows that were added."""
        rows, self._rows = self._rows, ([], [])
        pushing = self.start_push(*rows, lr, loss, count, dense)
        self.on_push()
        return pushing

    def start_push(
        self,
        shares: list[SplitIds],
        grads: list[Tensor],
        lr: float,
        loss: float,
        count: float,
        dense: list[Tensor] | None = None,
    ) -> Pushing:
        """Send gradients: grads[k] [n, dim] of shares[k], dense[s] flat for server s."""
        assert self.spec is not None
        counted = self.spec.counted
        flags = self.flags | (WITH_DENSE if dense is not None else 0)
        pushing = Pushing(self, flags, self.pushes, self.lease)
        place = None if self.lease is None else self.lease.take_place()
        for link in self.links:
            k = link.index
            parts = [(share.table, share.counts[k]) for share in shares]
            ids = [share.ids[share.of(k)] for share in shares]
            rows = [grad[share.of(k)] for share, grad in zip(shares, grads)]
            frames = [
                numbers_frame(lr, loss, count),
                parts_frame(parts),
                send_ids(ids, flags),
                send_rows(rows, flags),
                b"" if dense is None else send_rows([dense[k]], 0),
            ]
            if any(counted):
                seen = [share.seen_by(k) for share in shares if counted[share.table]]
                frames.append(send_rows(seen, flags & COMPRESSED))
            if place is not None:
                frames.append(place)
            number = link.ask(self.header(Kind.PUSH, flags, self.pushes), frames)
            pushing.asked.append((link, number))
        self.pushes += 1
        return pushing

    # ---- dense parameters -----------------------------------------------------------------------

    def dense(self) -> list[Tensor]:
        """Every server's dense parameters, flat."""
        return [receive_flat(frames[0]) for frames in self.tell_all(Kind.DENSE)]

    def set_dense(self, dense: list[Tensor], state: dict[str, Tensor]) -> None:
        """Give every server its dense parameters, and the optimizer's state."""
        packed = format_tensors(state) if state else b""
        self.tell_each(Kind.SET_DENSE, [(send_rows([flat], 0), packed) for flat in dense])

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizers' state of all servers."""
        found: dict[str, Tensor] = {}
        for frames in self.tell_all(Kind.STATE):
            try:
                found |= parse_tensors(bytes(frames[0]))
            except SafetensorError as error:
                raise WireError(f"the optimizer's state is not right: {error}") from None
        return found

    # ---- batches that are lent ------------------------------------------------------------------

    def ask_lease(self, values: dict[str, Any]) -> dict[str, Any]:
        """Ask server 0 what to do: see Leases."""
        return parse_json(self.tell(self.links[0], Kind.LEASE, json_frame(values))[0])

    def set_turn(self, values: dict[str, Any]) -> None:
        """Set at server 0 what comes next."""
        self.tell(self.links[0], Kind.TURN, json_frame(values))

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: str | Path, delta: bool = False) -> None:
        """Let the servers write their rows of this moment; `saved` has the files.

        A server has its own folder for what it writes and reads, the checkpoints of the run,
        and is told no more than a name in there: the last part of `folder`.
        """
        self.tell_all(Kind.SAVE, json_frame({"name": Path(folder).name, "delta": delta}))

    def saved(self) -> dict[str, Any]:
        """Wait until the rows are written: file -> bytes and checksum."""
        files: dict[str, Any] = {}
        for link in self.links:
            while (report := parse_json(self.tell(link, Kind.SAVED)[0]))["running"]:
                time.sleep(0.02)
            if "error" in report:
                raise ServerError(f"{link.name}: {report['error']}")
            if isinstance(link, Replicas):
                link.tell_others(self.header(Kind.SAVED), [json_frame({"files": report["files"]})])
            files |= report["files"]
        return files

    def load(
        self,
        folder: str | Path,
        files: dict[str, Any],
        steps: dict[str, int],
        fresh: bool = False,
    ) -> None:
        """Let every server take over its rows of a checkpoint; fresh: and forget all others."""
        values = {"name": Path(folder).name, "files": files, "steps": steps, "fresh": fresh}
        self.tell_all(Kind.LOAD, json_frame(values))

    def stats(self) -> list[dict[str, Any]]:
        """What each server holds."""
        return [parse_json(frames[0]) for frames in self.tell_all(Kind.STATS)]
