"""Nobody else joins a run: strangers on the network, and other users of the same host.

What is said here of other users needs root, since it takes their place; without it the tests skip.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from commands import SHOAL, TIMEOUT, Command, errors, metrics, newest_step, result, shoal
from net_hosts import ADDRESSES, Hosts, run
from other_user import as_nobody, needs_root, reached


def family(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def listeners(root: int) -> set[str]:
    """IP:PORT at which a process and its descendants listen, the address as /proc writes it."""
    found = set()
    for pid in family(root):
        own = set()
        with suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    own.add(os.readlink(handle))
            for name in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                        found.add(fields[1])
    return found


LOOPBACK = ("0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("train", "--nproc=2"), id="train"),
        pytest.param(
            ("train", "--nproc=2", "--launch.shared_memory=false"),
            id="sockets",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("launch", "--worker_num=2", "--server_num=1"), id="launch", marks=pytest.mark.slow
        ),
    ],
)
def test_nothing_listens_beyond_loopback(
    endless: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    command = shoal(words[0], endless, *words[1:], "--output", folder, cwd=tmp_path)
    seen: set[str] = set()

    def trained() -> bool:
        seen.update(listeners(command.process.pid))
        return newest_step(folder) > 0

    command.until("a checkpoint", trained)
    command.kill()
    assert all(one.startswith(LOOPBACK) for one in seen), seen
    if words[1:] == ("--nproc=2",):
        assert not seen  # where ranks talk through memory, there is no port at all


@pytest.mark.slow
@needs_root
def test_another_user_opens_nothing(endless: Path, tmp_path: Path) -> None:
    """There is no port, and nothing of the run can be read."""
    folder = tmp_path / "run"
    command = shoal("train", endless, "--nproc=2", "--output", folder, cwd=tmp_path)
    command.until("a checkpoint", lambda: newest_step(folder) > 0)
    launcher, ranks = command.process.pid, command.ranks()
    ports = listeners(launcher)
    environment = Path(f"/proc/{ranks[0]}/environ").read_bytes().decode().split("\0")
    pairs = dict(one.split("=", 1) for one in environment if "=" in one)
    meeting = pairs.get("SHOAL_MEET", "unix:").removeprefix("unix:")
    beats = Path(pairs["SHOAL_BEATS"])
    places = [Path(meeting), Path(meeting).parent, beats, *beats.iterdir()]
    opened = as_nobody(reached, places) + as_nobody(try_to_open, list(ranks.values()))
    mode = os.stat(os.path.dirname(meeting)).st_mode & 0o777 if meeting else 0
    command.kill()
    assert not ports and opened == [] and mode == 0o700


def try_to_open(pids: list[int]) -> list[str]:
    """What another user gets of a run's processes: their memory, their secrets, their lanes."""
    got = []
    for pid in pids:
        for name in ("environ", "mem", "maps"):
            with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                if file.read(1):
                    got.append(file.name)
        for number in range(3, 40):
            with suppress(OSError):
                os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
                got.append(f"fd {number} of {pid}")
    return got


# ---- two hosts -----------------------------------------------------------------------------------


def on(
    host: str,
    offset: int,
    config: Path,
    folder: Path,
    *words: str,
    nproc: int = 1,
    ip: str = ADDRESSES[0],
    **env: str,
) -> Command:
    """`shoal train` as one of two hosts."""
    meet = (f"--ip={ip}", "--port=5678", f"--nproc={nproc}", f"--world_size={2 * nproc}")
    command = (*SHOAL, "train", str(config), *meet, f"--group_offset={offset}", *words)
    where = folder.parent / f"{folder.name}-{offset}-{time.monotonic_ns()}"
    return Command(("ip", "netns", "exec", host, *command, "--output", str(folder)), where, **env)


