"""Launch: start the ranks of this host, watch them, and name the one that failed.

The engine is torch's elastic agent, the one that torchrun runs. A rank that dies ends the run: its
siblings are stopped, and the message says which rank, on which host, and why.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import shoal
from shoal.config.schema import LaunchSection
from shoal.world.hosts import WorldError, look_up, wait_for_host
from shoal.world.world import PeerLost

# How long a rank that merely lost its peers waits before it exits, so that the agent sees the rank
# that really failed first.
GRACE_SECONDS = 2.0
STOPPED = (signal.SIGINT, signal.SIGTERM)


class LaunchError(RuntimeError):
    """A rank failed, or the ranks could not be started; the text says which and why."""


def launch(arguments: list[str], section: LaunchSection) -> None:
    """Run `shoal ARGUMENTS` as this host's ranks and wait for them."""
    hosts, host = host_of(section)
    alone = hosts == 1 and section.port == 0
    silence_torch()
    try:
        if host:
            wait_for_host(section.ip, section.port, section.join_timeout)
        elif not alone:
            look_up(section.ip)
    except WorldError as error:
        raise LaunchError(str(error)) from error
    threads = str(max(1, (os.cpu_count() or 1) // section.nproc))
    with (
        tempfile.TemporaryDirectory(prefix="shoal-ranks-") as scratch,
        _environment({"SHOAL_LAUNCHER": str(os.getpid())}, {"OMP_NUM_THREADS": threads}),
        _signals(hosts > 1),
    ):
        config = LaunchConfig(
            min_nodes=hosts,
            max_nodes=hosts,
            nproc_per_node=section.nproc,
            run_id=f"shoal-{os.getpid()}" if alone else "shoal",
            rdzv_backend="c10d" if alone else "static",
            rdzv_endpoint="localhost:0" if alone else f"{section.ip}:{section.port}",
            rdzv_configs={"rank": host, "timeout": max(1, round(section.join_timeout))},
            max_restarts=0,
            monitor_interval=0.1,
            local_addr="localhost" if hosts == 1 else None,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
        )
        try:
            elastic_launch(config, sys.executable)("-u", "-m", "shoal", *arguments)
        except ChildFailedError as error:
            # Ctrl-C reaches the ranks too; one of them may be seen to end before we are told.
            if all(f.exitcode in (130, -signal.SIGINT) for f in error.failures.values()):
                raise shoal.Interrupted(signal.SIGINT) from None
            raise LaunchError(describe_failure(error.failures, hosts)) from None
        except SignalException as error:
            raise shoal.Interrupted(error.sigval) from None
        except (RuntimeError, OSError, TimeoutError) as error:
            raise LaunchError(describe_rendezvous(error, section, hosts)) from error


def silence_torch() -> None:
    """We report failures ourselves. Loggers of torch's have levels of their own, each of them."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _environment(values: dict[str, str], defaults: dict[str, str]) -> Iterator[None]:
    """Variables for the ranks, gone again afterwards."""
    before = dict(os.environ)
    os.environ.update({**defaults, **before, **values})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _signals(waits: bool) -> Iterator[None]:
    """Give back the signal handlers that the agent replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.getsignal(number) for number in (*STOPPED, signal.SIGHUP, signal.SIGQUIT)
    }
    if waits:
        # While torch waits for the other hosts no Python handler runs: let Ctrl-C end it at once.
        for number in STOPPED:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def host_of(section: LaunchSection) -> tuple[int, int]:
    """Number of hosts, and which of them this one is."""
    if section.hosts:
        return section.hosts, section.host
    world_size = section.nproc if section.world_size == -1 else section.world_size
    if world_size % section.nproc or section.group_offset % section.nproc:
        raise ValueError(
            f"world_size={world_size} and group_offset={section.group_offset} must be multiples of "
            f"nproc={section.nproc}: every host runs the same number of processes"
        )
    return world_size // section.nproc, section.group_offset // section.nproc


def describe_failure(failures: dict[int, ProcessFailure], hosts: int = 1) -> str:
    """One message about the rank that failed first by itself, not of those that lost it."""

    def order(entry: tuple[int, ProcessFailure]) -> tuple[bool, bool, int, int]:
        rank, failure = entry
        lost = failure.error_file_data.get("kind") == "peer lost"
        stopped = failure.exitcode == -signal.SIGTERM  # by the agent, because of another one
        return lost, stopped, failure.timestamp, rank

    rank, failure = min(failures.items(), key=order)
    kind, cause = failure.error_file_data.get("kind"), failure.message
    if failure.exitcode < 0:
        cause = f"killed by signal {-failure.exitcode} ({failure.signal_name()})"
        if failure.exitcode == -signal.SIGKILL:
            cause += "; the system does that when memory runs out"
    elif failure.error_file == "<N/A>":
        cause = "ended without a message; see its output above"
    elif kind == "fault":
        cause += "\n" + "".join(failure.error_file_data["traceback"]).rstrip()
    elif kind == "peer lost" and hosts > 1:
        cause += "; the rank that failed first is on another host, whose message says why"
    end = "" if cause.endswith((".", "\n")) else "."
    told = (
        f"rank {rank} on host {socket.gethostname()} failed (pid {failure.pid}, exit status "
        f"{failure.exitcode}): {cause}{end} The other ranks of this host were stopped"
    )
    if kind == "error":  # one that says what to do
        return told
    return f"{told}; what was saved can be continued with --resume"


def describe_rendezvous(error: Exception, section: LaunchSection, hosts: int) -> str:
    """Why the hosts could not meet."""
    text = str(error)
    if "EADDRINUSE" in text or "already in use" in text:
        return (
            f"port {section.port} on {section.ip} is in use by another program; choose another, "
            "in --port, or in the first entry of --workers"
        )
    remedy = (
        "start the same command on the other hosts, check --ip, --port, --world_size and "
        "--group_offset, or raise launch.join_timeout"
    )
    joined = re.search(r"(\d+)/\d+ clients joined", text)
    if joined:
        came = int(joined[1])
        return (
            f"{came} of {hosts} hosts ({came * section.nproc} of {hosts * section.nproc} "
            f"processes) came to {section.ip}:{section.port} within {section.join_timeout:g} s; "
            f"{remedy}"
        )
    if "imed out" in text or "timeout" in text.lower() or "connect" in text.lower():
        return (
            f"not all of the {hosts} hosts came to {section.ip}:{section.port} within "
            f"{section.join_timeout:g} s ({text.splitlines()[0]}); {remedy}"
        )
    return f"the processes could not be started: {text}"


# ---- in a rank ----------------------------------------------------------------------------------


def is_launched() -> bool:
    """Whether our own launcher started this process; it then reports failures."""
    return "SHOAL_LAUNCHER" in os.environ


def follow_launcher() -> None:
    """In a rank: end when told by the launcher, and when it is gone, however it ended."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # the launcher says it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = int(os.environ.get("SHOAL_LAUNCHER", os.getppid()))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="follow launcher", daemon=True).start()


def record_failure(error: BaseException, fault: bool = False) -> bool:
    """In a rank: leave the cause where the agent finds it, as JSON; whether that worked."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    lost = isinstance(error, PeerLost)
    data: dict[str, Any] = {
        "message": f"{type(error).__name__}: {error}" if fault else str(error),
        "timestamp": str(int(time.time())),
        "kind": "peer lost" if lost else "fault" if fault else "error",
        "traceback": traceback.format_exception(error) if fault else [],
    }
    recorded = False
    if path:
        # The failure may be that of a full disk: a part of a record is worse than none.
        try:
            with open(path + ".new", "w") as file:
                json.dump(data, file)
            os.replace(path + ".new", path)
            recorded = True
        except OSError:
            pass
    if lost:
        time.sleep(GRACE_SECONDS)
    return recorded
