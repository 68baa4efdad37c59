"""Newcomers: connections to a port of this process that have not proved yet that they belong here.

Each takes one of `places`, of which one address has a share; where none is free, the oldest that
has sent nothing is cut off, or else the oldest. libzmq owns the connections: here they are known by
their file descriptors.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger("shoal")

MOST_REFUSALS = 5  # lines of the log about those who were refused
BYTES_RECEIVED = struct.Struct("<128xQ")  # in what Linux says of a connection (tcp_info)


@dataclass(frozen=True)
class Newcomer:
    """A connection to our port that has not proved yet that it belongs here."""

    peer: tuple  # address and port
    share: str  # whose share of the places it takes

    def __str__(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}" if self.peer else "a process that has left"


class Newcomers:
    """Connections to a port that have proved nothing yet; the log has a line of those refused."""

    places = 256  # connections at a time that have proved nothing yet
    per_address = 64  # of these, how many one address may have
    place = ""  # where we listen, for the log

    def __init__(self) -> None:
        self._newcomers: dict[int, Newcomer] = {}  # by file descriptor, oldest first
        self._refused: set[str] = set()  # shares of which a line was logged

    def __len__(self) -> int:
        return len(self._newcomers)

    def accept(self, descriptor: int) -> None:
        """Give a new connection a place; where none is free, another one loses its own."""
        peer = _peer_of(descriptor)
        share = _share_of(peer[0]) if peer else ""
        same = [number for number, other in self._newcomers.items() if other.share == share]
        if len(same) >= self.per_address:
            self._cut_off(same)
        elif len(self._newcomers) >= self.places:
            self._cut_off(list(self._newcomers))
        self._newcomers[descriptor] = Newcomer(peer, share)

    def admit(self, descriptor: int) -> None:
        """Forget a connection that has proved that it belongs here."""
        self._newcomers.pop(descriptor, None)

    def lose(self, descriptor: int) -> None:
        """Log a connection that ended before it proved anything."""
        newcomer = self._newcomers.pop(descriptor, None)
        if newcomer is not None:
            self._log_refusal(newcomer)

    def _cut_off(self, candidates: list[int]) -> None:
        """Cut off the oldest of them that has sent nothing, or else the oldest."""
        descriptor = next(filter(_is_silent, candidates), candidates[0])
        newcomer = self._newcomers.pop(descriptor)
        self._log_refusal(newcomer)
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getpeername()[:2] == newcomer.peer:  # and no other that came since
                connection.shutdown(socket.SHUT_RDWR)

    def _log_refusal(self, newcomer: Newcomer) -> None:
        """Log the first of an address, unless many have been logged."""
        if newcomer.share in self._refused or len(self._refused) == MOST_REFUSALS:
            return
        self._refused.add(newcomer.share)
        end = "; others are not logged" if len(self._refused) == MOST_REFUSALS else ""
        log.warning(
            "refused at %s: %s did not prove that it knows the secret of this run "
            "(launch.secret)%s",
            self.place,
            newcomer,
            end,
        )


def _peer_of(descriptor: int) -> tuple:
    """Address and port of the other end of a connection; () where it is gone already."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return tuple(connection.getpeername()[:2])
    except OSError:
        return ()


def _is_silent(descriptor: int) -> bool:
    """Whether a connection has received nothing yet; True where the system does not say."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.size)
        return BYTES_RECEIVED.unpack(state) == (0,)
    except (OSError, AttributeError, struct.error):
        return True


def _share_of(host: str) -> str:
    """Whose places a connection takes: those of its IPv4 address, or of its IPv6 network.

    One host may have all addresses of a network of 64 bits.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