# All that passes a host's line, until a frame has the word that ends it; the status says whether
# frames were dropped. The room is for a tap that gets no turn for a while.
TAP = """
import socket, struct, sys
SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS = 33, 263, 6
line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
line.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as file:
    frame = b""
    while sys.argv[2].encode() not in frame:
        frame = line.recv(1 << 16)
        file.write(frame)
_, dropped = struct.unpack("II", line.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
sys.exit(f"{dropped} frames were dropped" if dropped else 0)
"""
OVER = f"the tap of {os.getpid()} may end"
TELL = "import socket, sys; socket.socket(type=2).sendto(sys.argv[2].encode(), (sys.argv[1], 9))"
SAID = b'"train.batch_size"'  # a key that the configs name which ranks compare


class Tap:
    """What passed between the two hosts."""

    def __init__(self, hosts: Hosts, file: Path):
        self.hosts, self.file = hosts, file
        words = ("ip", "netns", "exec", hosts.names[0], SHOAL[0], "-c", TAP, str(file), OVER)
        self.process = subprocess.Popen(words)
        while not file.exists():
            assert self.process.poll() is None, "no tap"
            time.sleep(0.05)

    def read(self) -> bytes:
        """All of it, when the last frame is there too."""
        run("ip", "netns", "exec", self.hosts.names[1], SHOAL[0], "-c", TELL, ADDRESSES[0], OVER)
        assert self.process.wait(TIMEOUT) == 0
        return self.file.read_bytes()


