"""Streams between hosts: they carry every byte, and only processes with the right keys get one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from net_hosts import ADDRESSES, Impossible, joined_hosts

from shoal.distributed import streams
from shoal.distributed.curve import CurveKeys, derive_keys
from shoal.distributed.hosts import WorldError
from shoal.distributed.key_files import KeysError, make_keys, read_keys
from shoal.distributed.meeting import read_secret
from shoal.distributed.streams import PeerRefused, Streams

SECRET = b"the secret of this run"
KEYS = derive_keys(SECRET)


class Echo:
    """A target that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.received: list[bytes] = []
        self.ended = threading.Event()  # a connection was closed by the other end
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1 << 16):
                self.received.append(data)
                connection.sendall(data)
        self.ended.set()


class Relay:
    """Passes bytes on between a client and a port, and keeps what passed to the port."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = lambda data: data):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.passed: list[bytes] = []
        self.broken = False
        self._target, self._change = port, change
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, to_port: bool) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and not self.broken:
                if to_port:
                    self.passed.append(data)
                target.sendall(self._change(data) if to_port else data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def echo() -> Iterator[Echo]:
    target = Echo()
    yield target
    target.listener.close()


@pytest.fixture
def port(echo: Echo) -> Iterator[int]:
    """A port that leads to the echo, for those with the keys of the run."""
    with closing(Streams()) as server:
        yield server.listen("127.0.0.1", 0, KEYS, echo.listener.getsockname())


@pytest.fixture
def client() -> Iterator[Streams]:
    with closing(Streams()) as opener:
        yield opener


def answer(client: Streams, port: int, keys: CurveKeys | None = KEYS, size: int = 5) -> bool:
    """Whether a connection to a port gets back what it sends."""
    sent = os.urandom(size)
    connection = client.connect("127.0.0.1", port, keys, 5.0)
    with connection:
        connection.settimeout(20)
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        received = bytearray()
        while len(received) < size:
            received += connection.recv(1 << 16)
        return bytes(received) == sent


def test_every_byte_arrives_in_order(port: int, client: Streams) -> None:
    assert answer(client, port, size=30 << 20)
    assert all(answer(client, port, size=size) for size in (1, 1 << 16, (1 << 16) + 1))


def test_reader_that_waits_makes_the_sender_wait(port: int, client: Streams, echo: Echo) -> None:
    connection = client.connect("127.0.0.1", port, KEYS, 5.0)
    connection.settimeout(1.0)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 1 << 30:
            sent += connection.send(bytes(1 << 16))
    assert sent < 100 << 20  # what the buffers on the way hold
    connection.close()


@pytest.mark.parametrize("closes", ["client", "target"])
def test_stream_ends_at_both_ends(port: int, client: Streams, echo: Echo, closes: str) -> None:
    connection = client.connect("127.0.0.1", port, KEYS, 5.0)
    connection.settimeout(10)
    connection.sendall(b"hello")
    assert connection.recv(5) == b"hello"
    if closes == "client":
        connection.close()
        assert echo.ended.wait(10)
    else:
        connection.shutdown(socket.SHUT_WR)  # the echo then closes its end
        assert connection.recv(5) == b""


def test_broken_connection_ends_the_stream_at_both_ends(
    port: int, client: Streams, echo: Echo
) -> None:
    relay = Relay(port)
    connection = client.connect("127.0.0.1", relay.port, KEYS, 5.0)
    connection.settimeout(10)
    connection.sendall(b"hello")
    assert connection.recv(5) == b"hello"
    relay.broken = True
    with suppress(OSError):
        connection.sendall(b"more")
    assert connection.recv(5) == b""
    assert echo.ended.wait(10)


# ---- keys ----------------------------------------------------------------------------------------

REFUSED = "did not let us in: give every host the same launch.secret, and check --ip and --port"


@pytest.mark.parametrize(
    "keys", [derive_keys(b"the secret of another run"), None], ids=["wrong key", "no key"]
)
def test_peer_without_the_key_is_refused_within_seconds(
    port: int, client: Streams, echo: Echo, keys: CurveKeys | None
) -> None:
    begin = time.monotonic()
    with pytest.raises(PeerRefused, match=REFUSED):
        client.connect("127.0.0.1", port, keys, 60.0)
    assert time.monotonic() - begin < 30
    assert echo.received == [] and answer(client, port)


def test_peer_that_knows_only_the_public_key_is_refused(
    port: int, client: Streams, echo: Echo
) -> None:
    other = derive_keys(b"the secret of another run")
    assert KEYS is not None and other is not None
    with pytest.raises(PeerRefused, match=REFUSED):
        client.connect("127.0.0.1", port, CurveKeys(other.public, other.secret, KEYS.public), 60.0)
    assert echo.received == []


def test_listener_without_keys_gets_nothing_from_a_peer_with_keys(
    client: Streams, echo: Echo
) -> None:
    with closing(Streams()) as server:
        port = server.listen("127.0.0.1", 0, None, echo.listener.getsockname())
        with pytest.raises(PeerRefused, match=REFUSED):
            client.connect("127.0.0.1", port, KEYS, 60.0)
        assert answer(client, port, None)  # launch.plain on both


def test_keys_that_were_replaced_are_refused(client: Streams, echo: Echo, tmp_path: Path) -> None:
    """CURVE keys have no date: those of an old folder end when new ones are made."""
    old, new = (derive_keys(read_secret(str(make_keys(tmp_path / name)))) for name in "ab")
    with closing(Streams()) as server:
        port = server.listen("127.0.0.1", 0, new, echo.listener.getsockname())
        with pytest.raises(PeerRefused, match=REFUSED):
            client.connect("127.0.0.1", port, old, 60.0)
        assert answer(client, port, new)


def test_swapped_keys_are_reported(client: Streams, echo: Echo, tmp_path: Path) -> None:
    """The part of servers on a worker's host, or public keys that were exchanged for each other."""
    folder = make_keys(tmp_path / "keys")
    with pytest.raises(KeysError, match=r"cannot read the key .*/for-servers/worker\.secret"):
        read_secret(str(folder / "for-servers"))
    part = folder / "for-workers"
    (part / "worker.public").write_bytes((folder / "for-servers/server.public").read_bytes())
    with pytest.raises(KeysError, match=r"worker\.public does not belong to .*worker\.secret"):
        read_keys(folder, "worker")


