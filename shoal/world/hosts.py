"""Hosts: what their addresses mean, and the way that leads there."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

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


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, never leaves this host."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name; who answers for it may say anything
        return False


def private_folder() -> Path:
    """A folder of this host that only this user can enter."""
    folder = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise WorldError(
            f"{folder} is not a folder that only you can enter: remove it, or name another place "
            "for such folders in TMPDIR"
        )
    return folder


def address_towards(address: str) -> str | None:
    """The address by which a host knows this one; None where that cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # chooses a route; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


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
