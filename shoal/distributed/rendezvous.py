"""Rendezvous: where the processes of a run find each other, and whom it lets in.

One process holds it: bytes by name, which the others set, get, wait for, add to. All open a channel
to it (meeting.py). Nothing received is unpickled or evaluated, and a process that has not proved
that it belongs to the run is cut off before a single name is read.

Our own launcher, and `set_rank`, name its place (SHOAL_MEET). Other launchers (torchrun, TorchX,
Slurm) name the address of a TCPStore instead, and control who can reach that one.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from shoal.distributed.hosts import (
    WorldError,
    check_installed,
    is_loopback,
    listen_at,
    look_up,
    private_folder,
    which_it_has,
)
from shoal.distributed.liveness import BEAT
from shoal.distributed.meeting import HOLDS, LARGEST, MEET, MeetingPlace, read_secret, receive, send

if TYPE_CHECKING:
    from shoal.distributed.streams import Streams

NOTHING = struct.pack("<d", 0.0)


class Rendezvous:
    """Bytes by name, held by threads of this process until `close`."""

    members = 8192  # connections at a time that have proved to belong here
    room = 256 * LARGEST  # bytes of all names and values

    def __init__(self, place: MeetingPlace, secret: bytes = b""):
        self.place = place
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._free = threading.Semaphore(self.members)
        self._streams: Streams | None = None
        try:
            self._local = place if place.path else self._open_port(place, secret)
            self._listener = self._local.listen()
        except OSError as error:
            raise WorldError(_why_not(place, error)) from error
        threading.Thread(target=self._accept, name="rendezvous", daemon=True).start()

    def _open_port(self, place: MeetingPlace, secret: bytes) -> MeetingPlace:
        """Lead what comes to the port of other hosts to a socket of this process, and return it."""
        check_installed("several hosts")
        from shoal.distributed.curve import derive_keys
        from shoal.distributed.streams import Streams

        local = MeetingPlace(path=str(private_folder() / f"meeting-{place.port}"))
        self._streams = Streams()
        try:
            self._streams.listen(place.host, place.port, derive_keys(secret), local.path)
        except OSError:
            self._streams.close()
            raise
        return local

    def close(self) -> None:
        """Accept no more connections."""
        if self._streams is not None:
            self._streams.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        with suppress(OSError):
            os.unlink(self._local.path)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # the system has no room
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, ValueError):
            if not self._free.acquire(blocking=False):
                return
            try:  # until it leaves or sends nonsense: its own end reports the cause
                while True:
                    send(connection, *self.answer(receive(connection)))
            finally:
                self._free.release()

    def answer(self, words: list[bytes]) -> list[bytes]:
        """The answer to a request: verb, seconds to wait, name, values; ValueError for no request.

        It begins with b"1", or is [b""]: no, or not within that time.
        """
        if len(words) < 2 or len(words[1]) != len(NOTHING):
            raise ValueError("a request is a verb, a number of seconds and names")
        verb, seconds, *rest = words
        if verb in (b"get", b"wait"):
            (timeout,) = struct.unpack("<d", seconds)
            timeout = min(timeout, threading.TIMEOUT_MAX) if timeout > 0 else 0.0  # also of NaN
            with self._changed:
                if not self._changed.wait_for(lambda: self._has(rest), timeout):
                    return [b""]
                return [b"1", *(self._values[name] for name in rest if verb == b"get")]
        with self._changed:
            if verb == b"check":
                return [b"1" if self._has(rest) else b""]
            name, *arguments = rest
            old = self._values.get(name)
            if verb == b"delete":
                self._values.pop(name, None)
                return [b"1" if old is not None else b""]
            if verb == b"add":
                (number,) = arguments
                value = str(int(old or b"0") + int(number)).encode()
            elif verb == b"set":
                (value,) = arguments
            else:
                raise ValueError(f"unknown verb {verb!r}")
            self._bytes += len(value) - len(old or b"") + (len(name) if old is None else 0)
            if self._bytes > self.room:
                raise ValueError(f"more than {self.room} bytes of names and values")
            self._values[name] = value
            self._changed.notify_all()
            return [b"1", value]

    def _has(self, names: list[bytes]) -> bool:
        return all(name in self._values for name in names)


def _why_not(place: MeetingPlace, error: OSError) -> str:
    """Error for a place where nothing can listen."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {place.port} on {place.host} is in use by another program; choose another, in "
            "--port, or in the first entry of --workers"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"--ip={place.host} is no address of this host, {which_it_has()}; --ip is an address "
            "of the first host (--group_offset=0), the same in every command"
        )
    return f"cannot listen at {place}: {error.strerror or error}"


