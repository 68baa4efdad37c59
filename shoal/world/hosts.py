"""Hosts: what their addresses mean, and the way that leads there."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import stat
import sys
import tempfile
from pathlib import Path

# Where a `struct sockaddr` of Linux has its address, and how long that is.
BYTES_OF: dict[int, tuple[int, int]] = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


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


def address_towards(host: str) -> str | None:
    """The address by which a host knows this one; None where that cannot be found out."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # chooses a route; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


class _Entry(ctypes.Structure):
    """The beginning of a `struct ifaddrs`."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("interface", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def addresses_here() -> list[tuple[str, str]]:
    """(address, interface) of all that this host has, secondary ones too; [] outside Linux."""
    if sys.platform != "linux":
        return []
    libc, first = ctypes.CDLL(None), ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    found, entry = [], first
    while entry:
        address = entry.contents.address
        if address is not None:
            family = ctypes.c_ushort.from_address(address).value
            if family in BYTES_OF:
                begin, length = BYTES_OF[family]
                data = ctypes.string_at(address + begin, length)
                interface = (entry.contents.interface or b"").decode(errors="replace")
                found.append((socket.inet_ntop(family, data), interface))
        entry = entry.contents.next
    libc.freeifaddrs(first)
    return found


def which_it_has() -> str:
    """For messages: the addresses by which others may reach this host."""
    found = []
    for address, interface in addresses_here():
        ip = ipaddress.ip_address(address)
        if not ip.is_loopback and not ip.is_link_local:
            found.append(f"{address} ({interface})")
    return f"which has {', '.join(found)}" if found else "which has no address but loopback"
