"""Caller: a worker as servers know it, and what all its connections share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from shoal.distributed.curve import Context, CurveKeys
from shoal.ps.address import check_private
from shoal.ps.sockets import connect
from shoal.ps.wire import Kind, MessageHeader

PING_SECONDS = 1.0
LOOK_SECONDS = 0.05  # the same, where another server has the same rows


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
        self.greeted = False  # whether all servers know the worker: from then on silence counts
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