class RunStore(dist.Store):
    """A rendezvous as torch's stores are, for Gloo and NCCL.

    Each thread has its own channel. Keep it for as long as a PrefixStore of it is used: torch keeps
    only its own half of the object.
    """

    def __init__(self, place: MeetingPlace, secret: bytes, timeout: float):
        super().__init__()
        self._place, self._secret, self._timeout = place, secret, timedelta(seconds=timeout)
        self._own = threading.local()
        self._clones: list[RunStore] = []
        self._channel()

    def _channel(self) -> socket.socket:
        if not hasattr(self._own, "channel"):
            seconds = self._timeout.total_seconds()
            self._own.channel = self._place.open(self._secret, seconds)
        return self._own.channel

    def _ask(self, verb: str, *words: bytes, timeout: float = 0.0) -> list[bytes] | None:
        """The answer; None where it is no, or there was none within so many seconds."""
        try:
            send(self._channel(), verb.encode(), struct.pack("<d", timeout), *words)
            success, *rest = receive(self._channel())
        except (OSError, EOFError) as error:
            raise WorldError(f"the rendezvous at {self._place} is gone: {error}") from error
        return rest if success else None

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        return self._all("get", [key], self._timeout)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._all("get", keys, self._timeout)

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._all("wait", keys, self._timeout if timeout is None else timeout)

    def _all(self, verb: str, keys: list[str], timeout: timedelta) -> list[bytes]:
        seconds = timeout.total_seconds()
        values = self._ask(verb, *(key.encode() for key in keys), timeout=seconds)
        if values is None:
            raise dist.DistStoreError(f"wait timeout after {seconds:g} s, keys: {', '.join(keys)}")
        return values

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", *(key.encode() for key in keys)) is not None

    def add(self, key: str, amount: int) -> int:
        values = self._ask("add", key.encode(), str(amount).encode())
        assert values is not None
        return int(values[0])

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", key.encode()) is not None

    def clone(self) -> RunStore:
        self._clones.append(RunStore(self._place, self._secret, self._timeout.total_seconds()))
        return self._clones[-1]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Membership:
    """A rank that has met all others: their store, until `close`."""

    def __init__(self, rank: int, size: int, address: str, port: int, timeout: float, name: str):
        """address, port: of the TCPStore of other launchers; name: of this rank, for the others."""
        self._held: Rendezvous | None = None
        self.store: dist.Store
        if MEET in os.environ:
            place, secret = MeetingPlace.parse(os.environ[MEET]), read_secret(None)
            if os.environ.get(HOLDS) == "1":
                self._held = Rendezvous(place, secret)
            self.store = RunStore(place, secret, timeout)
        else:
            self.store = _tcp_store(rank, size, address, port, timeout)
        prefix = f"shoal/joined/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
        self.store.set(f"{prefix}{rank}", name)
        keys = [f"{prefix}{other}" for other in range(size)]
        try:
            with BEAT.waiting("the start of the other ranks", bounded=True):
                self.store.wait(keys, timedelta(seconds=timeout))
        except dist.DistStoreError as error:
            missing = [other for other, key in enumerate(keys) if not self.store.check([key])]
            raise WorldError(
                f"{size - len(missing)} of {size} processes joined within {timeout:g} s; missing "
                f"ranks: {', '.join(map(str, missing))}. Start the other hosts, correct "
                "--world_size / --group_offset, or raise launch.join_timeout"
            ) from error

    def close(self) -> None:
        """Stop accepting new members."""
        if self._held is not None:
            self._held.close()


def _tcp_store(rank: int, size: int, address: str, port: int, timeout: float) -> dist.Store:
    hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    holds = rank == 0 and not hosted_by_agent
    look_up(address)
    listening = None
    try:
        if holds and is_loopback(address):  # torch itself would listen everywhere
            listening = listen_at(address, port).detach()
        return dist.TCPStore(
            address,
            port,
            size,
            is_master=holds,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            master_listen_fd=listening,
        )
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "already in use" in str(error).lower():
            raise WorldError(
                f"port {port} on {address} is in use by another program; choose another --port"
            ) from error
        raise WorldError(
            f"rank {rank} found no rank 0 at {address}:{port} within {timeout:g} s; check --ip and "
            "--port, and that the first host was started"
        ) from error
