"""Caller: a worker as servers know it, and what all its connections share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import zmq

from shoal.ps.address import check_private, endpoint
from shoal.ps.context import Context
from shoal.ps.curve import use_keys
from shoal.ps.keys import Keys
from shoal.ps.wire import Header, Kind

PING_SECONDS = 1.0
LOOK_SECONDS = 0.05  # the same, where another server has the same rows


class Caller:
    """A worker's number and session, its keys, and what was heard of the servers."""

    def __init__(
        self,
        addresses: Sequence[str],
        worker: int,
        keys: Keys | None,
        timeout: float,
        session: int | None,
        plain: bool,
        recovery: float = 0.0,
        shared_memory: bool = True,
        replicas: int = 1,
    ):
        """recovery: seconds that a server may take to come back; 0: one that is gone is lost.

        shared_memory: whether rows of servers on this host may come through it.
        replicas: servers that hold the same rows.
        """
        if keys is None and not plain:
            remedy = (
                "set strategy.ps.keys=FOLDER; on a network of your own, strategy.ps.plain=true "
                "does without"
            )
            check_private(addresses, "strategy.ps.addresses: the server", remedy)
        self.worker, self.keys, self.timeout, self.plain = worker, keys, timeout, plain
        self.recovery, self.replicas = recovery, replicas
        # What one server was told of memory, another would have to be told when the first is lost.
        self.shared_memory = shared_memory and replicas == 1
        self.session = session or secrets.randbits(63) | 1
        self.context = Context()
        self.bytes_sent = 0
        self.quiet = False  # another connection of this worker tells of servers that are lost
        self.failure = ""  # what a server said while nothing was asked
        # Called from the heartbeat when a failure stays unheard, as in a collective that never ends
        self.on_lost: Callable[[str], None] | None = None
        self._number = 0

    @property
    def patience(self) -> float:
        """Seconds of silence after which a server is given up."""
        return max(self.timeout, self.recovery)

    def connect(self, address: str) -> zmq.Socket:
        """A socket to a server, which need not be up yet."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        wait = PING_SECONDS if self.replicas == 1 else LOOK_SECONDS
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * wait))
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if self.keys is not None:
            use_keys(socket, self.keys)
        socket.connect(endpoint(address))
        return socket

    def header(self, kind: Kind, flags: int = 0, step: int = -1) -> Header:
        """The header of a new request."""
        self._number += 1
        return Header(kind, self.worker, flags, self._number, step, self.session)
