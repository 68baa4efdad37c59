"""Launch: start the ranks of this host, watch them, and name the one that failed.

The engine is torch's elastic agent, the one that torchrun runs. A rank that dies ends the run: its
siblings are stopped, and the message says which rank, on which host, and why.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import shoal
from shoal.config.schema import LaunchSection
from shoal.launch.child import HANG_TIMEOUT, grow_file, signal_ranks, stop_file
from shoal.launch.hosts import LaunchError, host_of, secret_of
from shoal.launch.restarts import Growth, MoreRanks, growing
from shoal.launch.watch import Elsewhere, Hang, Watch, ranks_of, signs_of
from shoal.world.channel import Place
from shoal.world.hosts import WorldError, look_up
from shoal.world.liveness import FOLDER, look
from shoal.world.rendezvous import MEET, Rendezvous, RunStore
from shoal.world.world import TIMEOUT

AGAIN_SECONDS = 0.5  # between two looks whether there is another meeting
STOPPED = (signal.SIGINT, signal.SIGTERM)
RESUME = "; what was saved can be continued with --resume"


def launch(
    arguments: list[str],
    section: LaunchSection,
    scratch: str,
    module: str = "shoal",
    ending: str = RESUME,
    can_save: Callable[[], bool] = lambda: True,
    growth: Growth | None = None,
) -> None:
    """Run `python -m MODULE ARGUMENTS` as this host's ranks and wait for them.

    ending: of the message about a rank that failed, what to do then.
    can_save: whether ranks that get a signal to end are given the time to save.
    growth: when they are to make room for more of them (MoreRanks).
    """
    hosts, host = host_of(section)
    secret = secret_of(section)
    silence_torch()
    threads = str(max(1, (os.cpu_count() or 1) // section.nproc))
    beats = Path(scratch) / "beats"
    with (
        _meet(section, hosts, host, secret, Path(scratch)) as (place, store),
        _watch(section, hosts, host, store, beats) as watch,
        _environment(
            {
                "SHOAL_LAUNCHER": str(os.getpid()),
                MEET: place.text,
                FOLDER: str(beats),
                HANG_TIMEOUT: str(section.hang_timeout),
            },
            {"OMP_NUM_THREADS": threads},
        ),
        _secret_in_environment(secret),
        _signals(beats, section.grace, can_save),
        growing(growth, beats),
    ):
        config = LaunchConfig(
            min_nodes=hosts,
            max_nodes=hosts,
            nproc_per_node=section.nproc,
            run_id="shoal",
            rdzv_backend=Met.__name__,
            rdzv_configs={"met": Met(store, hosts, host, section.ip)},
            max_restarts=0,
            monitor_interval=0.1,
            signals_to_handle="SIGINT,SIGHUP,SIGQUIT",  # SIGTERM is ours
            local_addr="localhost" if hosts == 1 else None,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
        )
        try:
            elastic_launch(config, sys.executable)("-u", "-m", module, *arguments)
        except ChildFailedError as error:
            # Ctrl-C reaches the ranks too; one of them may be seen to end before we are told.
            if all(f.exitcode in (130, -signal.SIGINT) for f in error.failures.values()):
                raise shoal.Interrupted(signal.SIGINT) from None
            if stop_file(beats).exists():
                raise shoal.Interrupted(signal.SIGTERM) from None
            saved = 128 + signal.SIGTERM  # status of a rank that was asked to save, when all have
            if grow_file(beats).exists() and any(
                f.exitcode == saved for f in error.failures.values()
            ):
                raise MoreRanks from None
            raise describe_failure(error.failures, hosts, watch.hung, ending) from None
        except SignalException as error:
            raise shoal.Interrupted(error.sigval) from None
        except (RuntimeError, OSError, TimeoutError) as error:
            raise LaunchError(f"the processes could not be started: {error}") from error


@contextmanager
def _watch(
    section: LaunchSection, hosts: int, host: int, store: RunStore, beats: Path
) -> Iterator[Watch]:
    """Look at this host's ranks, and where there are other hosts whether they do something."""
    beats.mkdir()

    def files() -> dict[str, Path]:
        return {one.name: one for one in beats.iterdir() if not one.suffix}

    alone = time.monotonic()

    def elsewhere() -> float:
        if len(files()) < section.nproc:  # one has not begun: where ranks join, it is named
            return time.monotonic()
        return alone if hosts == 1 else others.last

    def starting() -> list[int]:
        if len(files()) == section.nproc:
            return []
        begun = {beat.pid for beat in map(look, files().values()) if beat is not None}
        return [pid for pid in ranks_of(os.getpid()) if pid not in begun]

    with (
        Watch(section.hang_timeout, files, elsewhere, starting, TIMEOUT.total_seconds()) as watch,
        Elsewhere(store, hosts, host, watch) as others,
    ):
        yield watch


