"""A run that fails is brought back by its launcher, and ends as one that never failed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import Command, errors, finish, is_alive, newest_step, result, shoal
from ranks import free_port
from test_resume import assert_same, long_run

from shoal.config import ConfigError
from shoal.runs.run import resolve

AGAIN = "on all 3 processes again"


def kill_after(
    command: Command, folder: Path, victim: int | str, number: int, ranks: int = 2
) -> int:
    """Kill a process when some steps more are saved; its number."""
    first = newest_step(folder)
    command.until("some steps more", lambda: newest_step(folder) > first + 20)
    command.until("the processes", lambda: len(command.ranks()) == ranks)
    pid = command.servers()[0, 0] if victim == "server 0" else command.ranks()[int(victim)]
    os.kill(pid, number)
    command.until("its end", lambda: not is_alive(pid))
    return pid


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy, victims", [("sharded", (1, 0)), ("ddp", (0, 1)), ("ps", (1, "server 0"))]
)
def test_killed_twice(tmp_path: Path, strategy: str, victims: tuple[int | str, ...]) -> None:
    config, reference = long_run(tmp_path, "BPR")
    words: list[str | Path] = ["train", config, "--nproc=2", f"--strategy.name={strategy}"]
    if strategy == "ps":
        words = ["launch", "--worker_num=2", "--server_num=1", config]
    folder = tmp_path / "run"
    command = shoal(*words, "--output", folder, "--launch.max_restarts=2", cwd=tmp_path)
    pids = [kill_after(command, folder, victim, signal.SIGKILL) for victim in victims]
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output and not errors(command.output)
    for number, (victim, pid) in enumerate(zip(victims, pids), 1):
        who = victim if isinstance(victim, str) else f"rank {victim}"
        said = [line for line in command.output.splitlines() if f"pid {pid}" in line]
        assert len(said) == 1 and said[0].startswith(f"{who} on host"), command.output
        assert f"restart {number} of 2 from step " in command.output
    assert_same(folder, reference, 1e-5)


@pytest.mark.slow
def test_fewer_processes_for_good(tmp_path: Path) -> None:
    """Rank 1 is killed as soon as it is there: the run goes on with one process."""
    config, reference = long_run(tmp_path, "BPR")
    folder = tmp_path / "run"
    words = ("--nproc=2", "--launch.max_restarts=3", "--launch.min_nproc=1", "--launch.regrow=0")
    command = shoal("train", config, *words, "--output", folder, cwd=tmp_path)
    os.kill(command.until("two ranks", lambda: command.ranks().get(1)), signal.SIGKILL)
    assert command.wait() == 0, command.output
    assert "restart 1 of 3 from the beginning, on 1 process" in command.output
    assert "again" not in command.output and result(folder)["world_size"] == 1
    assert_same(folder, reference, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy, victims", [("ddp", [1]), ("sharded", [0, 2]), ("ps", [1])])
def test_fewer_processes_and_all_again(tmp_path: Path, strategy: str, victims: list[int]) -> None:
    """Of three ranks one is killed: two go on, then three; and all of it once more."""
    config = write_config(tmp_path / "c.yaml", MODELS["BPR"], LONG, {"train.epochs": 20})
    finish("train", config, "--output", tmp_path / "reference", cwd=tmp_path)
    words: list[str | Path] = ["train", config, "--nproc=3", f"--strategy.name={strategy}"]
    if strategy == "ps":
        words = ["launch", "--worker_num=3", "--server_num=1", config]
    words += ["--launch.max_restarts=2", "--launch.min_nproc=2", "--launch.regrow=1"]
    folder = tmp_path / "run"
    command = shoal(*words, "--output", folder, cwd=tmp_path)
    for number, victim in enumerate(victims, 1):
        kill_after(command, folder, victim, signal.SIGKILL, ranks=3)
        command.until("two ranks", lambda: sorted(command.ranks()) == [0, 1])
        command.until("three again", lambda n=number: command.output.count(AGAIN) == n)
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output and not errors(command.output)
    lines = command.output.splitlines()
    said = [line for line in lines if line.startswith(("restart ", "going on "))]
    assert len(said) == 2 * len(victims)
    for number in range(len(victims)):
        assert f"restart {number + 1} of 2 from step " in said[2 * number]
        assert said[2 * number].endswith(", on 2 processes")
        (step,) = re.findall(r"going on from step (\d+) on all 3", said[2 * number + 1])
        assert f"saved at step {step}" in command.output
    assert result(folder)["world_size"] == 3
    assert_same(folder, tmp_path / "reference", 1e-5)


@pytest.mark.slow
def test_what_would_fail_again_is_not_tried_again(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.yaml", MODELS["BPR"], LONG, {"data.name": "nowhere"})
    words = ("--nproc=2", "--launch.max_restarts=3", "--output", tmp_path / "run")
    command = shoal("train", config, *words, cwd=tmp_path)
    assert command.wait() == 2
    (message,) = errors(command.output)
    assert "no data set" in message and "restart" not in command.output


def test_what_several_hosts_cannot_do_is_refused(short: Path) -> None:
    words = ["--nproc=1", "--world_size=2", "--port=5678", "--launch.max_restarts=1"]
    resolve([short], words)
    with pytest.raises(ConfigError, match="is for runs that one host launches"):
        resolve([short], [*words, "--launch.min_nproc=1"])
    with pytest.raises(ConfigError, match="restarts servers and workers of one host"):
        resolve([short], [*words, "--strategy.name=ps", "--strategy.ps.addresses=[a:1]"])


@pytest.mark.slow
def test_two_hosts_come_back(tmp_path: Path) -> None:
    """A rank of the second host is killed, then the whole of it, which is started once more."""
    config, reference = long_run(tmp_path, "BPR")
    folder, port = tmp_path / "run", free_port()
    meet = ("--ip=127.0.0.1", f"--port={port}", "--nproc=1", "--world_size=2")

    def on(host: int, *more: str) -> Command:
        words = (*meet, f"--group_offset={host}", "--launch.max_restarts=2", *more)
        return shoal("train", config, *words, "--output", folder, cwd=tmp_path / f"host-{host}")

    first, second = on(0), on(1)
    first.until("some steps", lambda: newest_step(folder) > 20)
    os.kill(second.ranks()[1], signal.SIGKILL)
    first.until("a restart", lambda: "restart 1 of 2 from step " in first.output)
    second.until("a restart", lambda: "restart 1 of 2" in second.output)
    at = newest_step(folder)
    first.until("more steps", lambda: newest_step(folder) > at + 20)
    second.kill()
    third = on(1, "--resume")
    for command in (first, third):
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output and not errors(command.output)
    assert "restart 2 of 2 from step " in first.output
    assert_same(folder, reference, 1e-5)
