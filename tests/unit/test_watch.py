"""Processes that hang are named; those that work, or wait for others, are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.launch.watch import Hang, Watch
from shoal.world.beat import look

SECONDS = 1.0
BEGIN = """
import sys, time
from pathlib import Path
from shoal.world.beat import BEAT
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


def found(children: list[Child], seconds: float, elsewhere: float | None = None) -> dict[int, Hang]:
    """What a watch finds within some seconds."""
    files = {child.path.name: child.path for child in children}
    last = None if elsewhere is None else lambda: elsewhere
    with Watch(SECONDS, lambda: files, last) as watch:
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
