"""`shoal launch` with a journal: servers that are killed come back alone, and no number changes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import Command, errors, is_alive, newest_step, shoal
from ranks import free_port
from test_ps_launch import numbers

pytestmark = pytest.mark.slow
KILLS = 5
PATIENCE = 600.0  # a process starts in seconds; on a busy machine in a minute, and here many do
# One epoch of some 360 steps, and a checkpoint every 70: kills fall between checkpoints.
EPOCH = {
    "train.epochs": 1,
    "train.batch_size": 16,
    "data.synthetic.interactions": 6000,
    "checkpoint.every_steps": 70,
    "strategy.ps.journal": True,
    "launch.join_timeout": PATIENCE / 2,
}
ROLES = ("--worker_num=2", "--server_num=2")


def config_of(path: Path, **more: object) -> Path:
    return write_config(path, MODELS["NeuMF"], LONG, EPOCH, dict(more))


def kill_server(command: Command, number: int) -> int:
    """Kill a server in the midst of its work; its process, when another one is at work."""
    pid = command.until("a server", lambda: command.servers().get((number, 0)))
    until_back(command, number, lambda: os.kill(pid, signal.SIGKILL))
    return pid


def until_back(command: Command, number: int, hit: Callable[[], None]) -> None:
    """Hit a server, and wait until another process of it is at work."""
    told = f"server {number} is back"
    count = command.output.count(told)
    hit()
    command.until("its return", lambda: command.output.count(told) > count, PATIENCE)


def until_saved(command: Command, folder: Path) -> None:
    command.until("the first checkpoint", lambda: newest_step(folder) > 0, PATIENCE)


def run_whole(place: Path, config: Path) -> Path:
    """The folder of the same run without kills, and without a journal."""
    words = ("-m", config, "--strategy.ps.journal=false", "--output", place / "whole")
    command = shoal("launch", *ROLES, *words, cwd=place)
    assert command.wait(PATIENCE) == 0, command.output
    return place / "whole"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_of_two_servers_is_killed_five_times(tmp_path: Path, mode: str) -> None:
    more = {"strategy.ps.mode": mode}
    config, folder = config_of(tmp_path / "c.yaml", **more), tmp_path / "run"
    command = shoal("launch", *ROLES, "-m", config, "--output", folder, cwd=tmp_path)
    until_saved(command, folder)
    workers = command.ranks()
    killed = [kill_server(command, 1) for _ in range(KILLS)]
    assert (folder / "metrics.jsonl").exists() is False  # all of them within the first epoch
    assert command.ranks() == workers and len(set(killed)) == KILLS
    assert command.wait(PATIENCE) == 0, command.output
    assert not errors(command.output) and "Traceback" not in command.output
    assert command.output.count("SIGKILL") == KILLS
    assert not (folder / "checkpoints" / "journal").exists()
    if mode == "sync":
        assert numbers(folder) == numbers(run_whole(tmp_path, config))


def test_more_kills_than_restarts(tmp_path: Path) -> None:
    """Then the run ends, and says what it always said."""
    config, folder = config_of(tmp_path / "c.yaml", **{"strategy.ps.restarts": 1}), tmp_path / "run"
    command = shoal("launch", *ROLES, "-m", config, "--output", folder, cwd=tmp_path)
    until_saved(command, folder)
    kill_server(command, 0)
    pid = command.servers()[0, 0]
    os.kill(pid, signal.SIGKILL)
    assert command.wait(PATIENCE) == 2
    (message,) = errors(command.output)
    assert "server 0 on host" in message and f"pid {pid}" in message and "--resume" in message


def test_a_server_that_is_stopped_for_good(tmp_path: Path) -> None:
    """It hangs: it is killed, and comes back."""
    more = {"launch.hang_timeout": 5.0}
    config, folder = config_of(tmp_path / "c.yaml", **more), tmp_path / "run"
    command = shoal("launch", *ROLES, "-m", config, "--output", folder, cwd=tmp_path)
    until_saved(command, folder)
    for _ in range(2):
        pid = command.servers()[1, 0]
        until_back(command, 1, lambda pid=pid: os.kill(pid, signal.SIGSTOP))
    assert command.wait(PATIENCE) == 0, command.output
    assert command.output.count("was stopped") == 2 and not errors(command.output)


def test_started_again_by_hand(tmp_path: Path) -> None:
    """As on many hosts: the launcher of a server is killed, and the same command starts it."""
    config, folder = config_of(tmp_path / "c.yaml"), tmp_path / "run"
    ports = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    roles = (f"--workers={','.join(ports[:2])}", f"--servers={','.join(ports[2:])}")
    words = ("-m", config, "--output", folder)

    def start(role: str, index: int) -> Command:
        one = (f"--role={role}", f"--index={index}")
        return shoal("launch", *roles, *one, *words, cwd=tmp_path / f"{role}{index}")

    commands = {(role, k): start(role, k) for role in ("server", "worker") for k in (0, 1)}
    first = commands["worker", 0]
    until_saved(first, folder)
    old = commands["server", 1]
    pid = old.servers()[1, 0]
    old.kill()
    deadline = time.monotonic() + PATIENCE
    while is_alive(pid) and time.monotonic() < deadline:  # it follows its launcher
        time.sleep(0.05)
    commands["server", 1] = start("server", 1)
    for command in commands.values():
        assert command.wait(PATIENCE) == 0, command.output
        assert not errors(command.output)
    assert "server 1 is back" in commands["server", 1].output
    assert numbers(folder) == numbers(run_whole(tmp_path, config))
