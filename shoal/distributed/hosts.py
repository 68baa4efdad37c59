"""Hosts: what their addresses mean, and the way that leads there."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path

from shoal import how_to_install


class WorldError(RuntimeError):
    """The ranks could not find each other, or something in the group cannot work."""


def check_installed(purpose: str) -> None:
    """Refuse what goes by ZeroMQ where pyzmq is missing, which the extra `servers` installs."""
    if find_spec("zmq") is None:
        raise ValueError(f"{purpose} need pyzmq: {how_to_install('servers')}")


def look_up(address: str) -> None:
    """Refuse a host name that means nothing, at once."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise WorldError(
            f"the host {address!r} is unknown ({error.strerror}); check --ip: it is the address of "
            "the first host"
        ) from error


def listen_at(host: str, port: int) -> socket.socket:
    """A TCP socket that listens at an address and nowhere else; OSError where that cannot be."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address, family=family, backlog=1024)


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
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise WorldError(
            f"{folder} is not a folder that only you can enter: remove it, or name another place "
            "for such folders in TMPDIR"
        )
    return folder


def address_towards(host: str) -> str | None:
    """The address by which a host knows this one; None where that cannot be found out."""
    try:
        entries = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = entries[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # chooses a route; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def addresses_here() -> list[str]:
    """All addresses of this host, secondary ones too; [] outside Linux."""
    try:
        routes, network6 = (
            Path(f"/proc/net/{name}").read_text() for name in ("fib_trie", "if_inet6")
        )
    except OSError:
        return []
    addresses = re.findall(r"-- (\S+)\n +/32 host LOCAL", routes)
    for line in network6.splitlines():
        addresses.append(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    return list(dict.fromkeys(addresses))


def which_it_has() -> str:
    """For messages: the addresses by which others may reach this host."""
    addresses = [ipaddress.ip_address(address) for address in addresses_here()]
    others = [str(ip) for ip in addresses if not ip.is_loopback and not ip.is_link_local]
    return f"which has {', '.join(others)}" if others else "which has no address but loopback"
