"""Three hosts with addresses of their own: network namespaces, joined by a bridge.

They need root and the `ip` command; without them the tests skip and say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_configs import LONG, MODELS, SHORT, write_config
from commands import SHOAL, Command, errors, finish, metrics, newest_step, result
from net_hosts import ADDRESSES, Hosts

from shoal.distributed.key_files import make_keys

pytestmark = pytest.mark.slow

# Silence counts from the ten seconds that are the default: on a busy machine a process gets no
# turn for three, and a run that nobody disturbed would be given up.
PS = {"strategy.ps.mode": "sync", "train.epochs": 2}
HOSTS = 3  # two workers, one server
ROLES = (
    f"--workers={ADDRESSES[0]}:5701,{ADDRESSES[1]}:5702",
    f"--servers={ADDRESSES[2]}:5703",
)


def launch(hosts: Hosts, folder: Path, *words: str | Path) -> list[Command]:
    """The same command on every host."""
    command = (*SHOAL, "launch", *ROLES, "--output", str(folder), *map(str, words))
    return [
        Command(("ip", "netns", "exec", name, *command), folder.parent / name)
        for name in hosts.names
    ]


@pytest.fixture(scope="module")
def expected(place: Path, config: Path) -> list[dict[str, Any]]:
    """The numbers of the same run on this host alone."""
    words = ("--worker_num=2", "--server_num=1", "-m", config, "--output", place / "here")
    finish("launch", *words, cwd=place)
    return numbers(place / "here")


@pytest.fixture(scope="module")
def keys(place: Path) -> Path:
    return make_keys(place / "keys")


@pytest.fixture(scope="module")
def config(place: Path, keys: Path) -> Path:
    values = {**PS, "strategy.ps.keys": str(keys)}
    return write_config(place / "hosts.yaml", MODELS["BPR"], SHORT, values)


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [*metrics(folder), result(folder)["test"]]


def train(hosts: Hosts, config: Path, folder: Path) -> list[dict[str, Any]]:
    commands = launch(hosts, folder, "-m", config)
    for command in commands:
        assert command.wait() == 0, "\n".join(one.output for one in commands)
    assert result(folder)["world_size"] == 2
    assert f"run: {folder}" in commands[0].output
    assert "what ranks send each other is encrypted" in commands[0].output
    return numbers(folder)


def test_hosts_without_keys_are_refused(hosts: Hosts, place: Path, tmp_path: Path) -> None:
    plain = write_config(tmp_path / "plain.yaml", MODELS["BPR"], SHORT, PS)
    for command in launch(hosts, tmp_path / "run", "-m", plain):
        assert command.wait() == 2
        (message,) = errors(command.output)
        assert "several hosts, and no keys: make them once with `shoal keys make" in message


def test_two_workers_and_a_server(
    hosts: Hosts, config: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert len(expected) > 2
    assert train(hosts, config, tmp_path / "run") == expected


@pytest.mark.parametrize("host", [1, 2], ids=["worker 1", "server 0"])
def test_a_line_that_is_cut(
    hosts: Hosts, place: Path, keys: Path, tmp_path: Path, host: int
) -> None:
    forever = {**PS, "train.epochs": 100000, "strategy.ps.keys": str(keys)}
    endless = write_config(place / "hosts-endless.yaml", MODELS["BPR"], LONG, forever)
    folder = tmp_path / "run"
    commands = launch(hosts, folder, "-m", endless)
    commands[0].until("the first checkpoints", lambda: newest_step(folder) > 10)
    hosts.cut(host)
    told = []
    for command in commands:
        assert command.wait() in (1, 2), command.output
        assert "Traceback" not in command.output, command.output
        (message,) = errors(command.output)
        told.append(message)
    server = f"server 0 at {ADDRESSES[2]}:5703"
    for message in told[:2]:  # whom a worker was waiting for when the line was cut
        waits = (server, "lost its peers", "a rank of another host")
        assert any(words in message for words in waits), message
    assert "server 0 on host" in told[2] and "has been silent" in told[2]
    if host == 1:
        assert "worker 1 on host" in told[2]


def test_a_disk_that_is_not_shared(hosts: Hosts, config: Path, tmp_path: Path) -> None:
    """It is told before the first step, with the remedy."""
    commands = []
    for name, folder in zip(hosts.names, ("run", "run", "elsewhere")):
        words = (*SHOAL, "launch", *ROLES, "--output", str(tmp_path / folder), "-m", str(config))
        commands.append(Command(("ip", "netns", "exec", name, *words), tmp_path / name))
    for command in commands:
        assert command.wait() != 0, command.output
        assert "Traceback" not in command.output and "epoch 0 training" not in command.output
    (message,) = errors(commands[0].output)
    assert "server 0 cannot see the folder" in message
    assert "run.output must be on a disk that all hosts share" in message
