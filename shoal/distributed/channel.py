"""Channel: a connection between processes of one run, which no other process can open or read.

On one host it is a Unix socket in a folder that only the user can enter. Between hosts it is TLS
whose keys are agreed without certificates; both ends then prove that they know the secret of the
run, over a number that only the two ends of this very connection have in common. Who sits between
two ends has another number with each, and can prove nothing.
"""

from __future__ import annotations

import hmac
import os
import random
import socket
import ssl
import stat
import struct
import time
from dataclasses import dataclass

from shoal.distributed.hosts import WorldError, is_loopback, look_up, private_folder

MEET = "SHOAL_MEET"  # variable: where processes meet; SHOAL_SECRET proves who belongs there
HOLDS = "SHOAL_HOLDS_MEETING"  # 1: this rank holds the meeting, and no launcher
HANDSHAKE_SECONDS = 5.0  # for the whole handshake; a peer without a proof by then is cut off
LARGEST = 1 << 20  # bytes of a message
PROOF = 32  # bytes of HMAC-SHA256
NO = bytes(PROOF)  # in the place of a proof: yours is wrong, and to try again is of no use
CIPHERS = "AECDH-AES256-SHA:AECDH-AES128-SHA:@SECLEVEL=0"  # forward secret, no certificates


NOT_LET_IN = "did not let us in: give every host the same launch.secret, and check --ip and --port"
LEFT = ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError  # and no word of TLS's


class PeerRefused(WorldError):
    """The other end does not know our secret, or is no process of a run."""


@dataclass(frozen=True)
class MeetingPlace:
    """The meeting place of processes: a Unix socket (path), or an address of the first host."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> MeetingPlace:
        """The place that `text` wrote down."""
        if text.startswith("unix:"):
            return cls(path=text[5:])
        host, _, port = text.rpartition(":")
        return cls(host=host, port=int(port))

    @classmethod
    def named(cls, host: str, port: int) -> MeetingPlace:
        """The meeting place at an address; for loopback, a Unix socket in the user's folder."""
        path = str(private_folder() / f"port-{port}") if is_loopback(host) else ""
        return cls(path, host, port)

    @property
    def text(self) -> str:
        """For a variable of the environment."""
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else self.path

    def listen(self) -> socket.socket:
        """A socket that listens here and nowhere else; OSError where that cannot be."""
        address: str | tuple
        if self.path:
            listener, address = socket.socket(socket.AF_UNIX), self.path
            if os.path.exists(self.path) and not self._is_taken():
                os.unlink(self.path)  # a run that was killed left it
        else:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1024)  # connections that the system keeps until they are accepted
        except OSError:
            listener.close()
            raise
        return listener

    def _is_taken(self) -> bool:
        try:
            self._connect(1.0).close()
        except OSError:
            return False
        return True

    def open(self, secret: bytes, timeout: float) -> socket.socket:
        """Open a channel to the process that listens here, retrying until it accepts.

        Fails at once where the listener does not know our secret.
        """
        if self.host:
            look_up(self.host)
        # Seconds between two tries; between hosts they grow.
        deadline, pause = time.monotonic() + timeout, 0.02 if self.path else 0.1
        while True:
            try:
                channel = self._connect(max(1.0, timeout / 10))
                if self.path:
                    channel.settimeout(None)
                    return channel
                return secured(channel, secret, listens=False)
            except OSError as error:  # no listener, or its queue is full
                if time.monotonic() > deadline:
                    raise WorldError(
                        f"nobody answered at {self} within {timeout:g} s "
                        f"({error.strerror or error}); start the first host (--group_offset=0), "
                        "check --ip and --port, or raise launch.join_timeout"
                    ) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # many are not to come at one moment
            if not self.path:
                pause = min(2 * pause, 1.0)

    def _connect(self, timeout: float) -> socket.socket:
        if not self.path:
            return socket.create_connection((self.host, self.port), timeout=timeout)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


