"""Sockets: of servers and of workers, encrypted where there are keys.

How much a server's peers may make it hold: before one has shown its key, a frame of PIECE bytes for
each connection, at most for 5 s; the system's limit of open files bounds the number of connections.
After that MOST_UNREAD messages of each peer in either direction, of which rows take 2 MiB at most
(or one row). Answers beyond that are dropped: a worker that reads asks again, one that does not has
lost them.
"""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from shoal.ps.address import check_private, endpoint
from shoal.ps.key_files import Keys
from shoal.ps.wire import PIECE

MOST_UNREAD = 1000
WHO_MAY = "inproc://zeromq.zap.01"  # where libzmq asks who may come in (RFC 27)


class Context(zmq.Context):
    """A ZeroMQ context that does not block when it is dropped without being closed.

    ZeroMQ's own waits until its sockets are closed, in whichever thread happens to collect it;
    after an error these may be garbage themselves, and then it waits for ever.
    """

    def __del__(self) -> None:
        pass


def connect(context: zmq.Context, address: str, keys: Keys | None, seconds: float) -> zmq.Socket:
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


def use_keys(socket: zmq.Socket, keys: Keys) -> None:
    """Make a worker's socket speak CURVE to the servers."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peer)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def listen(
    context: zmq.Context, bind: str, index: int, keys: Keys | None, plain: bool
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


class CurveGate:
    """Makes a socket a CURVE server and lets in only those who hold the workers' key."""

    def __init__(self, context: zmq.Context, socket: zmq.Socket, keys: Keys):
        self._allowed = z85.decode(keys.peer)
        self._questions = context.socket(zmq.REP)
        self._questions.setsockopt(zmq.LINGER, 0)
        self._questions.bind(WHO_MAY)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        threading.Thread(target=self._watch, name="gate", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                question = self._questions.recv_multipart()
                self._questions.send_multipart(self._decide(question))
            except zmq.ZMQError:  # the context ends, and waits for this socket to be closed
                self._questions.close()
                return

    def _decide(self, question: list[bytes]) -> list[bytes]:
        version, number = question[:2]
        has_worker_key = (
            len(question) == 7 and question[5] == b"CURVE" and question[6] == self._allowed
        )
        code, text = (b"200", b"OK") if has_worker_key else (b"400", b"unknown key")
        return [version, number, code, text, b"worker" if has_worker_key else b"", b""]
