"""A run that lost a rank: how many processes it goes on with, and when it is to have all again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from shoal.config.schema import LaunchSection
from shoal.distributed.liveness import _HEAD, SIZE
from shoal.distributed.stop_signals import Stopping
from shoal.launch.child import grow_file
from shoal.launch.hosts import LaunchError
from shoal.launch.restarts import Growth, Restarts, growing
from shoal.launch.watch import Watch
from shoal.training.run_folder import RunFolder


def restarts(folder: Path, **values: float) -> Restarts:
    given = {"nproc": 3, "max_restarts": 3, "min_nproc": 2, **values}
    return Restarts(LaunchSection.model_validate(given), RunFolder(folder))


def lost(of_rank: bool = True, passing: bool = True) -> LaunchError:
    return LaunchError("somebody failed", passing=passing, of_rank=of_rank)


def save(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)


def test_one_less_and_then_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = restarts(tmp_path)
    assert run.growth is None  # nothing was lost yet
    save(tmp_path, 7)
    run.again(lost())
    assert run.nproc == 2
    growth = run.growth
    assert growth is not None and growth.seconds == 60 and not growth.is_time()
    save(tmp_path, 9)
    assert growth.is_time()
    run.grow()
    assert run.nproc == 3 and run.growth is None and run.done == 1
    run.again(lost())
    run.again(lost())
    assert run.nproc == 2  # no fewer than min_nproc
    with pytest.raises(LaunchError, match="restarts before: 3"):
        run.again(lost())
    said = capsys.readouterr().err
    assert "restart 1 of 3 from step 7, on 2 processes" in said
    assert "going on from step 9 on all 3 processes again" in said


def test_who_is_done_without(tmp_path: Path) -> None:
    run = restarts(tmp_path)
    run.again(lost(of_rank=False))  # a server: no worker is to go for it
    assert run.nproc == 3
    with pytest.raises(LaunchError):
        run.again(lost(passing=False))
    always = restarts(tmp_path, min_nproc=0)
    always.again(lost())
    assert always.nproc == 3
    never = restarts(tmp_path, regrow=0)
    never.again(lost())
    assert never.nproc == 2 and never.growth is None


def test_ranks_are_asked_when_it_is_time(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    beats.mkdir()
    with subprocess.Popen(["sleep", "60"]) as rank:
        head = _HEAD.pack(rank.pid, 1, time.monotonic(), False, False, 0)  # as a rank would beat
        (beats / "rank-0").write_bytes(head.ljust(SIZE, b"\0"))
        with growing(Growth(0.0, (tmp_path / "now").exists), beats):
            time.sleep(0.3)
            assert rank.poll() is None and not grow_file(beats).exists()
            (tmp_path / "now").touch()
            assert rank.wait(30) == -signal.SIGTERM and grow_file(beats).exists()


def test_nobody_is_asked_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    with growing(Growth(0.0, lambda: (tmp_path / "now").exists()), tmp_path / "beats"):
        pass
    (tmp_path / "now").touch()
    time.sleep(0.3)
    assert not grow_file(tmp_path / "beats").exists()


def test_a_stop_without_hurry() -> None:
    stopping = Stopping()
    assert not stopping.ask(signal.SIGTERM, hurry=False)  # nobody looks
    with stopping.handling_signals(0.0):
        assert not stopping.ask(signal.SIGTERM)  # there is no time
        assert stopping.ask(signal.SIGTERM, hurry=False)
        assert stopping.signal == signal.SIGTERM
    assert not stopping.ask(signal.SIGTERM, hurry=False)


def test_one_that_is_stopped_at_its_start() -> None:
    with subprocess.Popen(["sleep", "60"]) as rank:
        rank.send_signal(signal.SIGSTOP)
        with Watch(0.4, lambda: {}, None, lambda: [rank.pid]) as watch:
            assert rank.wait(30) == -signal.SIGKILL
        assert "was stopped" in watch.hung[rank.pid].cause
