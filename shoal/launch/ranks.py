"""Launch: start the ranks of this host, watch them, and name the one that failed.

A rank that dies ends the run: its siblings are stopped, and the message says which rank, on which
host, and why.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import shoal
from shoal.config.schema import LaunchSection
from shoal.distributed.hosts import WorldError, look_up
from shoal.distributed.meeting import MEET, MeetingPlace
from shoal.distributed.rank_variables import rank_variables
from shoal.distributed.rendezvous import Rendezvous, RunStore
from shoal.distributed.world import TIMEOUT
from shoal.launch.child import grow_file
from shoal.launch.children import RESUME, Children, Culprit
from shoal.launch.hosts import LaunchError, host_of, secret_of
from shoal.launch.restarts import Growth, MoreRanks, growing
from shoal.launch.watch import RemoteActivity, Watch


def launch(
    words: list[str],
    section: LaunchSection,
    scratch: str,
    module: str = "shoal",
    ending: str = RESUME,
    culprit: Culprit = lambda: None,
    growth: Growth | None = None,
) -> None:
    """Run `python -m MODULE WORDS` as this host's ranks and wait for them.

    ending: of the message about a rank that failed, what to do then.
    growth: when they are to make room for more of them (MoreRanks).
    """
    hosts, host = host_of(section)
    secret = secret_of(section)
    with _meet(section, hosts, host, secret, Path(scratch)) as (place, store, counts):
        values = {MEET: place.text}
        if secret:  # only this user can read the environment; any user can read arguments
            values["SHOAL_SECRET"] = secret.decode()
        ranks = Ranks(words, section, scratch, values, counts, host)
        ranks.module = module
        with (
            RemoteActivity(store, hosts, host, ranks.hangs) as others,
            ranks,
            growing(growth, ranks.beats),
        ):
            ranks.elsewhere = lambda: others.last
            ranks.wait(culprit, ending)
        store.set(f"done/{host}", "1")
        if host == 0:  # the meeting stays until all hosts are done with it
            with suppress(RuntimeError):
                store.wait([f"done/{one}" for one in range(hosts)], timedelta(minutes=5))


class Ranks(Children):
    """The ranks of this host; one that fails ends all."""

    seconds_to_end = 30.0

    def __init__(
        self,
        words: list[str],
        section: LaunchSection,
        scratch: str,
        values: dict[str, str],
        counts: list[int],
        host: int,
    ):
        """values: further variables; counts: ranks of each host, of which this one is `host`."""
        self.words, self.section, self.values = words, section, values
        self.first, self.size, self.hosts = sum(counts[:host]), sum(counts), len(counts)
        super().__init__(scratch, section.hang_timeout, section.nproc)

    def _new_watch(self) -> Watch:
        self.elsewhere = time.monotonic  # when another host was last seen to do something

        def elsewhere() -> float:
            one_has_not_begun = (
                len(self._beat_files()) < self._count
            )  # where ranks join, it is named
            return time.monotonic() if one_has_not_begun else self.elsewhere()

        longest = TIMEOUT.total_seconds()
        return Watch(self._hang_timeout, self._beat_files, elsewhere, self._starting, longest)

    def _start(self, number: int) -> subprocess.Popen:
        variables = rank_variables(
            rank=self.first + number,
            size=self.size,
            local_rank=number,
            local_size=self._count,
            address=self.section.ip,
            port=self.section.port,
        )
        variables |= self.values
        handling = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # as torchrun sets it
        variables[handling] = os.environ.get(handling, "1")
        threads = max(1, (os.cpu_count() or 1) // self._count)
        return self._spawn(number, self.words, threads, variables)

    def wait(self, culprit: Culprit, ending: str) -> None:
        """Until all have ended well; LaunchError where one has not."""
        with self._heeding(culprit):
            while None in (statuses := self._statuses()):
                if any(statuses) and self.told_to_stop is None:
                    break
                self._pause(culprit, self.section.grace)
        ended = [number for number, status in enumerate(statuses) if status]
        if not ended:
            return
        self._end()
        if self.told_to_stop is not None:
            raise shoal.Interrupted(signal.SIGTERM)
        # Ctrl-C may reach the ranks too; a rank may end before this process gets the signal.
        if all(statuses[number] in (130, -signal.SIGINT) for number in ended):
            raise shoal.Interrupted(signal.SIGINT)
        if grow_file(self.beats).exists() and 128 + signal.SIGTERM in self._statuses():
            raise MoreRanks  # they have saved
        raise self._failure(ended, ending)

    def _failure(self, ended: list[int], ending: str) -> LaunchError:
        """One message about the rank that failed first by itself, not of those that lost it."""

        def order(number: int) -> tuple[bool, float]:
            report = self._read_report(number)
            return report.get("kind") == "peer lost", float(report.get("timestamp", 0.0))

        number = min(ended, key=order)
        process, kind = self._processes[number], self._read_report(number).get("kind")
        passing = kind != "error" or process.pid in self.hangs.hung
        ends = ["the other ranks of this host were stopped"]
        if kind == "peer lost" and self.hosts > 1:
            ends = ["the rank that failed first is on another host, whose message says why", *ends]
        if passing and ending:  # an error says itself what to do
            ends.append(ending)
        rank_text = f"rank {self.first + number} on host {socket.gethostname()} (pid {process.pid})"
        status = process.returncode
        status = 128 - status if status < 0 else status
        return LaunchError(
            self._describe(number, rank_text, "; ".join(ends)), status, passing, passing
        )


@contextmanager
def _meet(
    section: LaunchSection, hosts: int, host: int, secret: bytes, scratch: Path
) -> Iterator[tuple[MeetingPlace, RunStore, list[int]]]:
    """Wait for the launchers of the other hosts, where the first one holds the meeting.

    Its place, its store, and the number of ranks of each host.
    """
    rendezvous = None
    try:
        # Ranks of this host alone meet in a folder that only this user can enter.
        place = (
            MeetingPlace(path=str(scratch / "meeting"))
            if hosts == 1
            else MeetingPlace.named(section.ip, section.port)
        )
        look_up(section.ip)
        if host == 0:
            rendezvous = Rendezvous(place, secret)
        store = _come(place, secret, section, host)
        yield place, store, _wait_for_hosts(store, section, hosts, host)
    except WorldError as error:
        raise LaunchError(str(error)) from error
    finally:
        if rendezvous is not None:
            rendezvous.close()


def _come(place: MeetingPlace, secret: bytes, section: LaunchSection, host: int) -> RunStore:
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
        time.sleep(0.5)


def _wait_for_hosts(store: RunStore, section: LaunchSection, hosts: int, host: int) -> list[int]:
    """The number of ranks of each host, once all have come."""
    keys = [f"ranks/{number}" for number in range(hosts)]
    try:
        store.set(keys[host], str(section.nproc))
        return [int(count) for count in store.multi_get(keys)]
    except RuntimeError:
        num_hosts = sum(store.check([key]) for key in keys)
        raise LaunchError(
            f"{num_hosts} of {hosts} hosts ({num_hosts * section.nproc} of {hosts * section.nproc} "
            f"processes) came to {section.ip}:{section.port} within {section.join_timeout:g} s; "
            "start the same command on the other hosts, check --ip, --port, --world_size and "
            "--group_offset, or raise launch.join_timeout"
        ) from None
