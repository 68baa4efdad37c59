"""Joining: how a rank comes to the place where all ranks of its run meet.

Our own launcher, and `set_rank`, name a meeting (SHOAL_MEET); its guests have proved who they are.
Other launchers (torchrun, TorchX, Slurm) name the address of a TCPStore instead: who may reach that
one is for them to say.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch.distributed as dist

from shoal.world.channel import Place, read_secret
from shoal.world.hosts import WorldError, is_loopback, look_up
from shoal.world.liveness import BEAT
from shoal.world.meeting import Guest, Meeting
from shoal.world.store import MeetingStore

MEET = "SHOAL_MEET"  # where; SHOAL_SECRET is what proves that we belong there
HOLDS = "SHOAL_HOLDS_MEETING"  # whether this rank holds it, and no launcher


class Joined:
    """A rank that has met all others: their store, until `close`."""

    def __init__(self, rank: int, size: int, address: str, port: int, timeout: float, name: str):
        """address, port: of the TCPStore of other launchers; name: what others may call us."""
        self._meeting: Meeting | None = None
        self._rank, self._size, self._timeout = rank, size, timeout
        if MEET in os.environ:
            self.store = self._meet()
        else:
            self.store = self._tcp_store(address, port)
        self._sign_in(name)

    def _meet(self) -> dist.Store:
        place, secret = Place.parse(os.environ[MEET]), read_secret(None)
        if os.environ.get(HOLDS) == "1":
            self._meeting = Meeting(place, secret)
        return MeetingStore(Guest(place, secret, self._timeout), self._timeout)

    def _tcp_store(self, address: str, port: int) -> dist.Store:
        hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        holds = self._rank == 0 and not hosted_by_agent
        look_up(address)
        listening = -1
        try:
            if holds and is_loopback(address):  # torch itself would listen everywhere
                listening = _listen_here(address, port)
            return dist.TCPStore(
                address,
                port,
                self._size,
                is_master=holds,
                timeout=timedelta(seconds=self._timeout),
                wait_for_workers=False,
                master_listen_fd=listening if listening >= 0 else None,
            )
        except (RuntimeError, ValueError, OSError) as error:
            if "EADDRINUSE" in str(error) or "already in use" in str(error).lower():
                raise WorldError(
                    f"port {port} on {address} is in use by another program; choose another --port"
                ) from error
            raise WorldError(
                f"rank {self._rank} found no rank 0 at {address}:{port} within "
                f"{self._timeout:g} s; check --ip and --port, and that the first host was started"
            ) from error

    def _sign_in(self, name: str) -> None:
        """Wait until everybody is here."""
        prefix = f"shoal/joined/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
        self.store.set(f"{prefix}{self._rank}", name)
        keys = [f"{prefix}{rank}" for rank in range(self._size)]
        try:
            with BEAT.waiting("the start of the other ranks", bounded=True):
                self.store.wait(keys, timedelta(seconds=self._timeout))
        except dist.DistStoreError as error:
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise WorldError(
                f"{self._size - len(missing)} of {self._size} processes joined within "
                f"{self._timeout:g} s; missing ranks: {', '.join(map(str, missing))}. Start the "
                "other hosts, correct --world_size / --group_offset, or raise launch.join_timeout"
            ) from error

    def close(self) -> None:
        """Let nobody join any more."""
        if self._meeting is not None:
            self._meeting.close()


def _listen_here(address: str, port: int) -> int:
    """A listening socket on this address alone; its descriptor, which the store will own."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(128)
        return made.detach()
