"""Three hosts with addresses of their own: network namespaces, joined by a bridge.

They need root and the `ip` command; without them the tests skip and say so.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_configs import LONG, MODELS, SHORT, write_config
from commands import SHOAL, Command, errors, finish, metrics, newest_step, processes, result

from shoal.ps.keys import make_keys

pytestmark = pytest.mark.slow

TUNSETIFF, TAP = 0x400454CA, 0x1002  # of linux/if_tun.h: a device of frames, and nothing before
# Silence counts from the ten seconds that are the default: on a busy machine a process gets no
# turn for three, and a run that nobody disturbed would be given up.
PS = {"strategy.ps.mode": "sync", "train.epochs": 2}
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

    def join(self) -> None:
        """Lines from every host to a switch."""
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for k, (name, address) in enumerate(zip(self.names, ADDRESSES)):
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.switch, "link", "add", f"port{k}", *ends)
            run("ip", "-n", self.switch, "link", "set", f"port{k}", "master", "bridge", "up")
            self.address(name, address)

    def address(self, name: str, address: str) -> None:
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self, host: int) -> None:
        run("ip", "-n", self.switch, "link", "set", f"port{host}", "down")

    def launch(self, folder: Path, *words: str | Path) -> list[Command]:
        """The same command on every host."""
        command = (*SHOAL, "launch", *ROLES, "--output", str(folder), *map(str, words))
        return [
            Command(("ip", "netns", "exec", name, *command), folder.parent / name)
            for name in self.names
        ]


class SlowSwitch:
    """A switch that hands on every frame after a while; it needs no netem in the kernel."""

    def __init__(self, hosts: Hosts, seconds: float):
        self.seconds, self.frames, self.lines = seconds, 0, []
        self._over = threading.Event()
        for k, (name, address) in enumerate(zip(hosts.names, ADDRESSES)):
            line = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self.lines.append(line)
            device = f"shoal{os.getpid() % 100000}-{k}"
            fcntl.ioctl(line, TUNSETIFF, struct.pack("16sH22x", device.encode(), TAP))
            run("ip", "link", "set", device, "netns", name, "name", "eth0")
            hosts.address(name, address)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due: deque[tuple[float, int, bytes]] = deque()
        while not self._over.is_set():
            wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.1
            for line in select.select(self.lines, [], [], wait)[0]:
                with suppress(OSError):
                    due.append((time.monotonic() + self.seconds, line, os.read(line, 1 << 16)))
            while due and due[0][0] <= time.monotonic():
                _, source, frame = due.popleft()
                self.frames += 1
                for line in self.lines:
                    if line != source:
                        with suppress(OSError):  # its host is not up, or has no room
                            os.write(line, frame)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for line in self.lines:
            os.close(line)


@pytest.fixture
def apart() -> Iterator[Hosts]:
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


@pytest.fixture
def hosts(apart: Hosts) -> Hosts:
    try:
        apart.join()
    except OSError as error:
        pytest.skip(f"network namespaces cannot be joined here: {error}")
    return apart


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
    commands = hosts.launch(folder, "-m", config)
    for command in commands:
        assert command.wait() == 0, "\n".join(one.output for one in commands)
    assert result(folder)["world_size"] == 2
    assert f"run: {folder}" in commands[0].output
    assert "what ranks send each other is encrypted" in commands[0].output
    return numbers(folder)


def test_hosts_without_keys_are_refused(hosts: Hosts, place: Path, tmp_path: Path) -> None:
    plain = write_config(tmp_path / "plain.yaml", MODELS["BPR"], SHORT, PS)
    for command in hosts.launch(tmp_path / "run", "-m", plain):
        assert command.wait() == 2
        (message,) = errors(command.output)
        assert "several hosts, and no keys: make them once with `shoal keys make" in message


def test_two_workers_and_a_server(
    hosts: Hosts, config: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert len(expected) > 2
    assert train(hosts, config, tmp_path / "run") == expected


def test_a_delay_changes_no_number(
    apart: Hosts, config: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    try:
        switch = SlowSwitch(apart, 0.02)
    except OSError as error:
        pytest.skip(f"a switch of our own cannot be made here: {error}")
    try:
        assert train(apart, config, tmp_path / "run") == expected
        assert switch.frames > 100
    finally:
        switch.close()


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
    told = []
    for command in commands:
        assert command.wait() in (1, 2), command.output
        assert "Traceback" not in command.output, command.output
        (message,) = errors(command.output)
        told.append(message)
    server = f"server 0 at {ADDRESSES[2]}:5703"
    assert server in told[0] or "lost its peers" in told[0]
    assert server in told[1] or "lost its peers" in told[1]
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
