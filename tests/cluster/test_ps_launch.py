"""`shoal launch`: workers and servers of one host, their failures, and runs that go on."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_configs import LONG, MODELS, SHORT, write_config
from commands import (
    Command,
    errors,
    finish,
    metrics,
    newest_step,
    processes,
    result,
    shoal,
)
from ranks import free_port

SECONDS_TO_END = 20.0  # a few on a quiet machine
SYNC = {"strategy.ps.mode": "sync", "train.epochs": 2, "checkpoint.every_steps": 5}


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    return write_config(place / "ps.yaml", MODELS["BPR"], SHORT, SYNC)


@pytest.fixture(scope="module")
def endless(place: Path) -> Path:
    """A run that only a failure ends."""
    forever = {**SYNC, "train.epochs": 100000, "checkpoint.every_steps": 11}
    return write_config(place / "ps-endless.yaml", MODELS["BPR"], LONG, forever)


@pytest.fixture(scope="module")
def whole(place: Path, config: Path) -> Path:
    """The folder of a run that was never stopped."""
    words = ("--worker_num=2", "--server_num=2", "-m", config, "--output", place / "whole")
    output = finish("launch", *words, cwd=place)
    assert "best valid" in output and f"run: {place / 'whole'}" in output
    assert not errors(output) and "Traceback" not in output
    assert processes() == []
    return place / "whole"


COUNTS = ("--worker_num=2", "--server_num=2")


def lists() -> tuple[str, str]:
    """The same by addresses, as on many hosts."""
    ports = [free_port() for _ in range(4)]
    workers, some = (",".join(f"127.0.0.1:{p}" for p in half) for half in (ports[:2], ports[2:]))
    return f"--workers={workers}", f"--servers={some}"


def started(config: Path, folder: Path, roles: tuple[str, str] = COUNTS) -> Command:
    """Two workers and two servers in the midst of training."""
    command = shoal("launch", *roles, "-m", config, "--output", folder, cwd=folder.parent)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    assert sorted(command.ranks()) == [0, 1] and len(command.servers()) == 2
    return command


def the_end_of(command: Command, status: int = 2) -> str:
    """The command has ended in time with all that it started; its one error."""
    begun = time.monotonic()
    assert command.wait(60) == status, command.output
    assert time.monotonic() - begun < SECONDS_TO_END
    while left := processes():
        assert time.monotonic() - begun < SECONDS_TO_END, f"left behind: {left}"
        time.sleep(0.05)
    assert "Traceback" not in command.output, command.output
    messages = errors(command.output)
    assert len(messages) == (0 if status == 130 else 1), command.output
    return messages[0] if messages else command.output


def numbers(folder: Path) -> list[float]:
    """Every number that training wrote, line by line."""
    found: list[float] = []

    def gather(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                gather(value[key])
        elif isinstance(value, int | float):
            found.append(float(value))

    for line in metrics(folder):
        gather(line)
    gather({key: result(folder)[key] for key in ("best_valid", "test")})
    return found


@pytest.mark.slow
def test_it_learns_as_one_process_does(place: Path, config: Path, whole: Path) -> None:
    finish("train", config, "--strategy.name=single", "--output", place / "one", cwd=place)
    assert result(whole)["world_size"] == 2
    expected = result(place / "one")
    assert result(whole)["test"] == pytest.approx(expected["test"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    "roles", [pytest.param(lambda: COUNTS), pytest.param(lists, marks=pytest.mark.slow)]
)
def test_a_server_that_is_killed(endless: Path, tmp_path: Path, roles: Any) -> None:
    """On one host that is seen at once; a worker would say so only after its patience."""
    command = started(endless, tmp_path / "run", roles())
    victim = command.servers()[1, 0]
    os.kill(victim, signal.SIGKILL)
    message = the_end_of(command)
    for part in ("server 1 on host", socket.gethostname(), "SIGKILL", f"pid {victim}", "--resume"):
        assert part in message


@pytest.mark.slow
def test_a_server_to_which_nobody_comes(config: Path, tmp_path: Path) -> None:
    """Its worker may have failed on another host, before it ever said a word."""
    words = (*lists(), "--role=server", "-m", config, "--launch.join_timeout=0.5", "--output=run")
    command = shoal("launch", *words, cwd=tmp_path)
    command.until("a server", lambda: "server 0 listens on" in command.output)
    message = the_end_of(command)
    assert "server 0 on host" in message and "no worker came within 2 s: start the" in message


@pytest.mark.slow
def test_ctrl_c(endless: Path, tmp_path: Path) -> None:
    command = started(endless, tmp_path / "run")
    command.interrupt()
    output = the_end_of(command, 130)
    assert output.count("stopped by SIGINT; what was saved can be continued") == 1


@pytest.mark.parametrize(
    "workers, servers",
    [pytest.param(1, 3, marks=pytest.mark.slow), pytest.param(3, 1, marks=pytest.mark.slow)],
)
def test_going_on_with_other_numbers(
    config: Path, whole: Path, tmp_path: Path, workers: int, servers: int
) -> None:
    """Killed in its midst and resumed elsewhere: the numbers of a run that was never stopped."""
    folder = tmp_path / "run"
    counts = ("--worker_num=2", "--server_num=2", "-m", config, "--output", folder)
    command = shoal("launch", *counts, cwd=tmp_path)
    command.until("a checkpoint", lambda: newest_step(folder) >= 5)
    command.kill()
    deadline = time.monotonic() + SECONDS_TO_END
    while processes() and time.monotonic() < deadline:  # servers notice that they are alone
        time.sleep(0.05)
    saved = newest_step(folder)
    assert saved >= 5
    words = (f"--worker_num={workers}", f"--server_num={servers}", "--resume", "--output", folder)
    output = finish("launch", *words, cwd=tmp_path)
    assert f"(step {newest_of(output)})" in output and "damaged" not in output
    assert result(folder)["world_size"] == workers
    assert numbers(folder) == pytest.approx(numbers(whole), rel=1e-6, abs=1e-6)


def newest_of(output: str) -> int:
    """The step that a resumed run says it began at."""
    line = next(line for line in output.splitlines() if "resuming " in line)
    return int(line.rpartition("(step ")[2].split(")")[0])


@pytest.mark.slow
def test_evaluating_without_servers(whole: Path, tmp_path: Path) -> None:
    finish("eval", whole, "--output", tmp_path / "eval", cwd=tmp_path)
    assert result(tmp_path / "eval")["test"] == pytest.approx(result(whole)["test"], abs=1e-6)


@pytest.mark.slow
def test_lists_on_one_host(config: Path, whole: Path, tmp_path: Path) -> None:
    """The way of many hosts, with one: same numbers."""
    finish("launch", *lists(), "-m", config, "--output", tmp_path / "run", cwd=tmp_path)
    assert numbers(tmp_path / "run") == pytest.approx(numbers(whole), rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_a_worker_that_is_killed(endless: Path, tmp_path: Path) -> None:
    command = started(endless, tmp_path / "run")
    victim = command.ranks()[1]
    os.kill(victim, signal.SIGKILL)
    message = the_end_of(command)
    for part in ("rank 1 on host", "SIGKILL", f"pid {victim}", "--resume"):
        assert part in message


@pytest.mark.slow
def test_servers_follow_a_killed_launcher(endless: Path, tmp_path: Path) -> None:
    command = started(endless, tmp_path / "run")
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait(10)
    deadline = time.monotonic() + SECONDS_TO_END
    while left := processes():
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_port_in_use(config: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        roles = (f"--workers=127.0.0.1:{free_port()}", f"--servers=127.0.0.1:{port}")
        command = shoal("launch", *roles, "-m", config, "--output", tmp_path / "run", cwd=tmp_path)
        message = the_end_of(command)
    assert f"server 0 cannot listen on 127.0.0.1:{port}: Address already in use" in message
