"""Launch: start the ranks of this host, watch them, and name the one that failed.

The engine is torch's elastic agent, the one that torchrun runs. A rank that dies ends the run: its
siblings are stopped, and the message says which rank, on which host, and why.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
import traceback
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from shoal.config.schema import LaunchSection
from shoal.world import PeerLost

# How long a rank that merely lost its peers waits before it exits, so that the agent sees the rank
# that really failed first.
GRACE_SECONDS = 2.0


class LaunchError(RuntimeError):
    """A rank failed, or the ranks could not be started; the text says which and why."""


def launch(arguments: list[str], section: LaunchSection) -> None:
    """Run `shoal ARGUMENTS` as this host's ranks and wait for them."""
    hosts, host = host_of(section)
    single = hosts == 1 and section.port == 0
    for name in ("torch.distributed.elastic", "torch.distributed.launcher"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we report failures ourselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // section.nproc)))
    config = LaunchConfig(
        min_nodes=hosts,
        max_nodes=hosts,
        nproc_per_node=section.nproc,
        run_id=f"shoal-{os.getpid()}" if single else "shoal",
        rdzv_backend="c10d" if single else "static",
        rdzv_endpoint="localhost:0" if single else f"{section.ip}:{section.port}",
        rdzv_configs={"rank": host, "timeout": max(1, round(section.join_timeout))},
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="localhost" if hosts == 1 else None,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "shoal.cli", *arguments)
    except ChildFailedError as error:
        raise LaunchError(describe_failure(error.failures)) from None
    except SignalException as error:
        raise KeyboardInterrupt(str(error)) from None
    except (RuntimeError, OSError, TimeoutError) as error:
        raise LaunchError(describe_rendezvous(error, section, hosts)) from error


def host_of(section: LaunchSection) -> tuple[int, int]:
    """Number of hosts, and which of them this one is."""
    world_size = section.nproc if section.world_size == -1 else section.world_size
    if world_size % section.nproc or section.group_offset % section.nproc:
        raise ValueError(
            f"world_size={world_size} and group_offset={section.group_offset} must be multiples of "
            f"nproc={section.nproc}: every host runs the same number of processes"
        )
    hosts = world_size // section.nproc
    if hosts > 1 and section.port == 0:
        raise ValueError(
            f"{hosts} hosts need a fixed port to meet at: give --ip and --port of the first host"
        )
    return hosts, section.group_offset // section.nproc


def describe_failure(failures: dict[int, ProcessFailure]) -> str:
    """One message about the rank that failed first by itself, not of those that lost it."""

    def order(entry: tuple[int, ProcessFailure]) -> tuple[bool, int, int]:
        rank, failure = entry
        return failure.error_file_data.get("kind") == "peer lost", failure.timestamp, rank

    rank, failure = min(failures.items(), key=order)
    cause = failure.message
    if failure.exitcode < 0:
        cause = f"killed by signal {-failure.exitcode} ({failure.signal_name()})"
    elif failure.error_file == "<N/A>":
        cause = "ended without a message; its output stands above"
    host = socket.gethostname()
    return (
        f"rank {rank} on host {host} failed (pid {failure.pid}, exit status {failure.exitcode}): "
        f"{cause}. The other ranks of this host were stopped; continue the run with --resume"
    )


def describe_rendezvous(error: Exception, section: LaunchSection, hosts: int) -> str:
    """Why the hosts could not meet."""
    text = str(error)
    if "EADDRINUSE" in text or "already in use" in text:
        return f"port {section.port} on {section.ip} is in use by another program; choose another --port"
    if "imed out" in text or "timeout" in text.lower() or "connect" in text.lower():
        return (
            f"not all of the {hosts} hosts came to {section.ip}:{section.port} within "
            f"{section.join_timeout:g} s ({text.splitlines()[0]}); start the same command on the "
            "other hosts, check --ip, --port and --world_size, or raise launch.join_timeout"
        )
    return f"the processes could not be started: {text}"


def record_failure(error: BaseException) -> None:
    """In a rank: leave the cause where the agent finds it, as JSON."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    lost = isinstance(error, PeerLost)
    if path:
        data: dict[str, Any] = {
            "message": str(error) or type(error).__name__,
            "timestamp": str(int(time.time())),
            "kind": "peer lost" if lost else "error",
            "traceback": traceback.format_exception(error),
        }
        with open(path, "w") as file:
            json.dump(data, file)
    if lost:
        time.sleep(GRACE_SECONDS)