def test_replayed_handshake_is_refused(port: int, client: Streams, echo: Echo) -> None:
    """What a process of the run has sent is of no use to somebody who recorded it."""
    relay = Relay(port)
    assert answer(client, relay.port)
    recorded, received = list(relay.passed), len(echo.received)
    assert b"CURVE" in b"".join(recorded)
    with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(OSError):
        stranger.settimeout(10)
        for part in recorded:
            stranger.sendall(part)
            time.sleep(0.05)
        while stranger.recv(1 << 16):
            pass
    assert len(echo.received) == received
    assert answer(client, port)


def test_changed_bytes_end_the_stream(port: int, client: Streams, echo: Echo) -> None:
    changed = threading.Event()

    def change(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if changed.is_set() else data

    connection = client.connect("127.0.0.1", Relay(port, change).port, KEYS, 5.0)
    connection.settimeout(10)
    connection.sendall(b"hello")
    assert connection.recv(5) == b"hello"
    changed.set()
    connection.sendall(b"world")
    assert connection.recv(5) == b"" and echo.received == [b"hello"]


def test_bytes_on_the_wire_cannot_be_read(port: int, client: Streams) -> None:
    relay = Relay(port)
    connection = client.connect("127.0.0.1", relay.port, KEYS, 5.0)
    connection.settimeout(10)
    connection.sendall(b"rows and gradients " * 100)
    assert connection.recv(4) == b"rows"
    passed = b"".join(relay.passed)
    assert len(passed) > 1900 and b"gradients" not in passed and SECRET not in passed


def test_silent_listener_is_reported_in_bounded_time(
    client: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HANDSHAKE_SECONDS", 2.0)
    begin = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with pytest.raises(WorldError, match=r"nobody answered at .* \(the other end is silent\)"):
            client.connect(*place, KEYS, 1.0)
    assert time.monotonic() - begin < 10


def test_port_without_listener_is_reported_in_bounded_time(client: Streams) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
    begin = time.monotonic()
    with pytest.raises(WorldError, match=r"nobody answered at .* \(connection refused\); start"):
        client.connect(*place, KEYS, 1.0)
    assert time.monotonic() - begin < 10


def test_nobody_else_is_let_in_after_stop_listening(echo: Echo, client: Streams) -> None:
    with closing(Streams()) as server:
        port = server.listen("127.0.0.1", 0, KEYS, echo.listener.getsockname())
        first = client.connect("127.0.0.1", port, KEYS, 5.0)
        first.settimeout(10)
        first.sendall(b"one")
        assert first.recv(3) == b"one"
        server.stop_listening()
        second = client.connect("127.0.0.1", port, KEYS, 5.0)
        second.settimeout(10)
        second.sendall(b"two")
        assert second.recv(3) == b"" and echo.received == [b"one"]
        first.sendall(b"three")
        assert first.recv(5) == b"three"


# ---- two hosts -----------------------------------------------------------------------------------

LISTEN = """
import sys
from shoal.distributed.meeting import MeetingPlace
from shoal.distributed.rendezvous import Rendezvous
Rendezvous(MeetingPlace(host=sys.argv[1], port=5678), sys.argv[2].encode())
print("ready", flush=True)
sys.stdin.read()
"""
COME = """
import sys
from shoal.distributed.hosts import WorldError
from shoal.distributed.meeting import MeetingPlace
from shoal.distributed.rendezvous import RunStore
try:
    store = RunStore(MeetingPlace(host=sys.argv[1], port=5678), sys.argv[2].encode(), 20.0)
    store.set("name", "value")
    print(store.get("name").decode())
except WorldError as error:
    print(error)
"""


def test_two_hosts_meet_with_one_secret_and_not_with_two() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command `ip`")
    try:
        with joined_hosts() as hosts:

            def words(host: int, code: str, secret: bytes) -> tuple[str, ...]:
                program = (sys.executable, "-c", code, ADDRESSES[0], secret.decode())
                return ("ip", "netns", "exec", hosts.names[host], *program)

            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(words(0, LISTEN, SECRET), **pipes) as first:  # type: ignore[call-overload]
                assert first.stdout.readline() == "ready\n"
                outputs = [
                    subprocess.run(
                        words(1, COME, secret), capture_output=True, text=True, timeout=60
                    ).stdout
                    for secret in (SECRET, b"the secret of another run")
                ]
                first.stdin.close()
            assert outputs[0] == "value\n"
            assert outputs[1] == f"{ADDRESSES[0]}:5678 {REFUSED}\n"
    except Impossible as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
