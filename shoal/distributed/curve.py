"""Curve: ZeroMQ sockets that only processes with the right keys can use.

The protocol is CurveZMQ (ZeroMQ RFC 26, on CurveCP), as libzmq and libsodium carry it out: both
ends prove that they hold their key, every connection has keys of its own, and what travels is
encrypted and authenticated. Who may come in is decided by ZAP (ZeroMQ RFC 27).
"""

from __future__ import annotations

import hmac
import threading
from dataclasses import dataclass

import zmq
from zmq.utils import z85

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks who may come in


@dataclass(frozen=True)
class CurveKeys:
    """A process's own key pair, and the public key of those it talks to, all in Z85."""

    public: bytes
    secret: bytes
    peer: bytes


def derive_keys(secret: bytes) -> CurveKeys | None:
    """The key pair that all hosts of a run share, made from its secret; None without a secret.

    HKDF with SHA-256 (RFC 5869): a secret is any random text, a key of Curve25519 has 32 bytes.
    """
    if not secret:
        return None
    extracted = hmac.digest(b"shoal", secret, "sha256")
    private = z85.encode(hmac.digest(extracted, b"curve25519 of a run\x01", "sha256"))
    public = zmq.curve_public(private)
    return CurveKeys(public, private, peer=public)


class Context(zmq.Context):
    """A ZeroMQ context that does not block when it is dropped without being closed.

    ZeroMQ's own waits until its sockets are closed, in whichever thread happens to collect it;
    after an error these may be garbage themselves, and then it waits for ever.
    """

    def __del__(self) -> None:
        pass


def use_keys(socket: zmq.Socket, keys: CurveKeys) -> None:
    """Make a connecting socket speak CURVE."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peer)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class CurveGate:
    """Makes a listening socket speak CURVE, and lets in only those who hold the peer's key."""

    def __init__(self, context: zmq.Context, socket: zmq.Socket, keys: CurveKeys):
        self._allowed = z85.decode(keys.peer)
        self._questions = context.socket(zmq.REP)
        self._questions.setsockopt(zmq.LINGER, 0)
        self._questions.bind(ZAP_ADDRESS)
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
        has_key = len(question) == 7 and question[5] == b"CURVE" and question[6] == self._allowed
        code, text = (b"200", b"OK") if has_key else (b"400", b"unknown key")
        return [version, number, code, text, b"peer" if has_key else b"", b""]
