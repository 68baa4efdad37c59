"""Replica: one worker or server that a cluster's scheduler started; the component `ps` runs it.

A scheduler names a replica's number, and where the others are, in its own variables. Here
they become the command line that a person would have typed:

shoal launch --role=server --index=0 --servers=HOST:PORT,… --workers=HOST:PORT,… ARGUMENTS
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping


def find_hosts(
    servers: int, workers: int, host_list: str | None, environment: Mapping[str, str]
) -> list[str]:
    """The host of each replica, servers first."""
    count = servers + workers
    if host_list:
        hosts = [word.strip() for word in host_list.split(",") if word.strip()]
        if len(hosts) != count:
            raise ValueError(
                f"--hosts={host_list} names {len(hosts)} hosts; there are {servers} servers and "
                f"{workers} workers, and each has its entry, servers first"
            )
        return hosts
    roles = [("server", k) for k in range(servers)] + [("worker", k) for k in range(workers)]
    # Slurm: TorchX makes a heterogeneous job with one group of one node per replica, in order.
    slurm = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(count)]
    # Volcano on Kubernetes: one task per replica, named after its role.
    volcano = [f"VC_{role.upper()}_{k}_HOSTS" for role, k in roles]
    for names in (slurm, volcano):
        if all(environment.get(name) for name in names):
            return [environment[name] for name in names]
    first = environment.get("TORCHX_RANK0_HOST", "")
    if first in ("localhost", "127.0.0.1"):  # TorchX's local schedulers set it for all replicas
        return ["127.0.0.1"] * count
    raise ValueError(
        "this scheduler does not name where the other replicas run (Slurm, Kubernetes with Volcano "
        "and TorchX's local_cwd do); give their hosts, servers first: --hosts=s0,w0,w1"
    )


def command(
    role: str, index: int, servers: int, workers: int, hosts: list[str], port: int
) -> list[str]:
    """`launch --role=… --index=… --servers=… --workers=…`: every replica has its own port."""
    places = [f"{host}:{port + number}" for number, host in enumerate(hosts)]
    return [
        "launch",
        f"--role={role}",
        f"--index={index}",
        f"--servers={','.join(places[:servers])}",
        f"--workers={','.join(places[servers:])}",
    ]


def wait_for_names(hosts: list[str], seconds: float) -> None:
    """Wait until every host's name can be resolved."""
    deadline = time.monotonic() + seconds
    for host in dict.fromkeys(hosts):
        while True:
            try:
                socket.getaddrinfo(host, None)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"the host {host!r} is unknown after {seconds:.0f} s ({error.strerror})"
                    ) from error
            time.sleep(1)


def follow_parent() -> None:
    """Exit when the parent process is gone, such as a TorchX on this machine that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow parent", daemon=True).start()


def main() -> None:
    """Find the hosts of all replicas, then run the command `shoal launch`."""
    parser = argparse.ArgumentParser(prog="python -m shoal.cli.replica", description=main.__doc__)
    parser.add_argument("--role", required=True, choices=("server", "worker"))
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--hosts", help="host of each replica, servers first, where the scheduler does not say"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    follow_parent()
    from shoal.cli import exit
    from shoal.cli import main as cli

    try:
        hosts = find_hosts(options.servers, options.workers, options.hosts, os.environ)
        # A pod's name is known when the pod has an address: images are pulled first.
        wait_for_names(hosts, seconds=300.0)
    except ValueError as error:
        exit.fail(error)
    args = command(
        role=options.role,
        index=options.index,
        servers=options.servers,
        workers=options.workers,
        hosts=hosts,
        port=options.port,
    )
    sys.argv[1:] = [*args, *arguments]
    cli.main()


if __name__ == "__main__":
    main()
