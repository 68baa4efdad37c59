"""Watch: processes of this host that hang are named, with the place where they do, and ended.

A process hangs when for `seconds` it was stopped, or did nothing at all (no processor time, nothing
read or written) while it did not wait for others. One that works is left alone, however long its
step takes, and so is one that would work if the machine let it: a thread that stands in line for a
processor does not hang. Where all wait for others and nothing moves, the fault lies with another
host; a wait that ends by itself (bounded) says who is missing, and needs no watch. One that
computes while others wait for it is ended just before they give up: they cannot name it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.distributed.liveness import look, stack_of


@dataclass(frozen=True)
class Signs:
    """What the system reports about a process."""

    state: str  # R running, S sleeping, T stopped, ...
    ticks: int  # of processor time
    moved: int  # bytes read and written, pages that came from a disk
    queued: float = 0.0  # seconds that its threads stood in line for a processor, each until it ran
    in_line: frozenset[tuple[str, int]] = frozenset()  # its ready threads, and how often each ran

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"


def signs_of(pid: int) -> Signs | None:
    """The signs of a process; None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        moved = int(words[9])  # major faults
        with suppress(OSError), open(f"/proc/{pid}/io") as file:
            moved += sum(int(line.split()[1]) for line in file if line[1:5] == "char")
    except (OSError, IndexError, ValueError):
        return None
    return Signs(words[0], int(words[11]) + int(words[12]), moved, *_lines_of(pid))


def _lines_of(pid: int) -> tuple[float, frozenset[tuple[str, int]]]:
    """Seconds that threads of a process were ready before they ran, and those that are ready now.

    The system counts the seconds of a thread when it runs at last: one that never does has none.
    """
    queued, ready = 0, set()
    with suppress(OSError):  # it is gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                suppress(OSError, ValueError),  # so is this thread; or the system does not count it
                open(f"/proc/{pid}/task/{thread}/schedstat") as counts,
                open(f"/proc/{pid}/task/{thread}/stat") as stat,
            ):
                _, waited, runs = map(int, counts.read().split())
                queued += waited
                if stat.read().rpartition(")")[2].startswith(" R"):
                    ready.add((thread, runs))
    return queued / 1e9, frozenset(ready)


@dataclass(frozen=True)
class Hang:
    """Why a process was ended, and where it was."""

    cause: str
    stack: str

    def message(
        self, who: str, ending: str = "what was saved can be continued with --resume"
    ) -> str:
        """The message about a hang; ending: what happens next."""
        location = f". It was here:\n{self.stack}" if self.stack else ""
        return f"{who} {self.cause}; {ending}{location}"


class Counter(Protocol):
    """Counts that all hosts share."""

    def add(self, key: str, amount: int) -> int: ...


@dataclass
class _Activity:
    """The last signs of one process, and since when they have not changed."""

    signs: Signs
    counter: int
    still_since: float
    ticks: int  # at that time
    moved: int  # Signs.moved at that time
    queued: float  # Signs.queued at that time
    stopped_since: float | None = None


