"""Shared: memory through which a server gives a worker of the same host its rows.

Through a socket rows are copied by the kernel twice; here the server gathers them into a ring
(csrc/ring.h) that the worker reads, and messages only tell where they stand. The worker makes the
memory, a file without a name, and tells which of its descriptors has it. The server opens that one
where the system lets it, which it does for processes of one user, and believes nothing that the
worker says of it.

    SHARE   header, int64 process id, int64 descriptor, 16 bytes that the memory begins with
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import struct
from typing import Any

from shoal.kernels.core import has_core
from shoal.kernels.wire import ring_reader, ring_writer
from shoal.ps.address import stays_here
from shoal.ps.wire import BFLOAT16, COMPRESSED, SHARED, Header, Kind, WireError, parse_json

OFFER = struct.Struct("<qq16s")
HEAD, MARK_AT = 4096, 64  # bytes before the ring, and where they have the mark
CAPACITY = 1 << 24  # of a ring; what finds no room in it travels by the socket
NAME = "shoal-rows"
log = logging.getLogger("shoal")


def can_share() -> bool:
    """Whether this machine has what it takes: Linux, and the native core."""
    return hasattr(os, "memfd_create") and has_core()


class Offered:
    """Memory that a worker made; number: how many its connection made before."""

    def __init__(self, number: int):
        import fcntl  # not everywhere

        mark = secrets.token_bytes(16)
        self.file = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.file, HEAD + CAPACITY)
            fcntl.fcntl(
                self.file,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
            )
            os.pwrite(self.file, mark, MARK_AT)
            # Between the places of one ring and those of the next.
            self.ring: Any = ring_reader(self.file, CAPACITY, number * (1 << 40))
        except BaseException:  # raised again: no descriptor may stay open behind it
            self.close()
            raise
        self.frame = OFFER.pack(os.getpid(), self.file, mark)

    def close(self) -> None:
        """The server has opened it, or never will; the ring itself stays."""
        os.close(self.file)


class Offering:
    """What one connection offers, and the ring that its server has taken."""

    def __init__(self, name: str, address: str, wanted: bool):
        """wanted: whether there may be any."""
        self.name, self._address = name, address
        self.possible = wanted
        self.ring: Any = None  # where rows that come may stand
        self._offered: Offered | None = None  # the last one, until it is answered
        self._number = 0  # of the request that named it
        self.made = 0  # offers so far

    def flags(self, flags: int) -> int:
        """Those of a request for rows: packed ones do not come through memory."""
        may = self.made and self.possible and not flags & (BFLOAT16 | COMPRESSED)
        return flags | SHARED if may else flags

    def make(self, number: int) -> bytes | None:
        """What a new offer says, a request of this number; None: there is none to make.

        Memory is new each time: what a server was told to write where, and may have forgotten or
        will do late, concerns the old one.
        """
        if not self.made:
            self.possible = self.possible and can_share() and stays_here(self._address)
        if not self.possible:
            return None
        self.close()
        try:
            self._offered = Offered(self.made)
        except OSError as error:
            self._give_up(str(error))
            return None
        self.made, self._number = self.made + 1, number
        return self._offered.frame

    def take_answer(self, header: Header, frames: list[memoryview]) -> bool:
        """Use what the server has taken; whether the answer is one to an offer."""
        if self._offered is None or header.sequence != self._number:
            return False
        if header.kind == Kind.OK:
            self.ring = self._offered.ring
        else:
            self._give_up(str(parse_json(frames[1]).get("message")))
        self.close()
        return True

    def _give_up(self, why: str) -> None:
        self.possible, self.ring = False, None
        log.info("rows of %s come through its socket, not through memory: %s", self.name, why)

    def close(self) -> None:
        """Give back the descriptor of the last offer, answered or not."""
        if self._offered is not None:
            self._offered.close()
        self._offered = None


def open_offered(frame: memoryview | bytes) -> Any:
    """The ring that a worker offers, to write to: a WireError where it is not what it must be."""
    if len(frame) != OFFER.size:
        raise WireError(f"{len(frame)} bytes that do not say where memory is")
    if not can_share():
        raise WireError("this server shares no memory: it has no native core, or no Linux")
    pid, number, mark = OFFER.unpack(frame)
    place = f"/proc/{pid}/fd/{number}"
    if pid <= 0 or number < 0:
        raise WireError(f"no memory at {place}")
    try:
        # It may be anything, and to open some things does something: it is looked at first.
        seen = os.open(place, os.O_PATH | os.O_CLOEXEC)
        try:
            _check(seen, place)
            file = os.open(f"/proc/self/fd/{seen}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(seen)
    except OSError as error:
        raise WireError(
            f"{place} cannot be opened ({error.strerror}): the worker is of another user, or "
            "elsewhere, as in another container"
        ) from None
    try:
        if os.pread(file, len(mark), MARK_AT) != mark:
            raise ValueError("it is not the memory that was meant")
        return ring_writer(file, CAPACITY)
    except (OSError, ValueError) as error:  # of a file that may be any
        raise WireError(f"{place} is not taken: {error}") from None
    finally:
        os.close(file)


def _check(seen: int, place: str) -> None:
    """Refuse what is not memory of this user; the core looks at the rest."""
    facts, name = os.fstat(seen), os.readlink(f"/proc/self/fd/{seen}")
    if not stat.S_ISREG(facts.st_mode) or not name.startswith(f"/memfd:{NAME}"):
        raise WireError(f"{place} is no memory of a worker")
    if facts.st_uid != os.geteuid():
        raise WireError(f"{place} is of another user")
