"""Processes that hang are named; those that work, or wait for others, are not."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.data.batch import Batch
from shoal.distributed.liveness import look
from shoal.launch.watch import Hang, Signs, Watch
from shoal.models.base import Output
from shoal.models.general.bpr import BPR

SECONDS = 0.5
BEGIN = """
import sys, time
from pathlib import Path
from shoal.distributed.liveness import BEAT
BEAT.open(Path(sys.argv[1]))
def somewhere():
    {}
somewhere()
"""


class Child:
    """A process that beats and then does what its text says."""

    def __init__(self, path: Path, text: str):
        self.path = path
        self.process = subprocess.Popen([sys.executable, "-c", BEGIN.format(text), str(path)])
        while (beat := look(path)) is None or (beat.waiting != ("waiting" in text)):
            assert self.process.poll() is None
            time.sleep(0.01)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.process.kill()
        child.process.wait()


def found(
    children: list[Child],
    seconds: float,
    elsewhere: float | None = None,
    longest_wait: float = math.inf,
) -> dict[int, Hang]:
    """What a watch finds within some seconds."""
    files = {child.path.name: child.path for child in children}
    last = None if elsewhere is None else lambda: elsewhere
    with Watch(SECONDS, lambda: files, last, longest_wait=longest_wait) as watch:
        deadline = time.monotonic() + seconds
        while not watch.hung and time.monotonic() < deadline:
            time.sleep(0.05)
        return dict(watch.hung)


def test_one_that_does_nothing_is_named_with_its_stack(
    tmp_path: Path, children: list[Child]
) -> None:
    children += [Child(tmp_path / "rank-0", "time.sleep(60)")]
    children += [Child(tmp_path / "rank-1", "with BEAT.waiting('all_reduce'): time.sleep(60)")]
    children += [Child(tmp_path / "rank-2", "while True: pass")]
    hung = found(children, 30)
    assert list(hung) == [children[0].process.pid]
    assert "has done nothing for" in hung[children[0].process.pid].cause
    assert "in somewhere" in hung[children[0].process.pid].stack
    assert children[0].process.wait(10) == -signal.SIGKILL


def test_one_that_computes_is_named_before_those_that_wait_give_up(
    tmp_path: Path, children: list[Child]
) -> None:
    children += [Child(tmp_path / "rank-0", "with BEAT.waiting('all_reduce'): time.sleep(60)")]
    children += [Child(tmp_path / "rank-1", "while True: pass")]
    assert not found(children, 2 * SECONDS)
    hung = found(children, 30, longest_wait=2 * SECONDS)
    assert list(hung) == [children[1].process.pid]
    hang = hung[children[1].process.pid]
    assert "hangs: it has computed for" in hang.cause and "in somewhere" in hang.stack


def test_a_loop_without_end_in_a_model_is_named(tmp_path: Path) -> None:
    """The step goes on as soon as the log names it; else the test ends it, and fails."""
    seen: list[str] = []
    deadline = time.monotonic() + 30

    class Loops(BPR):
        def forward(self, batch: Batch) -> Output:
            while not seen and time.monotonic() < deadline:
                pass
            return super().forward(batch)

    def keep(record: logging.LogRecord) -> bool:
        seen.extend([record.getMessage()] * (record.levelno == logging.WARNING))
        return True

    log = logging.getLogger("shoal")
    log.addFilter(keep)
    values = {"launch.hang_timeout": 0.2, "train.epochs": 1, "data.synthetic.interactions": 5000}
    shoal.run(Loops, "synthetic", **values, **{"run.output": str(tmp_path / "run")})
    log.removeFilter(keep)
    assert seen and re.match(
        r"a step has computed for \d+ s, and goes on: the machine is busy", seen[0]
    )
    assert re.search(r"forward \(.*test_watch.py:\d+\)", seen[0])


def test_one_that_was_stopped_is_named_though_it_waited(
    tmp_path: Path, children: list[Child]
) -> None:
    children += [Child(tmp_path / "rank-0", "with BEAT.waiting('all_reduce'): time.sleep(60)")]
    children += [Child(tmp_path / "rank-1", "with BEAT.waiting('exchange'): time.sleep(60)")]
    os.kill(children[1].process.pid, signal.SIGSTOP)
    hung = found(children, 30)
    assert list(hung) == [children[1].process.pid]
    assert "was stopped" in hung[children[1].process.pid].cause
    assert "in exchange" in hung[children[1].process.pid].cause


def test_where_all_wait_another_host_is_to_blame(tmp_path: Path, children: list[Child]) -> None:
    children += [Child(tmp_path / "rank-0", "with BEAT.waiting('all_reduce'): time.sleep(60)")]
    assert not found(children, 4 * SECONDS)  # for ever, where nobody says that others do nothing
    assert not found(children, 4 * SECONDS, elsewhere=time.monotonic() + 60)  # others work
    (hang,) = found(children, 30, elsewhere=0.0).values()
    assert "another host hangs, or the network" in hang.cause and "all_reduce" in hang.cause


def test_a_wait_that_ends_by_itself_is_nobodys_hang(tmp_path: Path, children: list[Child]) -> None:
    text = "with BEAT.waiting('an answer of server 0', bounded=True): time.sleep(60)"
    children += [Child(tmp_path / "rank-0", text)]
    assert not found(children, 4 * SECONDS, elsewhere=0.0)
    os.kill(children[0].process.pid, signal.SIGSTOP)  # unless it was stopped
    (hang,) = found(children, 30, elsewhere=0.0).values()
    assert "was stopped" in hang.cause


def test_those_that_the_machine_keeps_waiting_do_not_hang(
    tmp_path: Path, children: list[Child]
) -> None:
    """Both want to compute, one in its main thread, and get next to nothing of a processor."""
    children += [Child(tmp_path / "rank-0", "while True: pass")]
    thread = "import threading; threading.Thread(target=lambda: sum(iter(int, 1))).start()"
    children += [Child(tmp_path / "rank-1", f"{thread}; time.sleep(60)")]
    core = {min(os.sched_getaffinity(0))}
    for child in children:
        for task in os.listdir(f"/proc/{child.process.pid}/task"):
            os.sched_setaffinity(int(task), core)
            os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, core)
        assert not found(children, 4 * SECONDS)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_thread_that_never_had_a_turn_stands_in_line() -> None:
    """The system counts how long a thread stood in line only when it runs: this one never did."""
    watch = Watch(SECONDS, dict)
    for second, expected in ((0, 0), (1, 1), (2, 2)):
        starved = Signs("S", ticks=5, moved=0, in_line=frozenset({("7", 3)}))
        assert watch._update("rank-0", starved, 0, second).still_since == expected
    for second in (3, 4):  # one that runs now and then, for next to nothing: a heartbeat
        beats = Signs("S", ticks=5, moved=0, in_line=frozenset({("7", 3 + second)}))
        assert watch._update("rank-0", beats, 0, second).still_since == 2
