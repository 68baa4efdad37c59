"""Meeting: the place where the processes of a run find each other, and their messages there.

On one host it is a Unix socket in a folder that only the user can enter. Between hosts it is a port
of the first host, which only hosts with the secret of the run can use (streams.py).
"""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.distributed.hosts import WorldError, check_installed, is_loopback, private_folder

if TYPE_CHECKING:
    from shoal.distributed.streams import Streams

MEET = "SHOAL_MEET"  # variable: where processes meet; SHOAL_SECRET proves who belongs there
HOLDS = "SHOAL_HOLDS_MEETING"  # 1: this rank holds the meeting, and no launcher
LARGEST = 1 << 20  # bytes of a message
_openers: dict[int, Streams] = {}  # by process: what carries its channels to other hosts


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
        """A Unix socket that listens here; OSError where that cannot be."""
        listener = socket.socket(socket.AF_UNIX)
        if os.path.exists(self.path) and not self._is_taken():
            os.unlink(self.path)  # a run that was killed left it
        try:
            listener.bind(self.path)
            listener.listen(1024)  # connections that the system keeps until they are accepted
        except OSError:
            listener.close()
            raise
        return listener

    def _is_taken(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def open(self, secret: bytes, timeout: float) -> socket.socket:
        """Open a channel to the process that listens here, retrying until it accepts.

        Fails at once where the listener does not know our secret.
        """
        if not self.path:
            check_installed("several hosts")
            from shoal.distributed.curve import derive_keys
            from shoal.distributed.streams import Streams

            if os.getpid() not in _openers:
                _openers[os.getpid()] = Streams()
            opener = _openers[os.getpid()]
            return opener.connect(self.host, self.port, derive_keys(secret), timeout)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._connect()
            except OSError as error:  # no listener, or its queue is full
                if time.monotonic() > deadline:
                    raise WorldError(
                        f"nobody answered at {self} within {timeout:g} s "
                        f"({error.strerror or error}); start the first host (--group_offset=0), "
                        "check --ip and --port, or raise launch.join_timeout"
                    ) from error
            time.sleep(0.02 * random.uniform(0.5, 1.0))  # many are not to come at one moment

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


def read_secret(path: str | None) -> bytes:
    """The secret of a run, b"" for none: of a folder of `shoal keys make`, a file, or SHOAL_SECRET.

    Of such a folder it is the key of the workers. A file must be readable for its owner alone.
    """
    if path is not None and os.path.isdir(path):
        check_installed("keys")
        from shoal.distributed.key_files import read_keys

        return read_keys(path, "worker").secret
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
            "`shoal keys make FOLDER` makes some"
        )
    return secret


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
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
