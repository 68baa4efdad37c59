"""Copies of an artifact's files that all processes of a service map: each is in memory once.

What is served is a copy, since its files may be cut or replaced (`private` in artifact/files.py).
The parent makes an empty file in memory for each checksum and hands it to the processes that ask.
The first of them fills it, under a lock, and seals it: from then on nobody can change it. When none
maps it any more, the parent closes it, and its memory is free.

This file imports neither torch nor numpy: the parent stays small.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.files.durable import open_regular, write_all

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TURN = "turn"  # a file that is a lock: its holder loads
UNUSED_SECONDS = 60.0  # since somebody asked, before a copy that nobody maps is closed
MESSAGE_BYTES = 1 << 16


class CopyStore:
    """The parent's side: files in memory by checksum, and which artifacts passed their trial."""

    def __init__(self) -> None:
        self.copies: dict[str, int] = {}  # checksum -> descriptor
        self._requested: dict[str, float] = {}  # checksum -> when somebody asked for it
        self._tried: set[str] = set()

    def answer(self, link: socket.socket) -> None:
        """Answer one request of a process; its end of the link is a `SharedCopies`."""
        data = link.recv(MESSAGE_BYTES)
        if not data:
            raise OSError("the process has ended")
        request = json.loads(data)
        if "copy" in request:
            socket.send_fds(link, [b"{}"], [self._copy(str(request["copy"]))])
        elif "was_tried" in request:
            link.send(json.dumps(request["was_tried"] in self._tried).encode())
        elif "tried" in request:
            self._tried.add(str(request["tried"]))

    def sweep(self) -> None:
        """Close the copies that no process has mapped."""
        limit = time.monotonic() - UNUSED_SECONDS
        for name, copy in list(self.copies.items()):
            if name != TURN and self._requested[name] < limit and not is_open(copy):
                os.close(self.copies.pop(name))

    def close(self) -> None:
        """Close all copies here; who maps one keeps it."""
        for copy in self.copies.values():
            os.close(copy)
        self.copies.clear()

    def _copy(self, name: str) -> int:
        if name not in self.copies:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            self.copies[name] = os.memfd_create("shoal-artifact", flags)
        self._requested[name] = time.monotonic()
        return self.copies[name]


class SharedCopies:
    """The side of a process that serves. link: a pair of packet sockets' end."""

    def __init__(self, link: socket.socket):
        self._link = link
        self._lock = threading.Lock()

    def open(self, path: Path, facts: Mapping[str, Any]) -> int:
        """A descriptor of the copy of a file with these `bytes` and this `sha256`.

        ValueError where the file is another one: then nothing is kept of it.
        """
        copy = self._ask_for(facts["sha256"])
        try:
            with _locked(copy) as held:
                if fcntl.fcntl(copy, fcntl.F_GET_SEALS) != SEALS:
                    _fill(held, path, facts)
                    fcntl.fcntl(held, fcntl.F_ADD_SEALS, SEALS)
            return copy
        except BaseException:
            os.close(copy)
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context of loading: one process at a time, while the others answer."""
        lock = self._ask_for(TURN)
        try:
            with _locked(lock):
                yield
        finally:
            os.close(lock)

    def was_tried(self, sha256: str) -> bool:
        """Whether the artifact with this manifest has passed its trial in another process."""
        with self._lock:
            self._link.send(json.dumps({"was_tried": sha256}).encode())
            return bool(json.loads(self._link.recv(MESSAGE_BYTES) or b"false"))

    def add_tried(self, sha256: str) -> None:
        """The artifact with this manifest has passed its trial."""
        self._link.send(json.dumps({"tried": sha256}).encode())

    def _ask_for(self, name: str) -> int:
        with self._lock:
            self._link.send(json.dumps({"copy": name}).encode())
            _, descriptors, _, _ = socket.recv_fds(self._link, MESSAGE_BYTES, 1)
        if not descriptors:
            raise OSError("the parent of this process gives no copies")
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]


@contextmanager
def _locked(copy: int) -> Iterator[int]:
    """Context that has a copy for itself: a descriptor of its own, to write to.

    All descriptors that were handed over are one to the system, which locks by opening.
    """
    held = os.open(f"/proc/self/fd/{copy}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield held
    finally:
        os.close(held)


def _fill(copy: int, path: Path, facts: Mapping[str, Any]) -> None:
    """Write a file into its copy; who was killed while doing so may have left a part there."""
    os.ftruncate(copy, 0)
    digest, size = hashlib.sha256(), 0
    with open_regular(path, links=False) as file, open(copy, "wb", 0, closefd=False) as out:
        while size <= facts["bytes"] and (part := file.read(1 << 20)):
            size += len(part)
            digest.update(part)
            write_all(out, part)
    if (size, digest.hexdigest()) != (facts["bytes"], facts["sha256"]):
        os.ftruncate(copy, 0)
        raise ValueError(f"{path.name} fails its checksum")


def is_open(copy: int) -> bool:
    """Whether a process has opened this copy, or maps it: then nobody gets a lease to write."""
    own = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except OSError:
        return True
    finally:
        os.close(own)
