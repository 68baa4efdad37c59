"""A process that is stopped is named in time, whichever it is; a killed one leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import TIMEOUT, Command, errors, is_alive, newest_step, shoal

pytestmark = pytest.mark.slow
SECONDS = 5.0  # launch.hang_timeout; a step takes milliseconds


@pytest.fixture(scope="module")
def endless(place: Path) -> Path:
    """A run that only a failure ends."""
    more = {"train.epochs": 100000, "launch.hang_timeout": SECONDS}
    return write_config(place / "hanging.yaml", MODELS["BPR"], LONG, more)


def start(config: Path, folder: Path, strategy: str) -> Command:
    """Two ranks in the midst of training; under ps with a server."""
    own_folder = folder.parent / "tmp"
    own_folder.mkdir()
    words = ["train", config, "--nproc=2", f"--strategy.name={strategy}"]
    if strategy == "ps":
        words = ["launch", "--worker_num=2", "--server_num=1", config]
    command = shoal(*words, "--output", folder, cwd=folder.parent, TMPDIR=str(own_folder))
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    return command


@pytest.mark.parametrize(
    "strategy, victim",
    [("ddp", "rank 1"), ("sharded", "rank 0"), ("ps", "rank 1"), ("ps", "server 0")],
)
def test_one_that_is_stopped_is_named(
    endless: Path, tmp_path: Path, strategy: str, victim: str
) -> None:
    command = start(endless, tmp_path / "run", strategy)
    ranks = command.ranks()
    pid = command.servers()[0, 0] if victim == "server 0" else ranks[int(victim[-1])]
    os.kill(pid, signal.SIGSTOP)
    assert command.wait() == 2, command.output
    (message,) = errors(command.output)
    assert f"{victim} on host" in message and f"pid {pid}" in message
    (seconds,) = re.findall(r"was stopped (\d+) s ago", message)
    assert SECONDS <= int(seconds) < 3 * SECONDS
    assert not any(is_alive(one) for one in ranks.values())
    assert not list((tmp_path / "tmp").glob("shoal-*"))


@pytest.mark.parametrize("victim", ["rank 0", "server 0"])
def test_one_that_is_stopped_at_its_start(endless: Path, tmp_path: Path, victim: str) -> None:
    words = ("launch", "--worker_num=1", "--server_num=1", endless, "--output", tmp_path / "run")
    command = shoal(*words, cwd=tmp_path)
    found = command.ranks if victim == "rank 0" else command.servers
    pid = command.until("a process", lambda: next(iter(found().values()), None))
    os.kill(pid, signal.SIGSTOP)
    assert command.wait() == 2, command.output
    (message,) = errors(command.output)
    assert f"{victim} on host" in message and f"pid {pid}" in message
    assert "was stopped" in message and "at its start" in message


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("strategy", ["ddp", "ps"])
def test_a_launcher_that_is_stopped_or_killed(
    endless: Path, tmp_path: Path, strategy: str, number: signal.Signals
) -> None:
    """Its ranks end, and say why; of a killed one they take away what it left."""
    command = start(endless, tmp_path / "run", strategy)
    ranks = list(command.ranks().values())
    if strategy == "ps":
        ranks.append(command.servers()[0, 0])
    os.kill(command.process.pid, number)
    deadline = time.monotonic() + TIMEOUT
    while any(is_alive(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_alive(pid) for pid in ranks), command.output
    if number == signal.SIGKILL:
        assert not list((tmp_path / "tmp").glob("shoal-*"))
        return
    assert "the launcher" in command.output and "was stopped" in command.output
    os.kill(command.process.pid, signal.SIGCONT)
    assert command.wait() == 2
    assert not list((tmp_path / "tmp").glob("shoal-*"))
