"""Listening: a server's socket, and how much its peers may make it hold.

Before a peer has shown its key: one frame of PIECE bytes for each connection, at most for
HANDSHAKE_SECONDS; the system's limit of open files bounds the number of connections. After that:
MOST_UNREAD messages of each peer in either direction, of which a part of rows takes some 640 KiB.
Answers beyond that are dropped: a worker that reads asks again, one that does not has lost them.
"""

from __future__ import annotations

import zmq

from shoal.ps.address import check_private, endpoint
from shoal.ps.curve import Gate
from shoal.ps.keys import Keys
from shoal.ps.wire import PIECE

HANDSHAKE_SECONDS = 5.0
MOST_UNREAD = 1000
WAITING_CONNECTIONS = 512
POLL_SECONDS = 0.2


def listen(
    context: zmq.Context, bind: str, index: int, keys: Keys | None, plain: bool
) -> zmq.Socket:
    """The socket of a server; without keys only this host reaches it, unless `plain` insists."""
    if keys is None and not plain:
        remedy = "start the server with --keys=FOLDER; on a network of your own, --plain"
        check_private([bind], f"server {index}:", remedy)
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.setsockopt(zmq.RCVTIMEO, int(1000 * POLL_SECONDS))
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, PIECE)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_SECONDS))
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    socket.setsockopt(zmq.BACKLOG, WAITING_CONNECTIONS)
    if keys is not None:
        Gate(context, socket, keys)
    try:
        socket.bind(endpoint(bind))
    except zmq.ZMQError as error:
        socket.close(0)
        raise ValueError(
            f"server {index} cannot listen on {bind}: {error.strerror}; choose a free port and "
            "an address of this host"
        ) from error
    return socket
