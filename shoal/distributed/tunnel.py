"""Tunnel: what Gloo sends between hosts, encrypted; Gloo itself knows nothing of it.

Gloo of rank r listens on its own loopback address, 127.N.x.y, which every host has. On another
host the tunnel of one rank listens at that address, and carries what connects there to the tunnel
of rank r (streams.py), which hands it to Gloo. Ranks of one host need no tunnel.

    rank 0: Gloo ──► 127.N.0.2:p, its tunnel ═══ CURVE ═══ rank 1's tunnel ──► 127.N.0.2:p, Gloo
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shoal.distributed.curve import derive_keys
from shoal.distributed.gloo import options_at
from shoal.distributed.streams import Streams

LISTENS = "0A"  # state of a socket in /proc/net/tcp
END_SECONDS = 2.0  # in which what is under way still arrives when a run ends


class Tunnel:
    """This rank's end of the connections to all ranks of other hosts."""

    def __init__(self, store: dist.Store, rank: int, size: int, secret: bytes, address: str):
        """address: of this host, for the others."""
        self._store, self._rank, self._size = store, rank, size
        self._keys, self._address = derive_keys(secret), address
        self._streams = Streams()

    def open(self, timeout: timedelta) -> Any:
        """Options of a Gloo group on loopback addresses, once all tunnels between them are open."""
        if self._rank == 0:
            self._store.set("network", str(2 + secrets.randbelow(250)))
        network = int(self._store.get("network"))

        def loopback_of(rank: int) -> str:
            return f"127.{network}.{(rank + 1) >> 8}.{(rank + 1) & 255}"

        own_address = loopback_of(self._rank)
        options = options_at(own_address, timeout)
        gloo_port = _port_at(own_address)
        port = self._streams.listen(self._address, 0, self._keys, (own_address, gloo_port))
        self._store.set(f"end/{self._rank}", json.dumps([self._address, port, gloo_port]))
        ends = [json.loads(self._store.get(f"end/{other}")) for other in range(self._size)]
        if self._rank == min(r for r, (host, _, _) in enumerate(ends) if host == self._address):
            # One rank stands in for the ranks of other hosts, for all of this host.
            for other, (host, port, gloo_port) in enumerate(ends):
                if host != self._address:
                    local = (loopback_of(other), gloo_port)
                    self._streams.forward(local, (host, port), self._keys, _is_own_user)
        self._wait_for_all("open")
        return options

    def stop_listening(self) -> None:
        """Let nobody else in; call it when the group is made."""
        self._wait_for_all("connected")
        self._streams.stop_listening()

    def _wait_for_all(self, stage: str) -> None:
        self._store.set(f"{stage}/{self._rank}", "1")
        self._store.wait([f"{stage}/{other}" for other in range(self._size)])

    def close(self) -> None:
        """End all connections."""
        self._streams.close(END_SECONDS)


def _sockets() -> list[tuple[str, str, int]]:
    """(address:port as the kernel writes it, state, user) of this host's sockets."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [(fields[1], fields[3], int(fields[7])) for fields in lines]


def _kernel_address(address: str) -> str:
    """An IPv4 address as /proc/net/tcp writes it."""
    return f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}"


def _port_at(address: str) -> int:
    """The port at which this process listens on an address that only it uses."""
    kernel_address = _kernel_address(address)
    ports = [
        place[9:]
        for place, state, _ in _sockets()
        if state == LISTENS and place[:8] == kernel_address
    ]
    return int(ports[-1], 16)


def _is_own_user(peer: tuple[str, int]) -> bool:
    """Whether a process of this user connected to us from this host."""
    kernel_address = f"{_kernel_address(peer[0])}:{peer[1]:04X}"
    users = [user for place, _, user in _sockets() if place == kernel_address]
    return users[:1] == [os.getuid()]
