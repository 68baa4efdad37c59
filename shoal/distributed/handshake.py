"""Door: where connections wait until they have proved that they belong to the run.

Anybody who reaches the port can connect, so places are few and cost little. A connection that has
sent nothing waits in a list, without a thread; when no place is free, the oldest of these is
dropped. One that has sent something gets a thread, and HANDSHAKE_SECONDS for its proof. One address
has a share of the places. So neither silent connections nor those of one address keep others out;
who is turned away tries again (Place.open).
"""

from __future__ import annotations

import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from shoal.distributed.channel import HANDSHAKE_SECONDS, MeetingPlace, PeerRefused, peer_of, secured

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Silent:
    """A connection that has sent nothing yet."""

    address: str  # whose share of the places it takes
    deadline: float


class Door:
    """Accepts connections at a place until `close`; `serve` gets those that have proved theirs."""

    places = 256  # connections at a time that have proved nothing yet
    per_address = 64  # of these, how many one address may have

    def __init__(self, place: MeetingPlace, secret: bytes, serve: Callable[[socket.socket], None]):
        """serve: called in a thread of the connection. OSError where nothing can listen there."""
        self._place, self._secret, self._serve = place, secret, serve
        self._silent: dict[socket.socket, Silent] = {}  # oldest first
        self._proving: Counter[str] = Counter()  # by address; also changed by their threads
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()  # by what they did
        self._over = False
        self._listener = place.listen()
        self._listener.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._over = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, selectors.EVENT_READ)
            while not self._over:
                ready = [key.fileobj for key, _ in self._selector.select(self._seconds_left())]
                for connection in ready:
                    if connection in self._silent:
                        self._speaks(connection)
                if self._listener in ready:
                    self._accept_some()
                while self._silent and self._seconds_left() == 0:
                    self._drop(next(iter(self._silent)))
            for connection in list(self._silent):
                self._drop(connection)

    def _seconds_left(self) -> float | None:
        """Until the oldest silent connection is dropped; None without any."""
        oldest = next(iter(self._silent.values()), None)
        return None if oldest is None else max(0.0, oldest.deadline - time.monotonic())

    def _accept_some(self) -> None:
        """Few enough that none of them is dropped before what it sent is looked at."""
        for _ in range(16):
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # closed, or the system has no room
                if not self._over:
                    time.sleep(0.1)
                return
            if self._place.path:  # only this user can come here
                self._start(self._serve, connection)
            else:
                self._let_wait(connection, _share_of(peer[0]))

    def _let_wait(self, connection: socket.socket, address: str) -> None:
        if self._make_room(address):
            deadline = time.monotonic() + HANDSHAKE_SECONDS
            self._silent[connection] = Silent(address, deadline)
            self._selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def _make_room(self, address: str) -> bool:
        """Whether there is a place for one more; the oldest silent connection may go for it."""
        with self._lock:
            proving = self._proving[address], self._proving.total()
        same_address = [one for one, silent in self._silent.items() if silent.address == address]
        if len(same_address) + proving[0] >= self.per_address:
            candidates = same_address
        elif len(self._silent) + proving[1] >= self.places:
            candidates = list(self._silent)
        else:
            return True
        if candidates:
            self._drop(candidates[0])
        return bool(candidates)

    def _drop(self, connection: socket.socket) -> None:
        del self._silent[connection]
        self._selector.unregister(connection)
        self._refuse("silent", f"{peer_of(connection)} sent nothing")
        connection.close()

    def _speaks(self, connection: socket.socket) -> None:
        """Start the handshake of a connection that has sent something."""
        address = self._silent.pop(connection).address
        self._selector.unregister(connection)
        with self._lock:
            self._proving[address] += 1
        if not self._start(self._let_prove, connection, address):
            self._forget(address)

    def _start(
        self, target: Callable[..., None], connection: socket.socket, *arguments: str
    ) -> bool:
        """Whether there is a thread for a connection; without one it is closed."""
        try:
            threading.Thread(target=target, args=(connection, *arguments), daemon=True).start()
        except RuntimeError:  # the system has no room
            connection.close()
            return False
        return True

    def _let_prove(self, connection: socket.socket, address: str) -> None:
        try:
            proved = secured(connection, self._secret, listens=True)
        except PeerRefused as error:
            self._refuse("no proof", str(error))
            return
        finally:
            self._forget(address)
        self._serve(proved)

    def _forget(self, address: str) -> None:
        with self._lock:
            self._proving -= Counter([address])

    def _refuse(self, kind: str, text: str) -> None:
        """Log it, unless many have done the same."""
        with self._lock:
            self._refused[kind] += 1
            count = self._refused[kind]
        if count <= 5:
            end = "; more of this kind are not logged" if count == 5 else ""
            log.warning("refused at %s: %s%s", self._place, text, end)


def _share_of(host: str) -> str:
    """Whose places a connection takes: those of its IPv4 address, or of its IPv6 network.

    One host may have all addresses of a network of 64 bits.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