@pytest.fixture
def tap(hosts: Hosts, tmp_path: Path) -> Iterator[Tap]:
    made = Tap(hosts, tmp_path / "tapped")
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.slow
def test_the_wrong_secret_is_refused_and_the_right_one_trains(
    hosts: Hosts, tap: Tap, short: Path, alone: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("of this run and no other")
    folder = tmp_path / "run"
    first = on(hosts.names[0], 0, short, folder, f"--launch.secret={secret}")
    stranger = on(hosts.names[1], 1, short, folder, SHOAL_SECRET="of another run, of another user")
    assert stranger.wait() == 2
    (message,) = errors(stranger.output)
    assert f"{ADDRESSES[0]}:5678 did not let us in: give every host the same launch.sec" in message
    assert first.process.poll() is None  # it waits for the right one
    second = on(hosts.names[1], 1, short, folder, SHOAL_SECRET="of this run and no other")
    assert [first.wait(), second.wait()] == [0, 0], first.output + second.output
    assert "does not know the secret of this run" in first.output
    assert result(folder)["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-6)
    losses = [[line["loss"] for line in metrics(one)] for one in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert "is not encrypted, which assumes a network of your own" in first.output
    passed = tap.read()
    assert b"of this run and no other" not in passed
    assert SAID in passed  # what the log says: only joining is encrypted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("192.168.8{}.1/24", "10.213.79.{}/24"),  # the other host cannot reach the first one
        ("fd00:{}::1/64", "fd00:9::{}/64"),
    ],
)
def test_hosts_meet_at_second_addresses(
    hosts: Hosts, short: Path, alone: Path, tmp_path: Path, first: str, second: str
) -> None:
    for k, name in enumerate(hosts.names, 1):
        run("ip", "-n", name, "addr", "flush", "dev", "eth0")
        for one in (first.format(k), second.format(k)):
            nodad = ["nodad"] * (":" in one)
            run("ip", "-n", name, "addr", "add", one, "dev", "eth0", *nodad)
    folder, secret = tmp_path / "run", "of this run and no other"
    ip = second.format(1).partition("/")[0]
    both = [on(hosts.names[k], k, short, folder, ip=ip, SHOAL_SECRET=secret) for k in range(2)]
    assert [one.wait() for one in both] == [0, 0], both[0].output + both[1].output
    losses = [[line["loss"] for line in metrics(one)] for one in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_a_tunnel_lets_nothing_be_read(
    hosts: Hosts, tap: Tap, short: Path, alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words, secret = ("--launch.encrypt=true",), "of this run alone"
    both = [
        on(host, offset, short, folder, *words, nproc=2, SHOAL_SECRET=secret)
        for host, offset in zip(hosts.names, (0, 2))
    ]
    both[0].until("an epoch", (folder / "metrics.jsonl").exists)
    open_ports = [one for one in listeners(both[0].process.pid) if one[6:8] != "7F"]
    assert [one.wait() for one in both] == [0, 0], both[0].output + both[1].output
    tunnels = [one for one in open_ports if not one.endswith(":162E")]  # 5678, where hosts meet
    assert len(tunnels) == 2  # one of each rank, which lets nobody else in: test_streams.py
    assert "what ranks send each other is encrypted" in both[0].output
    assert result(folder)["world_size"] == 4
    losses = [[line["loss"] for line in metrics(one)] for one in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    passed = tap.read()
    assert len(passed) > 100_000 and SAID not in passed


@pytest.mark.slow
def test_the_same_place_twice_is_refused(endless: Path, tmp_path: Path) -> None:
    from ranks import free_port

    words = ("--nproc=1", "--world_size=3", "--ip=127.0.0.1", f"--port={free_port()}")
    first = shoal("train", endless, *words, "--output", tmp_path / "run", cwd=tmp_path / "a")
    second = shoal("train", endless, *words, "--group_offset=1", cwd=tmp_path / "b")
    third = shoal("train", endless, *words, "--group_offset=1", cwd=tmp_path / "c")
    ended = [None, None]
    while not any(status is not None for status in ended):
        ended = [one.process.poll() for one in (second, third)]
        time.sleep(0.05)
    refused = second if ended[0] is not None else third
    assert refused.wait() == 2 and "give every host its own" in errors(refused.output)[0]
    first.interrupt()
    assert first.wait() == 130, first.output
    assert first.output.count("stopped by SIGINT") == 1 and "Traceback" not in first.output
    second.kill()
    third.kill()


@pytest.mark.slow
def test_nothing_listens_during_evaluation(alone: Path, tmp_path: Path) -> None:
    command = shoal("eval", alone, "--nproc=2", "--output", tmp_path / "out", cwd=tmp_path)
    seen: set[str] = set()
    while command.process.poll() is None:
        seen |= listeners(command.process.pid)
        time.sleep(0.02)
    assert command.wait() == 0 and not seen


@pytest.mark.slow
def test_without_a_secret_nothing_starts(hosts: Hosts, short: Path, tmp_path: Path) -> None:
    command = on(hosts.names[0], 0, short, tmp_path / "run")
    assert command.wait() == 2
    (message,) = errors(command.output)
    assert "several hosts, and no secret that says who may join" in message
    assert not (tmp_path / "run").exists()


# 300 silent connections from every address; those that are dropped come again.
CROWD = """
import socket, sys, time
crowd = {address: [] for address in sys.argv[2:]}
def is_open(one):
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
while True:
    for address, some in crowd.items():
        some[:] = filter(is_open, some)
        while len(some) < 300:
            some.append(socket.socket())
            some[-1].setblocking(False)
            some[-1].bind((address, 0))
            some[-1].connect_ex((sys.argv[1], 5678))
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_silent_connections_keep_no_host_out(hosts: Hosts, short: Path, tmp_path: Path) -> None:
    """From the address of the second host, and from one that is nobody's."""
    run("ip", "-n", hosts.names[1], "addr", "add", "10.213.79.3/24", "dev", "eth0")
    folder, secret = tmp_path / "run", "of this run and no other"
    addresses = (ADDRESSES[0], ADDRESSES[1], "10.213.79.3")
    words = ("ip", "netns", "exec", hosts.names[1], SHOAL[0], "-c", CROWD, *addresses)
    with subprocess.Popen(words) as crowd:
        try:
            first = on(hosts.names[0], 0, short, folder, SHOAL_SECRET=secret)
            first.until("a crowd", lambda: "refused at" in first.output)
            second = on(hosts.names[1], 1, short, folder, SHOAL_SECRET=secret)
            assert [second.wait(), first.wait()] == [0, 0], first.output + second.output
        finally:
            crowd.kill()
    assert result(folder)["world_size"] == 2
