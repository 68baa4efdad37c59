"""Curve: encrypted sockets, and a gate that lets in only those who hold the workers' key."""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from shoal.ps.keys import Keys

ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks who may come in (RFC 27)


class Gate:
    """Makes a socket a CURVE server and answers libzmq's questions about its peers."""

    def __init__(self, context: zmq.Context, socket: zmq.Socket, keys: Keys):
        self._allowed = z85.decode(keys.peer)
        self._asked = context.socket(zmq.REP)
        self._asked.setsockopt(zmq.LINGER, 0)
        self._asked.bind(ADDRESS)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self._thread = threading.Thread(target=self._watch, name="gate", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            try:
                question = self._asked.recv_multipart()
                self._asked.send_multipart(self._decide(question))
            except zmq.ZMQError:  # the context ends, and waits for this socket to be closed
                self._asked.close()
                return

    def _decide(self, question: list[bytes]) -> list[bytes]:
        version, number = question[:2]
        known = len(question) == 7 and question[5] == b"CURVE" and question[6] == self._allowed
        code, text = (b"200", b"OK") if known else (b"400", b"unknown key")
        return [version, number, code, text, b"worker" if known else b"", b""]


def use_keys(socket: zmq.Socket, keys: Keys) -> None:
    """Make a worker's socket speak CURVE to the servers."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peer)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