@contextmanager
def _meet(
    section: LaunchSection, hosts: int, host: int, secret: bytes, scratch: Path
) -> Iterator[tuple[Place, RunStore]]:
    """Wait for the launchers of the other hosts, where the first one holds the meeting."""
    held = None
    try:
        # Ranks of this host alone meet in a folder that nobody else can enter.
        place = (
            Place(path=str(scratch / "meeting"))
            if hosts == 1
            else Place.named(section.ip, section.port)
        )
        look_up(section.ip)
        if host == 0:
            held = Rendezvous(place, secret)
        store = _come(place, secret, section, host)
        _wait_for_hosts(store, section, hosts)
        yield place, store
    except WorldError as error:
        raise LaunchError(str(error)) from error
    finally:
        if held is not None:
            held.close()


def _come(place: Place, secret: bytes, section: LaunchSection, host: int) -> RunStore:
    """Come to the meeting, as the only one with this place.

    Where failed runs are brought back, a meeting that has seen us is that of the run before: it is
    over as soon as the first host hears of the failure, and there will be another.
    """
    deadline = time.monotonic() + section.join_timeout
    while True:
        store = RunStore(place, secret, section.join_timeout)
        waits = section.max_restarts and time.monotonic() < deadline
        try:
            if store.add(f"host/{host}", 1) == 1:
                return store
        except WorldError:  # it is over now
            if not waits:
                raise
        if not waits:
            raise LaunchError(
                f"another command came to {place} with this one's place among the ranks "
                f"(--group_offset={section.group_offset}); give every host its own"
            )
        time.sleep(AGAIN_SECONDS)


def _wait_for_hosts(store: RunStore, section: LaunchSection, hosts: int) -> None:
    keys = [f"host/{number}" for number in range(hosts)]
    try:
        store.wait(keys)
    except RuntimeError:
        came = sum(store.check([key]) for key in keys)
        raise LaunchError(
            f"{came} of {hosts} hosts ({came * section.nproc} of {hosts * section.nproc} "
            f"processes) came to {section.ip}:{section.port} within {section.join_timeout:g} s; "
            "start the same command on the other hosts, check --ip, --port, --world_size and "
            "--group_offset, or raise launch.join_timeout"
        ) from None


class Met(RendezvousHandler):
    """Hosts that have met, in the form that the agent wants."""

    def __init__(self, store: RunStore, hosts: int, host: int, address: str):
        self._info = RendezvousInfo(store, host, hosts, RendezvousStoreInfo(address, 0))

    def get_backend(self) -> str:
        return type(self).__name__

    def next_rendezvous(self) -> RendezvousInfo:
        return self._info

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "shoal"

    def shutdown(self) -> bool:
        return True


rendezvous_handler_registry.register(Met.__name__, lambda given: given.config["met"])


def silence_torch() -> None:
    """We report failures ourselves. Loggers of torch's each have their own level."""
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


def _secret_in_environment(secret: bytes) -> AbstractContextManager[None]:
    """Only this user can read the environment of a process; everybody could read arguments."""
    return _environment({"SHOAL_SECRET": secret.decode()} if secret else {}, {})


@contextmanager
def _signals(beats: Path, grace: float, can_save: Callable[[], bool]) -> Iterator[None]:
    """Let ranks save on SIGTERM; give back the signal handlers that we and the agent replace."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SignalException("", signal.Signals(number))

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, end)
        if can_save():
            stop_file(beats).touch()
            ranks = signal_ranks(beats)
            deadline = time.monotonic() + grace + 2.0  # for ranks that end at the last moment
            while any(map(_runs, ranks)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if ranks and not any(map(_runs, ranks)):
                return  # the agent finds how they ended: having saved, or even having finished
        end(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.getsignal(number) for number in (*STOPPED, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        signal.signal(signal.SIGTERM, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _runs(pid: int) -> bool:
    """Whether a process of ours has not ended yet."""
    signs = signs_of(pid)
    return signs is not None and signs.state not in "ZX"


def describe_failure(
    failures: dict[int, ProcessFailure],
    hosts: int = 1,
    hung: Mapping[int, Hang] | None = None,
    ending: str = RESUME,
) -> LaunchError:
    """One message about the rank that failed first by itself, not of those that lost it.

    hung: what the watch found, by the number of the process that it ended.
    """
    hung, host = hung or {}, socket.gethostname()

    def order(entry: tuple[int, ProcessFailure]) -> tuple[bool, bool, int]:
        failure = entry[1]
        lost = failure.error_file_data.get("kind") == "peer lost"
        stopped = failure.exitcode == -signal.SIGTERM  # by the agent, because of another one
        return lost, stopped, failure.timestamp

    # Whole seconds are often the same; then it is the one that the agent saw first, which is the
    # first of all: it ended the others, and looked at them afterwards.
    rank, failure = min(failures.items(), key=order)
    kind, cause = failure.error_file_data.get("kind"), failure.message
    status = 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    if failure.pid in hung:
        who = f"rank {rank} on host {host} (pid {failure.pid})"
        return LaunchError(hung[failure.pid].tell(who).replace(RESUME, ending), status, True, True)
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
        f"rank {rank} on host {host} failed (pid {failure.pid}, exit status "
        f"{failure.exitcode}): {cause}{end} The other ranks of this host were stopped"
    )
    # An error says itself what to do.
    if kind == "error":
        return LaunchError(told, status)
    return LaunchError(told + ending, status, passing=True, of_rank=True)
