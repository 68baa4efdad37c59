"""Sockets: of servers and of workers, encrypted where there are keys.

How much a server's peers may make it hold: before one has shown its key, a frame of PIECE bytes for
each connection, at most for 5 s; the system's limit of open files bounds the number of connections.
After that MOST_UNREAD messages of each peer in either direction, of which rows take 2 MiB at most
(or one row). Answers beyond that are dropped: a worker that reads asks again, one that does not has
lost them.
"""

from __future__ import annotations

import zmq

from shoal.distributed.curve import CurveGate, CurveKeys, use_keys
from shoal.ps.address import check_private, endpoint
from shoal.ps.wire import PIECE

MOST_UNREAD = 1000


def connect(
    context: zmq.Context, address: str, keys: CurveKeys | None, seconds: float
) -> zmq.Socket:
    """The socket of a worker to a server, which need not be up yet; it waits so long to receive."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(1000 * seconds))
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if keys is not None:
        use_keys(socket, keys)
    socket.connect(endpoint(address))
    return socket


def listen(
    context: zmq.Context, bind: str, index: int, keys: CurveKeys | None, plain: bool
) -> zmq.Socket:
    """The socket of a server; without keys only this host reaches it, unless `plain` insists."""
    if keys is None and not plain:
        remedy = "start the server with --keys=FOLDER; on a network of your own, --plain"
        check_private([bind], f"server {index}:", remedy)
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.setsockopt(zmq.RCVTIMEO, 200)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, PIECE)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    socket.setsockopt(zmq.BACKLOG, 512)
    if keys is not None:
        CurveGate(context, socket, keys)
    try:
        socket.bind(endpoint(bind))
    except zmq.ZMQError as error:
        socket.close(0)
        raise ValueError(
            f"server {index} cannot listen on {bind}: {error.strerror}; choose a free port and "
            "an address of this host"
        ) from error
    return socket
