"""The rendezvous of a run: what its store does, and that strangers are refused."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import free_port

from shoal.distributed import hosts, newcomers, streams
from shoal.distributed.curve import derive_keys
from shoal.distributed.hosts import WorldError, is_loopback, private_folder
from shoal.distributed.key_files import KeysError, make_keys
from shoal.distributed.meeting import MeetingPlace, read_secret
from shoal.distributed.rendezvous import Rendezvous, RunStore
from shoal.distributed.streams import PeerRefused, Streams
from shoal.launch.hosts import secret_of
from shoal.runs.run import resolve

SECRET, OTHER = b"that of this very run", b"that of some other run"


@pytest.fixture
def place() -> Iterator[MeetingPlace]:
    """A meeting by TCP, as between hosts."""
    place = MeetingPlace(host="127.0.0.1", port=free_port())
    meeting = Rendezvous(place, SECRET)
    yield place
    meeting.close()


def works(place: MeetingPlace, secret: bytes = SECRET) -> bool:
    store = RunStore(place, secret, 5.0)
    store.set("a", "b")
    return store.get("a") == b"b"


def test_store_sets_gets_waits_adds_and_deletes(tmp_path: Path, place: MeetingPlace) -> None:
    near = MeetingPlace(path=str(tmp_path / "meeting"))
    meeting = Rendezvous(near)
    for one, secret in ((near, b""), (place, SECRET)):
        store = RunStore(one, secret, 5.0)
        second = RunStore(one, secret, 5.0)
        other = dist.PrefixStore("here", second)
        store.set("here/x", b"\0\1")
        assert other.get("x") == b"\0\1" and other.check(["x"]) and not store.check(["x"])
        assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
        assert store.delete_key("n") and not store.delete_key("n")
        with pytest.raises(dist.DistStoreError, match=r"wait timeout after 0.01 s, keys: never"):
            store.wait(["never"], timedelta(seconds=0.01))
        later = threading.Timer(0.05, other.set, ("later", "now"))
        later.start()
        assert store.multi_get(["here/later", "here/x"]) == [b"now", b"\0\1"]
        later.join()
    meeting.close()
    assert not os.path.exists(near.path)


def test_wrong_secret_is_refused_and_logged(
    place: MeetingPlace, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in (OTHER, b""):
        with pytest.raises(PeerRefused, match="did not let us in: give every host the same"):
            RunStore(place, wrong, 5.0)
    assert works(place)
    # A peer knows that it is refused before the thread at the port has logged it.
    for _ in range(500):
        if "did not prove that it knows the secret of this run" in caplog.text:
            return
        time.sleep(0.01)
    pytest.fail(f"two were refused, and the log says {caplog.text!r}")


def test_rendezvous_with_another_secret_is_refused() -> None:
    place = MeetingPlace(host="127.0.0.1", port=free_port())
    meeting = Rendezvous(place, OTHER)
    with pytest.raises(PeerRefused, match="did not let us in"):
        RunStore(place, SECRET, 5.0)
    meeting.close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HANDSHAKE_SECONDS", 1.0)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE"  # as far as ZeroMQ's own goes


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"], ids=["same", "other"])
@pytest.mark.parametrize("words", [b"", GREETING], ids=["silent", "half a handshake"])
def test_many_connections_keep_no_host_out(
    place: MeetingPlace, address: str, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers come from the address of the host that belongs here, or from another one."""
    hurry(monkeypatch)
    crowd = [socket.socket() for _ in range(300)]
    for stranger in crowd:
        stranger.bind((address, 0))
        stranger.setblocking(False)
        stranger.connect_ex((place.host, place.port))
    for stranger in crowd:
        with suppress(OSError):
            stranger.send(words)
    assert works(place)
    for stranger in crowd:
        stranger.close()


