"""Who is let in where ranks meet, and what a stranger can do there: nothing."""

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

from shoal.distributed import channel, hosts
from shoal.distributed import handshake as door
from shoal.distributed.channel import MeetingPlace, PeerRefused, read_secret, secured
from shoal.distributed.hosts import WorldError, is_loopback, private_folder
from shoal.distributed.rendezvous import Rendezvous, RunStore
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


def test_the_words_of_a_store(tmp_path: Path, place: MeetingPlace) -> None:
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


def test_another_secret_is_refused_and_the_right_one_still_comes_in(
    place: MeetingPlace, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in (OTHER, b""):
        with pytest.raises(PeerRefused, match="did not let us in: give every host the same"):
            RunStore(place, wrong, 5.0)
    assert works(place)
    # Whoever is refused knows it before the door, a thread of its own, has logged it.
    for _ in range(500):
        if caplog.text.count("does not know the secret of this run") == 2:
            return
        time.sleep(0.01)
    pytest.fail(f"two were refused, and the log says {caplog.text!r}")


def test_a_host_that_does_not_know_the_secret_is_not_believed() -> None:
    place = MeetingPlace(host="127.0.0.1", port=free_port())
    meeting = Rendezvous(place, OTHER)
    with pytest.raises(PeerRefused, match="did not let us in"):
        RunStore(place, SECRET, 5.0)
    meeting.close()


def test_who_sits_between_two_ends_can_prove_nothing(place: MeetingPlace) -> None:
    """Both ends know the secret, and their proofs are handed on: they are of other connections."""
    between = socket.create_server(("127.0.0.1", 0))

    def hand_on() -> None:
        mine = channel.context(True).wrap_socket(between.accept()[0], server_side=True)
        theirs = socket.create_connection((place.host, place.port))
        theirs = channel.context(False).wrap_socket(theirs)
        theirs.sendall(mine.recv(32))
        mine.sendall(theirs.recv(32) or b"?" * 32)

    thread = threading.Thread(target=hand_on)
    thread.start()
    with pytest.raises(PeerRefused):
        RunStore(MeetingPlace(host="127.0.0.1", port=between.getsockname()[1]), SECRET, 5.0)
    thread.join()
    assert works(place)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (channel, door):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 1.0)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"], ids=["same", "other"])
@pytest.mark.parametrize("words", [b"", b"\x16\x03\x01"], ids=["silent", "half a handshake"])
def test_a_crowd_keeps_nobody_out(
    place: MeetingPlace, address: str, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others come from the address of the one who belongs here, or from another one."""
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
def test_an_address_has_a_share_of_the_places(host: str, share: str) -> None:
    assert door._share_of(host) == share


def test_strangers_are_cut_off(place: MeetingPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonsense, silence, a TCPStore, and more of them than may stand at the door at a time."""
    hurry(monkeypatch)
    silent = [socket.create_connection((place.host, place.port)) for _ in range(100)]
    for words in (b"\0" * 100, b"\xff" * 100_000, b"GET / HTTP/1.0\r\n\r\n"):
        stranger = socket.create_connection((place.host, place.port), timeout=60)
        with stranger, suppress(ConnectionError):
            stranger.sendall(words)
            assert not stranger.recv(1 << 16).startswith(b"\x17")  # no word of a channel
    with pytest.raises(RuntimeError):
        dist.TCPStore(place.host, place.port, 2, False, timedelta(seconds=1))
    assert works(place)
    for stranger in silent:
        stranger.settimeout(5)
        with suppress(ConnectionError):
            assert stranger.recv(1) == b""
        stranger.close()


@pytest.mark.parametrize(
    "message", [b"\xff\xff\xff\xff", b"\x05\0\0\0\x09\0\0\0a", b"\x02\0\0\0ab", b"\0\0\0\0"]
)
def test_a_guest_that_speaks_nonsense_harms_itself_alone(
    place: MeetingPlace, message: bytes
) -> None:
    guest = secured(socket.create_connection((place.host, place.port)), SECRET, listens=False)
    guest.sendall(message)
    guest.settimeout(5)
    assert guest.recv(100) == b""
    assert works(place)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorldError, match=f"port {port} on 127.0.0.1 is in use by another prog"):
            Rendezvous(MeetingPlace(host="127.0.0.1", port=port), SECRET)


def test_an_address_of_another_host_is_named_with_our_own() -> None:
    assert "127.0.0.1" in hosts.addresses_here()
    place = MeetingPlace(host="198.51.100.7", port=free_port())
    with pytest.raises(WorldError, match=r"--ip=198.51.100.7 is no address of this host, which ha"):
        Rendezvous(place, SECRET)


def test_what_a_killed_run_left_is_taken_over(tmp_path: Path) -> None:
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


def test_a_folder_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert read_secret(None) == b""
    monkeypatch.setenv("SHOAL_SECRET", "0123456789abcdef")
    assert read_secret(None) == b"0123456789abcdef"


def test_several_hosts_need_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_SECRET", raising=False)

    def given(*words: str) -> bytes:
        hosts = ("--nproc=1", "--world_size=2", "--port=5678", *words)
        return secret_of(resolve((), hosts).config.launch)

    with pytest.raises(ValueError, match="several hosts, and no secret that says who may join"):
        given("--ip=127.evil.example")
    assert given("--ip=192.0.2.1", "--launch.plain=true") == b""
    assert given("--ip=127.0.0.1") == b""  # a socket that only the user can open
    monkeypatch.setenv("SHOAL_SECRET", "0123456789abcdef")
    assert given("--ip=192.0.2.1") == b"0123456789abcdef"
