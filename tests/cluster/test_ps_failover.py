"""`shoal launch` with replicas: a server is killed, nothing is started again, no number changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import Command, errors, finish, newest_step, shoal
from ranks import free_port
from test_ps_launch import numbers
from test_ps_recovery import EPOCH, PATIENCE, until_saved

pytestmark = pytest.mark.slow
MORE = {**EPOCH, "strategy.ps.journal": False, "strategy.ps.replicas": 2}
ROLES = ("--worker_num=2", "--server_num=2")


def config_of(path: Path, **more: object) -> Path:
    return write_config(path, MODELS["NeuMF"], LONG, MORE, dict(more))


def learned(folder: Path) -> dict[str, bytes]:
    """Every file of weights of the last checkpoint."""
    last = folder / "checkpoints" / f"step-{newest_step(folder):09d}"
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def run_whole(place: Path, config: Path) -> Path:
    """The folder of the same run without kills, and without replicas."""
    words = ("-m", config, "--strategy.ps.replicas=1", "--output", place / "whole")
    command = shoal("launch", *ROLES, *words, cwd=place)
    assert command.wait(PATIENCE) == 0, command.output
    return place / "whole"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_of_two_is_killed(tmp_path: Path, mode: str) -> None:
    """In the midst of an epoch, of each of two servers: another process is never needed."""
    config = config_of(tmp_path / "c.yaml", **{"strategy.ps.mode": mode})
    folder = tmp_path / "run"
    command = shoal("launch", *ROLES, "-m", config, "--output", folder, cwd=tmp_path)
    until_saved(command, folder)
    workers, there = command.ranks(), command.servers()
    assert sorted(there) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    told = "its replica goes on, and no other is started in its place"
    for count, place in enumerate([(1, 0), (0, 1)], 1):  # one that is read from, one that is not
        saved = newest_step(folder)
        if count > 1:
            command.until("the next checkpoint", lambda s=saved: newest_step(folder) > s, PATIENCE)
        assert not (folder / "metrics.jsonl").exists()  # all of it within the first epoch
        os.kill(there[place], signal.SIGKILL)
        command.until("the message", lambda n=count: command.output.count(told) == n, PATIENCE)
        assert command.ranks() == workers
    assert command.servers() == {place: there[place] for place in [(0, 0), (1, 1)]}
    assert command.wait(PATIENCE) == 0, command.output
    assert not errors(command.output) and "Traceback" not in command.output
    assert f"server 1 (replica 1 of 2) on host {os.uname().nodename}" in command.output
    if mode == "sync":
        whole = run_whole(tmp_path, config)
        assert numbers(folder) == numbers(whole)
        assert learned(folder) == learned(whole)


def test_both_are_killed(tmp_path: Path) -> None:
    """One error, which names the last; what was saved can be continued."""
    config, folder = config_of(tmp_path / "c.yaml"), tmp_path / "run"
    roles = ("--worker_num=1", "--server_num=1")
    command = shoal("launch", *roles, "-m", config, "--output", folder, cwd=tmp_path)
    until_saved(command, folder)
    there = command.servers()
    os.kill(there[0, 0], signal.SIGKILL)
    command.until("the message", lambda: "its replica goes on" in command.output, PATIENCE)
    os.kill(there[0, 1], signal.SIGKILL)
    assert command.wait(PATIENCE) == 2
    (message,) = errors(command.output)
    assert "server 0 (replica 2 of 2) on host" in message and f"pid {there[0, 1]}" in message
    assert "--resume" in message and "Traceback" not in command.output
    # The folder tells how many servers it had, with how many replicas.
    output = finish("train", "--resume", folder, "--nproc=2", cwd=tmp_path)
    assert "resuming" in output
    assert numbers(folder) == pytest.approx(numbers(run_whole(tmp_path, config)), rel=1e-6)


def test_a_host_of_servers_is_lost(tmp_path: Path) -> None:
    """As on many hosts: the launcher of a server is killed, and with it the server."""
    config, folder = config_of(tmp_path / "c.yaml"), tmp_path / "run"
    ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    roles = (f"--workers={ports[0]}", f"--servers={','.join(ports[1:])}")

    def start(role: str, index: int) -> Command:
        words = (*roles, f"--role={role}", f"--index={index}", "-m", config, "--output", folder)
        return shoal("launch", *words, cwd=tmp_path / f"{role}{index}")

    first, other, worker = start("server", 0), start("server", 1), start("worker", 0)
    until_saved(worker, folder)
    first.kill()
    for command in (worker, other):
        assert command.wait(PATIENCE) == 0, command.output
        assert not errors(command.output) and "Traceback" not in command.output
    assert f"server 0 at {ports[1]} is gone; its replica at {ports[2]} goes on" in worker.output