@pytest.mark.parametrize(
    ("host", "share"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_places_are_counted_by_address_or_network(host: str, share: str) -> None:
    assert newcomers._share_of(host) == share


def read_all(connection: socket.socket) -> bytes:
    """What a connection receives until the other end closes it: of a stranger, a greeting."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def test_strangers_are_disconnected(place: MeetingPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonsense, silence, a TCPStore, and more of them than have places at a time."""
    hurry(monkeypatch)
    silent = [socket.create_connection((place.host, place.port)) for _ in range(100)]
    for words in (b"\0" * 100, b"\xff" * 100_000, b"GET / HTTP/1.0\r\n\r\n"):
        stranger = socket.create_connection((place.host, place.port), timeout=60)
        with stranger, suppress(ConnectionError):
            stranger.sendall(words)
            assert len(read_all(stranger)) <= 64
    with pytest.raises(RuntimeError):
        dist.TCPStore(place.host, place.port, 2, False, timedelta(seconds=1))
    assert works(place)
    for stranger in silent:
        stranger.settimeout(5)
        assert len(read_all(stranger)) <= 64
        stranger.close()


@pytest.mark.parametrize(
    "message", [b"\xff\xff\xff\xff", b"\x05\0\0\0\x09\0\0\0a", b"\x02\0\0\0ab", b"\0\0\0\0"]
)
def test_malformed_message_ends_only_its_own_connection(
    place: MeetingPlace, message: bytes
) -> None:
    opener = Streams()
    connection = opener.connect(place.host, place.port, derive_keys(SECRET), 5.0)
    connection.sendall(message)
    connection.settimeout(5)
    assert connection.recv(100) == b""
    assert works(place)
    opener.close()


def test_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorldError, match=f"port {port} on 127.0.0.1 is in use by another prog"):
            Rendezvous(MeetingPlace(host="127.0.0.1", port=port), SECRET)


def test_address_of_another_host_is_reported_with_ours() -> None:
    assert "127.0.0.1" in hosts.addresses_here()
    place = MeetingPlace(host="198.51.100.7", port=free_port())
    with pytest.raises(WorldError, match=r"--ip=198.51.100.7 is no address of this host, which ha"):
        Rendezvous(place, SECRET)


def test_socket_of_a_killed_run_is_replaced(tmp_path: Path) -> None:
    place = MeetingPlace(path=str(tmp_path / "meeting"))
    left = place.listen()
    with pytest.raises(OSError, match="in use"):
        place.listen()
    left.close()
    meeting = Rendezvous(place)
    assert works(place, b"")
    meeting.close()


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("127.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_loopback(host: str, is_one: bool) -> None:
    assert is_loopback(host) == is_one


def test_folder_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.tempfile, "tempdir", str(tmp_path))
    folder = private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and private_folder() == folder
    folder.chmod(0o755)
    with pytest.raises(WorldError, match="is not a folder that only you can enter"):
        private_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(WorldError, match="is not a folder that only you can enter"):
        private_folder()


def test_secret_is_read_from_a_private_file_a_key_folder_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_SECRET", raising=False)
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others: chmod 600"):
        read_secret(str(file))
    file.chmod(0o600)
    assert read_secret(str(file)) == b"0123456789abcdef"
    file.write_text("short\n")
    with pytest.raises(ValueError, match="has 5 bytes; a secret has at least 16"):
        read_secret(str(file))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_secret(str(tmp_path / "none"))
    folder = make_keys(tmp_path / "keys")
    for part in (folder, folder / "for-workers"):
        assert read_secret(str(part)) == (folder / "for-workers/worker.secret").read_bytes()[:40]
    with pytest.raises(KeysError, match=r"for-servers/worker\.secret"):
        read_secret(str(folder / "for-servers"))
    assert read_secret(None) == b""
    monkeypatch.setenv("SHOAL_SECRET", "0123456789abcdef")
    assert read_secret(None) == b"0123456789abcdef"


def test_several_hosts_without_a_secret_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_SECRET", raising=False)

    def secret_for(*words: str) -> bytes:
        hosts = ("--nproc=1", "--world_size=2", "--port=5678", *words)
        return secret_of(resolve((), hosts).config.launch)

    with pytest.raises(ValueError, match="several hosts, and no secret that says who may join"):
        secret_for("--ip=127.evil.example")
    assert secret_for("--ip=192.0.2.1", "--launch.plain=true") == b""
    assert secret_for("--ip=127.0.0.1") == b""  # a socket that only the user can open
    monkeypatch.setenv("SHOAL_SECRET", "0123456789abcdef")
    assert secret_for("--ip=192.0.2.1") == b"0123456789abcdef"
