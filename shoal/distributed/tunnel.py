"""Tunnel: what Gloo sends between hosts, encrypted; Gloo itself knows nothing of it.

Gloo of rank r listens on its own loopback address, 127.N.x.y, which every host has. On another
host a tunnel listens at that address, and hands what comes to the tunnel of rank r, through a
channel as in channel.py; that one hands it to Gloo. Ranks of one host need no tunnel;
the first of them stands in for those of other hosts.

    rank 0: Gloo ──► 127.N.0.2:p, its tunnel ═══ TLS ═══ rank 1's tunnel ──► 127.N.0.2:p, Gloo
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shoal.distributed.channel import HANDSHAKE_SECONDS, PROOF, context, proof
from shoal.distributed.gloo import options_at

BLOCK = 1 << 18  # bytes that are handed on at a time
LISTENS = "0A"  # state of a socket in /proc/net/tcp


class Tunnel:
    """This rank's end of the ways to all ranks of other hosts."""

    def __init__(self, store: dist.Store, rank: int, size: int, secret: bytes, address: str):
        """address: of this host, for the others."""
        self._store, self._rank, self._size = store, rank, size
        self._secret, self._address = secret, address
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []  # that listen until all ranks are connected
        threading.Thread(target=self._loop.run_forever, name="tunnel", daemon=True).start()

    def open(self, timeout: timedelta) -> Any:
        """Options of a Gloo group on loopback addresses, once all tunnels between them are open."""
        if self._rank == 0:
            self._store.set("network", str(2 + secrets.randbelow(250)))
        network = int(self._store.get("network"))

        def place_of(host_index: int) -> str:
            return f"127.{network}.{(host_index + 1) >> 8}.{(host_index + 1) & 255}"

        own_address = place_of(self._rank)
        options = options_at(own_address, timeout)
        self._gloo = (own_address, _port_at(own_address))
        port = self._call(self._listen())
        self._store.set(f"end/{self._rank}", json.dumps([self._address, port, self._gloo[1]]))
        ends = [json.loads(self._store.get(f"end/{other}")) for other in range(self._size)]
        if self._rank == min(r for r, (host, _, _) in enumerate(ends) if host == self._address):
            # One stands in for all of a host.
            for other, (host, port, gloo_port) in enumerate(ends):
                if host != self._address:
                    self._call(self._stand_in(place_of(other), gloo_port, host, port))
        self._wait_for_all("open")
        return options

    def stop_listening(self) -> None:
        """Call it when the group is made: strangers then find nothing that they could fill."""
        self._wait_for_all("connected")
        self._call(self._close_servers())

    def _wait_for_all(self, stage: str) -> None:
        self._store.set(f"{stage}/{self._rank}", "1")
        self._store.wait([f"{stage}/{other}" for other in range(self._size)])

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> int:
        """Accept tunnels of other ranks; returns the port."""
        server = await asyncio.start_server(
            self._let_in,
            self._address,
            0,
            ssl=context(listens=True),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = _number(writer)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            peer_proof = await asyncio.wait_for(reader.readexactly(PROOF), HANDSHAKE_SECONDS)
            if hmac.compare_digest(peer_proof, proof(self._secret, number, listens=False)):
                writer.write(proof(self._secret, number, listens=True))
                await self._join(reader, writer, *await asyncio.open_connection(*self._gloo))
        writer.close()

    async def _stand_in(self, place: str, gloo_port: int, host: str, port: int) -> None:
        """Listen where another host's rank does, for ranks of ours."""

        async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                if _user_of(writer.get_extra_info("peername")) == os.getuid():
                    far_reader, far_writer = await asyncio.open_connection(
                        host, port, ssl=context(listens=False), limit=BLOCK
                    )
                    number = _number(far_writer)
                    far_writer.write(proof(self._secret, number, listens=False))
                    peer_proof = await asyncio.wait_for(
                        far_reader.readexactly(PROOF), HANDSHAKE_SECONDS
                    )
                    if hmac.compare_digest(peer_proof, proof(self._secret, number, listens=True)):
                        await self._join(reader, writer, far_reader, far_writer)
                    far_writer.close()
            writer.close()

        self._servers.append(await asyncio.start_server(hand_on, place, gloo_port, limit=BLOCK))

    async def _close_servers(self) -> None:
        """Keep the connections that there are, and accept no more."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward in both directions until one end is gone, then close both."""
        for stream in (writer, far_writer):
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pumps = [
            asyncio.ensure_future(_pump(reader, far_writer)),
            asyncio.ensure_future(_pump(far_reader, writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        far_writer.close()
        writer.close()

    def close(self) -> None:
        """End all ways."""
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()


def _number(writer: asyncio.StreamWriter) -> bytes:
    number = writer.get_extra_info("ssl_object").get_channel_binding("tls-unique")
    assert isinstance(number, bytes)
    return number


def _sockets() -> list[tuple[str, str, int]]:
    """(address:port as the kernel writes it, state, user) of this host's sockets."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [(fields[1], fields[3], int(fields[7])) for fields in lines]


def _kernels_way(address: str) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}"


def _port_at(address: str) -> int:
    """The port at which this process listens on an address that only it uses."""
    kernel_address = _kernels_way(address)
    ports = [
        place[9:]
        for place, state, _ in _sockets()
        if state == LISTENS and place[:8] == kernel_address
    ]
    return int(ports[-1], 16)


def _user_of(peer: tuple[str, int]) -> int | None:
    """The user whose process connected to us from this host."""
    kernel_address = f"{_kernels_way(peer[0])}:{peer[1]:04X}"
    return next((user for place, _, user in _sockets() if place == kernel_address), None)
