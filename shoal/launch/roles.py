"""Roles: who runs what. The same command line on every host; each host finds its own part.

--worker_num=2 --server_num=1                      all on this host
--workers="ip1:port,ip2:port" --servers="ip1:port" on many hosts: an entry is a process
--role=server --index=0                            only that one, whatever the host
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from shoal.config.errors import did_you_mean
from shoal.distributed.hosts import which_it_has
from shoal.ps.address import stays_here


@dataclass
class Roles:
    """The processes that this host runs."""

    workers: list[str] = field(default_factory=list)  # HOST:PORT of all
    servers: list[str] = field(default_factory=list)  # HOST:PORT of all; [] when all is here
    nproc: int = 0  # worker processes here
    group_offset: int = 0  # rank of the first of them
    hosts: int = 1  # that run workers
    host_index: int = 0  # which of them this is
    first_server: int = 0  # number of the first server here
    num_servers: int = 0  # servers here

    @property
    def world_size(self) -> int:
        return len(self.workers) or self.nproc

    @property
    def many_hosts(self) -> bool:
        """Whether the run uses more than this host."""
        return any(not stays_here(one) for one in [*self.workers, *self.servers])


def find_roles(
    worker_num: int | None = None,
    server_num: int | None = None,
    workers: str | None = None,
    servers: str | None = None,
    role: str | None = None,
    index: int = 0,
) -> Roles:
    """The processes that this host runs, from the command line."""
    if (workers is None) != (servers is None):
        raise ValueError("--workers and --servers belong together: give every host both lists")
    if workers is None:
        if role is not None:
            raise ValueError("--role needs --workers and --servers, so that all can meet")
        one_host = Roles(nproc=1 if worker_num is None else worker_num)
        one_host.num_servers = 1 if server_num is None else server_num
        if one_host.nproc < 1 or one_host.num_servers < 1:
            raise ValueError(
                f"--worker_num={one_host.nproc} --server_num={one_host.num_servers}: there must be "
                "at least one of each"
            )
        return one_host
    if worker_num is not None or server_num is not None:
        raise ValueError("give --worker_num and --server_num, or --workers and --servers, not both")
    assert servers is not None
    everyone = Roles(_addresses("--workers", workers), _addresses("--servers", servers))
    shared_address = next((one for one in everyone.workers if one in everyone.servers), None)
    if shared_address is not None:
        raise ValueError(
            f"{shared_address} is a worker and a server; every process needs its own port"
        )
    if role is not None:
        return _by_hand(everyone, role, index)
    return _by_address(everyone)


def _by_hand(roles: Roles, role: str, index: int) -> Roles:
    addresses = {"worker": roles.workers, "server": roles.servers}
    if role not in addresses:
        raise ValueError(
            f"--role={role}; known are worker and server{did_you_mean(role, addresses)}"
        )
    if not 0 <= index < len(addresses[role]):
        raise ValueError(f"--index={index}: there are {len(addresses[role])} {role}s, from 0")
    if role == "worker":
        roles.nproc, roles.group_offset = 1, index
        roles.hosts, roles.host_index = len(roles.workers), index
    else:
        roles.first_server, roles.num_servers = index, 1
    return roles


def _by_address(roles: Roles) -> Roles:
    is_here = {address: _is_here(address) for address in {*roles.workers, *roles.servers}}
    worker_numbers = [k for k, address in enumerate(roles.workers) if is_here[address]]
    serving = [k for k, address in enumerate(roles.servers) if is_here[address]]
    if not worker_numbers and not serving:
        hosts = sorted({address.rsplit(":", 1)[0] for address in is_here})
        raise ValueError(
            f"none of {', '.join(hosts)} is an address of this host ({socket.gethostname()}), "
            f"{which_it_has()}: correct --workers and --servers, or name what to run here with "
            "--role and --index"
        )
    for option, numbers in (("--workers", worker_numbers), ("--servers", serving)):
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise ValueError(f"{option}: the entries of one host must be next to each other")
    if serving:
        roles.first_server, roles.num_servers = serving[0], len(serving)
    order = list(dict.fromkeys(address.rsplit(":", 1)[0] for address in roles.workers))
    roles.hosts = len(order)
    if worker_numbers:
        roles.nproc, roles.group_offset = len(worker_numbers), worker_numbers[0]
        roles.host_index = order.index(roles.workers[worker_numbers[0]].rsplit(":", 1)[0])
    return roles


def place_of(hosts: list[str]) -> int:
    """The index of this host among these addresses."""
    local_numbers = [number for number, host in enumerate(hosts) if _is_here(f"{host}:0")]
    if len(local_numbers) != 1:
        count = "none" if not local_numbers else f"{len(local_numbers)} of them"
        raise ValueError(
            f"--ips={','.join(hosts)}: {count} is an address of this host "
            f"({socket.gethostname()}), {which_it_has()}; name every host once, "
            "or give the place of each with --ip, --port, --world_size and --group_offset"
        )
    return local_numbers[0]


def _addresses(option: str, text: str) -> list[str]:
    addresses = [word.strip() for word in text.split(",") if word.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{option}: {address!r} is not HOST:PORT")
    if not addresses:
        raise ValueError(f"{option} is empty; it is a list of HOST:PORT")
    twice = next((a for a in addresses if addresses.count(a) > 1), None)
    if twice is not None:
        raise ValueError(f"{option}: {twice} appears twice; every process needs its own port")
    return addresses


def _is_here(address: str) -> bool:
    """Whether an address is one of this host's: only then can it be bound."""
    host = address.rsplit(":", 1)[0]
    try:
        entries = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host {host!r} is unknown ({error.strerror})") from error
    for family, kind, protocol, _, place in entries:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(place)
            except OSError:
                continue
            return True
    return False