def read_secret(path: str | None) -> bytes:
    """The secret of a run: of a file that only we can read, or of SHOAL_SECRET; b"" for none."""
    if path is None:
        secret, source = os.environ.get("SHOAL_SECRET", "").encode(), "SHOAL_SECRET"
        if not secret:
            return b""
    else:
        source = f"launch.secret={path}"
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                secret = file.read(4096).strip()
        except OSError as error:
            raise ValueError(f"{source} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise ValueError(f"{source} can be read by others: chmod 600 {path}")
    if len(secret) < 16:  # who records a proof must not be able to guess
        raise ValueError(
            f"{source} has {len(secret)} bytes; a secret has at least 16, random ones: "
            "(umask 077; head -c 32 /dev/urandom | base64 > FILE)"
        )
    return secret


def secured(plain: socket.socket, secret: bytes, listens: bool) -> ssl.SSLSocket:
    """A TLS channel over a connection, whose other end has proved that it knows the secret.

    Refused where it has not. Who does not listen gets an OSError where the other end left without
    an answer: it may have had no room, and another try may do.
    """
    peer = peer_of(plain)
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    plain.settimeout(HANDSHAKE_SECONDS)
    channel: socket.socket = plain
    try:
        channel = context(listens).wrap_socket(plain, server_side=listens)
        number = channel.get_channel_binding("tls-unique")
        assert number is not None
        own_proof, peer_proof = proof(secret, number, listens), proof(secret, number, not listens)
        if not listens:
            channel.sendall(own_proof)
        knows = hmac.compare_digest(_receive(channel, PROOF, deadline), peer_proof)
        if listens:
            channel.sendall(own_proof if knows else NO)
        if not knows:
            raise PeerRefused(
                f"{peer} does not know the secret of this run (launch.secret)"
                if listens
                else f"{peer} {NOT_LET_IN}"
            )
    except (OSError, EOFError, PeerRefused) as error:  # SSLError is an OSError
        channel.close()
        if isinstance(error, PeerRefused):
            raise
        if listens:
            raise PeerRefused(
                f"{peer} did not prove that it knows the secret of this run"
            ) from error
        if isinstance(error, ssl.SSLError) and not isinstance(error, LEFT):
            raise PeerRefused(f"{peer} {NOT_LET_IN}") from error
        raise ConnectionError(f"{peer} left before it let us in: {error}") from error
    channel.settimeout(None)
    return channel


def context(listens: bool) -> ssl.SSLContext:
    """A TLS context without certificates: it encrypts, and does not identify the peer."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    # TLS 1.3 has no keys without certificates, and Python no other number of a connection.
    tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_2
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    tls.set_ciphers(CIPHERS)
    return tls


def proof(secret: bytes, number: bytes, listens: bool) -> bytes:
    """The proof that one end of the connection with this number knows the secret."""
    role = b"shoal: who listens " if listens else b"shoal: who comes "
    return hmac.digest(secret, role + number, "sha256")


def peer_of(connection: socket.socket) -> str:
    """The other end of a connection, for messages: its address."""
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return "a process that has left"
    return f"{host}:{port}"


def _receive(connection: socket.socket, count: int, deadline: float | None = None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError("the other end is gone")
        parts += part
    return bytes(parts)


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send one message of several parts."""
    body = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    if len(body) > LARGEST:
        raise ValueError(f"a message of {len(body)} bytes; at most {LARGEST} may travel")
    connection.sendall(struct.pack("<I", len(body)) + body)


def receive(connection: socket.socket) -> list[bytes]:
    """The parts of the next message; EOFError where none will come, ValueError for another's."""
    (size,) = struct.unpack("<I", _receive(connection, 4))
    if size > LARGEST:
        raise ValueError(f"a message of {size} bytes; at most {LARGEST} may travel")
    body = _receive(connection, size)
    parts, position = [], 0
    while position < size:
        if position + 4 > size:
            raise ValueError("a message that ends too early")
        (length,) = struct.unpack_from("<I", body, position)
        position += 4 + length
        if position > size:
            raise ValueError("a message that ends too early")
        parts.append(body[position - length : position])
    return parts
