"""Address: where a server listens, and who can reach it there.

HOST:PORT       TCP; whoever reaches the host reaches it, unless the host is a loopback address
ipc://PATH      a Unix socket of this host; only who may enter its folder reaches it
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

IPC = "ipc://"


def endpoint(address: str) -> str:
    """The address as ZeroMQ writes it."""
    return address if address.startswith(IPC) else f"tcp://{address}"


def stays_here(address: str) -> bool:
    """Whether nothing that is sent to an address leaves this host; names are looked up."""
    if address.startswith(IPC):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    # An address of IPv6 may name its interface: fe80::1%eth0
    numbers = [ipaddress.ip_address(str(place[0]).split("%")[0]) for *_, place in entries]
    return bool(numbers) and all(number.is_loopback for number in numbers)


def is_old_socket(address: str) -> bool:
    """Whether an address is a Unix socket whose folder is gone: nobody can listen there."""
    return address.startswith(IPC) and not Path(address.removeprefix(IPC)).parent.exists()


def check_private(addresses: Iterable[str], key: str, remedy: str) -> None:
    """Refuse addresses beyond this host where there are no keys."""
    open_one = next((one for one in addresses if not stays_here(one)), None)
    if open_one is not None:
        raise ValueError(
            f"{key} {open_one} leaves this host, and there are no keys: make them once with "
            "`shoal keys make FOLDER`, give servers its part for-servers and workers for-workers, "
            f"and {remedy}"
        )


def nobody_listens(address: str) -> bool:
    """Whether an address refuses connections: the process that listened there is gone."""
    unix = address.startswith(IPC)
    host, _, port = address.rpartition(":")
    try:
        if unix:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(address.removeprefix(IPC))
        else:
            socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:  # anything else may be the network's fault
        return False
    return False
