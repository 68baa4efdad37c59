"""Three hosts with addresses of their own: network namespaces, joined by a bridge.

They need root and the `ip` command; without them the tests skip and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import SHOAL, Command, errors, metrics, newest_step, processes, result
from conftest import LONG, MODELS, SHORT, write_config

from shoal.ps.keys import make_keys

SECONDS_TO_END = 30.0  # some ten on a quiet machine: silence is noticed after three
PS = {"strategy.ps.mode": "sync", "strategy.ps.timeout": 3.0, "train.epochs": 2}
ADDRESSES = [f"10.213.77.{k}" for k in (1, 2, 3)]  # two workers, one server
ROLES = (
    f"--workers={ADDRESSES[0]}:5701,{ADDRESSES[1]}:5702",
    f"--servers={ADDRESSES[2]}:5703",
)


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """Three namespaces, and a fourth that is the switch between them."""

    def __init__(self) -> None:
        self.names = [f"shoal-{os.getpid()}-{k}" for k in range(3)]
        self.switch = f"shoal-{os.getpid()}-switch"

    def make(self) -> None:
        for name in (self.switch, *self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for k, (name, address) in enumerate(zip(self.names, ADDRESSES)):
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.switch, "link", "add", f"port{k}", *ends)
            run("ip", "-n", self.switch, "link", "set", f"port{k}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self, host: int) -> None:
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "down")

    def delay(self, milliseconds: int) -> None:
        for k in range(3):
            qdisc = ("root", "netem", "delay", f"{milliseconds}ms")
            run("ip", "netns", "exec", self.switch, "tc", "qdisc", "add", "dev", f"port{k}", *qdisc)

    def launch(self, folder: Path, *words: str | Path) -> list[Command]:
        """The same command on every host."""
        command = (*SHOAL, "launch", *ROLES, "--output", str(folder), *map(str, words))
        return [
            Command(("ip", "netns", "exec", name, *command), folder.parent / name)
            for name in self.names
        ]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command `ip`")
    found = Hosts()
    try:
        found.make()
    except OSError as error:
        found.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield found
    for pid, _, _ in processes():  # what a failed test left in them
        os.kill(pid, 9)
    found.remove()


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
    commands = hosts.launch(folder, "-m", config)
    for command in commands:
        assert command.wait() == 0, "\n".join(one.output for one in commands)
    assert result(folder)["world_size"] == 2
    assert f"run: {folder}" in commands[0].output
    return numbers(folder)


def test_hosts_without_keys_are_refused(hosts: Hosts, place: Path, tmp_path: Path) -> None:
    plain = write_config(tmp_path / "plain.yaml", MODELS["BPR"], SHORT, PS)
    for command in hosts.launch(tmp_path / "run", "-m", plain):
        assert command.wait() == 2
        (message,) = errors(command.output)
        assert "several hosts, and no keys: make them once with `shoal keys make" in message


def test_two_workers_and_a_server(hosts: Hosts, config: Path, tmp_path: Path) -> None:
    """And 20 ms on every line change no number."""
    expected = train(hosts, config, tmp_path / "run")
    assert len(expected) > 2
    try:
        hosts.delay(20)
    except OSError as error:
        pytest.skip(f"the part with a delay: no netem in this kernel ({error})")
    assert train(hosts, config, tmp_path / "delayed") == expected


@pytest.mark.slow
@pytest.mark.parametrize("host", [1, 2], ids=["worker 1", "server 0"])
def test_a_line_that_is_cut(
    hosts: Hosts, place: Path, keys: Path, tmp_path: Path, host: int
) -> None:
    forever = {**PS, "train.epochs": 100000, "strategy.ps.keys": str(keys)}
    endless = write_config(place / "hosts-endless.yaml", MODELS["BPR"], LONG, forever)
    folder = tmp_path / "run"
    commands = hosts.launch(folder, "-m", endless)
    commands[0].until("the first checkpoints", lambda: newest_step(folder) > 10)
    hosts.cut(host)
    begun = time.monotonic()
    told = []
    for command in commands:
        assert command.wait(60) in (1, 2), command.output
        assert time.monotonic() - begun < SECONDS_TO_END
        assert "Traceback" not in command.output, command.output
        (message,) = errors(command.output)
        told.append(message)
    server = f"server 0 at {ADDRESSES[2]}:5703"
    silent = ("worker 1 on host", "has been silent")
    assert server in told[0] or "lost its peers" in told[0]
    assert server in told[1] or "lost its peers" in told[1]
    assert "server 0 on host" in told[2] and "has been silent" in commands[2].output
    if host == 1:
        assert all(part in commands[2].output for part in silent)
