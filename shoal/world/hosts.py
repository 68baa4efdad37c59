"""Hosts: finding the one where all meet, and the way that leads there."""

from __future__ import annotations

import socket
import struct
import time

SIOCGIFADDR = 0x8915  # Linux: the address of a network interface


class WorldError(RuntimeError):
    """The ranks could not find each other, or something in the group cannot work."""


def look_up(address: str) -> None:
    """Refuse a host name that means nothing, at once."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise WorldError(
            f"the host {address!r} is unknown ({error.strerror}); check --ip: it is the address of "
            "the first host"
        ) from error


def wait_for_host(address: str, port: int, timeout: float) -> None:
    """Wait until the first host listens."""
    look_up(address)
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1.0, timeout / 10)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorldError(
                    f"nobody answered at {address}:{port} within {timeout:g} s "
                    f"({error.strerror or error}); start the first host (--group_offset=0), check "
                    "--ip and --port, or raise launch.join_timeout"
                ) from error
        time.sleep(0.1)


def interface_towards(address: str) -> str | None:
    """Name of the network interface that leads to a host; None where that cannot be told."""
    try:
        import fcntl  # absent on Windows

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # chooses a route; sends nothing
            mine = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                except OSError:  # this interface has no address
                    continue
                if answer[20:24] == mine:
                    return name
    except (OSError, ImportError):
        pass
    return None