class Watch:
    """Looks at processes until it is closed; `hung` has what it found, by process number."""

    def __init__(
        self,
        seconds: float,
        beats: Callable[[], dict[str, Path]],
        elsewhere: Callable[[], float] | None = None,
        starting: Callable[[], list[int]] = lambda: [],
        longest_wait: float = math.inf,
    ):
        """beats: the files of the processes that are watched, by the names that messages use.

        elsewhere: returns when a process that these may wait for was last active; None: they
        may wait for ever.
        starting: processes that have no beat yet.
        longest_wait: seconds after which one that waits for another of them gives up.
        """
        self.seconds, self._beats, self._elsewhere = seconds, beats, elsewhere
        # A little before those that wait give up.
        self._starting, self._longest_wait = starting, 0.9 * longest_wait
        self.moving = True  # whether any of them does something
        self.hung: dict[int, Hang] = {}
        self._activities: dict[str, _Activity] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look_on(self) -> None:
        while not self._over.wait(self.seconds / 8):
            if self._look_once(time.monotonic()):
                return

    def _look_once(self, now: float) -> bool:
        """Whether a process hangs; if so, it is ended."""
        waits: list[tuple[float, int, str, Path]] = []
        computes: list[tuple[float, int, Path]] = []
        beats, bounded, waited = self._beats(), False, 0.0
        # Sort processes into those that wait for others and those that compute.
        for name, path in beats.items():
            beat = look(path)
            signs = None if beat is None else signs_of(beat.pid)
            if beat is None or signs is None:
                continue
            activity = self._update(name, signs, beat.counter, now)
            if (
                activity.stopped_since is not None
            ):  # that is why, however long it did nothing before
                if now - activity.stopped_since >= self.seconds:
                    self._end(
                        beat.pid, path, f"was stopped {now - activity.stopped_since:.0f} s ago"
                    )
                    return True
                continue
            still = now - max(activity.still_since, beat.since)
            if beat.waiting:
                waits.append((still, beat.pid, name, path))
                bounded |= beat.bounded
                waited = max(waited, 0.0 if beat.bounded else now - beat.since)
            elif still >= self.seconds:
                self._end(beat.pid, path, f"hangs: it has done nothing for {still:.0f} s")
                return True
            else:
                computes.append((now - beat.since, beat.pid, path))
        # Others wait too long: end the process that has computed longest.
        if waited >= self._longest_wait and self._end_longest(computes):
            return True
        # Processes without a heartbeat yet may be stopped at their start.
        for pid in self._starting():
            signs = signs_of(pid)
            since = None if signs is None else self._update(str(pid), signs, 0, now).stopped_since
            if since is not None and now - since >= self.seconds:
                self.hung[pid] = Hang(f"was stopped {now - since:.0f} s ago, at its start", "")
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                return True
        self.moving = len(waits) < max(1, len(beats)) or min(waits)[0] < self.seconds
        if self.moving or bounded or self._elsewhere is None:
            return False
        still, pid, _, path = min(waits)
        # Where all wait, the host of the one that hangs speaks first.
        if min(still, now - self._elsewhere()) < 2.0 * self.seconds:
            return False
        self._end(
            pid,
            path,
            f"has waited for {still:.0f} s, as all ranks of this host have: a rank of another host "
            "hangs, or the network between the hosts is cut",
        )
        return True

    def _end_longest(self, computes: list[tuple[float, int, Path]]) -> bool:
        """Whether one of these has computed for as long as others wait at most; it is ended."""
        seconds, pid, path = max(computes, default=(0.0, 0, Path()))
        if seconds < self._longest_wait:
            return False
        self._end(pid, path, f"hangs: it has computed for {seconds:.0f} s, and others wait for it")
        return True

    def _update(self, name: str, signs: Signs, counter: int, now: float) -> _Activity:
        activity = self._activities.get(name)
        tick = os.sysconf("SC_CLK_TCK")
        if (
            activity is None
            or signs.state == "R"  # also of one that waits for its turn on a processor
            or counter != activity.counter
            # Some bytes a second are no work: the process looks at its launcher.
            or signs.moved - activity.moved > 8192 * (now - activity.still_since) + 8192
            # Heartbeats of a process that does nothing else take less of a core.
            or signs.ticks - activity.ticks > 0.02 * tick * (now - activity.still_since) + 1
            # On a busy machine more than heartbeats stand in line.
            or signs.queued - activity.queued > 0.5 * (now - activity.still_since)
            or signs.in_line
            & activity.signs.in_line  # a thread that had no turn since the last look
        ):
            activity = _Activity(signs, counter, now, signs.ticks, signs.moved, signs.queued)
            self._activities[name] = activity
        if not signs.stopped:
            activity.stopped_since = None
        elif activity.stopped_since is None:
            activity.stopped_since = now
        activity.signs = signs
        return activity

    def _end(self, pid: int, path: Path, cause: str) -> None:
        """Kill a process that hangs, after it has written its stack."""
        beat = look(path)
        if beat is not None and beat.waiting:
            cause += f", in {beat.what}"
        stack = stack_of(path)
        with suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGCONT)
            deadline = time.monotonic() + 1.0
            earlier_text, stack_text = None, ""
            while time.monotonic() < deadline and (not stack_text or stack_text != earlier_text):
                time.sleep(0.1)
                earlier_text, stack_text = stack_text, _stack_in(stack)
        self.hung[pid] = Hang(cause, _stack_in(stack))
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


class RemoteActivity:
    """Activity of other hosts, polled in a thread: a network that is cut does not answer.

    last: when any of them was last active.
    """

    def __init__(self, store: Counter, hosts: int, host: int, watch: Watch):
        self.last = time.monotonic()
        self._store = store
        self._hosts = hosts
        self._host = host
        self._watch = watch
        self._over = threading.Event()

    def __enter__(self) -> RemoteActivity:
        threading.Thread(target=self._ask, name="other hosts", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _ask(self) -> None:
        counts: list[int] = []
        with suppress(Exception):  # the meeting is over, or no host answers: `last` shows it
            while not self._over.wait(self._watch.seconds / 8):
                if self._watch.moving:
                    self._store.add(f"moves/{self._host}", 1)
                others = [k for k in range(self._hosts) if k != self._host]
                moves = [self._store.add(f"moves/{k}", 0) for k in others]
                if moves != counts:
                    counts, self.last = moves, time.monotonic()


def _stack_in(path: Path) -> str:
    """The stack of the main thread in a file of faulthandler's, its innermost frames."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    threads = [block for block in text.split("\n\n") if "File" in block]
    lines = threads[-1].splitlines() if threads else []  # the main thread comes last
    return "\n".join(line for line in lines[:13] if line.startswith("  File"))
