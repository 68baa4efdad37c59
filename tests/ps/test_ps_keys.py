"""Keys: made with the right modes, and without them a server is silent."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ps_cluster import Proxy, Threads, get_dense, joined, make_spec, pull, push, serving

from shoal.distributed.curve import CurveKeys
from shoal.distributed.key_files import KeysError, make_keys, read_keys
from shoal.distributed.world import PeerLost
from shoal.ps.wire import Kind
from shoal.ps.worker.client import Client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    before = os.umask(0)
    try:
        return make_keys(tmp_path / "keys")
    finally:
        os.umask(before)


def test_keys_are_made(folder: Path) -> None:
    """Each role has a part of its own, without the other's secret, whatever the umask."""
    modes = {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }
    assert modes == {
        ".": 0o700,
        "for-servers": 0o700,
        "for-servers/server.public": 0o644,
        "for-servers/server.secret": 0o600,
        "for-servers/worker.public": 0o644,
        "for-workers": 0o700,
        "for-workers/server.public": 0o644,
        "for-workers/worker.public": 0o644,
        "for-workers/worker.secret": 0o600,
    }
    server, worker = read_keys(folder, "server"), read_keys(folder, "worker")
    assert server.peer == worker.public and worker.peer == server.public
    assert len({server.public, server.secret, worker.public, worker.secret}) == 4
    assert all(len(key) == 40 for key in (server.public, server.secret, worker.secret))


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_part_alone_and_a_folder_of_both(folder: Path, tmp_path: Path, role: str) -> None:
    """What a host of that role was given; and keys that were made before there were parts."""
    keys = read_keys(folder, role)
    assert read_keys(folder / f"for-{role}s", role) == keys
    flat = tmp_path / "flat"
    for part in ("for-servers", "for-workers"):
        shutil.copytree(folder / part, flat, dirs_exist_ok=True)
    assert read_keys(flat, role) == keys


@pytest.mark.parametrize("name", ["", "for-servers", "for-servers/worker.public"])
@pytest.mark.parametrize("mode", [0o777, 0o772, 0o720])
def test_keys_that_others_can_change(folder: Path, name: str, mode: int) -> None:
    """Whose public key stands there may come in."""
    (folder / name).chmod(mode)
    with pytest.raises(KeysError, match=r"can be changed by others; run `chmod go-w"):
        read_keys(folder, "server")


@pytest.mark.parametrize("name", ["server.public", "for-servers/server.public", "worker.secret"])
def test_keys_are_not_replaced(folder: Path, tmp_path: Path, name: str) -> None:
    contents = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(KeysError, match="exists already; running jobs may need it"):
        make_keys(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == contents
    one = tmp_path / "one" / name
    one.parent.mkdir(parents=True)
    one.touch()
    with pytest.raises(KeysError, match=f"{name} exists already"):
        make_keys(tmp_path / "one")
    assert list((tmp_path / "one").rglob("*.*")) == [one]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_secrets_that_others_can_read(folder: Path, mode: int) -> None:
    (folder / "for-workers/worker.secret").chmod(mode)
    with pytest.raises(KeysError, match=r"worker\.secret can be read by others; run `chmod 600"):
        read_keys(folder, "worker")
    read_keys(folder, "server")  # which does not need that one


def test_keys_that_are_absent_or_damaged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"cannot read the key .* make keys with `shoal keys make"):
        read_keys(tmp_path / "nowhere", "server")
    (folder / "for-workers/server.public").write_bytes(b"short\n")
    with pytest.raises(KeysError, match="holds no key: 5 characters, there must be 40"):
        read_keys(folder, "worker")


def test_the_command_makes_them(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-m", "shoal", "keys", "make", "keys"]
    env = {**os.environ, "PYTHONPATH": str(root)}
    made = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "keys/for-servers to the hosts of servers" in made.stdout
    read_keys(tmp_path / "keys", "worker")
    again = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert again.returncode == 2 and again.stderr.startswith("error: ")
    assert "exists already" in again.stderr and "Traceback" not in again.stderr


# ---- on the line --------------------------------------------------------------------------------


@pytest.fixture
def running(folder: Path) -> Iterator[Threads]:
    with serving(keys=read_keys(folder, "server")) as found:
        yield found


def test_a_worker_with_the_keys(folder: Path, running: Threads) -> None:
    spec = make_spec()
    with joined(running.addresses, spec, keys=read_keys(folder, "worker")) as client:
        before = pull(client, 0, [1])
        push(client, {0: ([1], torch.ones(1, 4))}, 0.5).wait()
        torch.testing.assert_close(pull(client, 0, [1]), before - 0.5)
        client.bye()
    assert running.join() == [0]


def wrong_keys(folder: Path, tmp_path: Path) -> dict[str, CurveKeys | None]:
    """Whom a server must not answer."""
    good = read_keys(folder, "worker")
    other = read_keys(make_keys(tmp_path / "other"), "worker")
    return {
        "no keys": None,
        "another worker's": CurveKeys(other.public, other.secret, good.peer),
        "only what is public": CurveKeys(good.public, other.secret, good.peer),
        "another server's": CurveKeys(good.public, good.secret, other.peer),
    }


@pytest.mark.parametrize(
    "which", ["no keys", "another worker's", "only what is public", "another server's"]
)
def test_a_peer_without_the_key_gets_nothing(
    folder: Path, tmp_path: Path, running: Threads, which: str
) -> None:
    spec = make_spec()
    with joined(running.addresses, spec, keys=read_keys(folder, "worker")) as client:
        rows, dense = pull(client, 0, [1, 2]), get_dense(client)
        counted = client.stats()[0]["messages"]
        stranger = Client(running.addresses, 0, wrong_keys(folder, tmp_path)[which])
        stranger.session, link = client.session, stranger.links[0]  # it even knows the session
        for kind in (Kind.PING, Kind.DENSE, Kind.STATS, Kind.BYE):
            link.ask(stranger.header(kind), [])
        link.ask(stranger.header(Kind.SET_DENSE), [bytes(60), b""])
        assert not link.socket.poll(700)  # no answer of any sort
        with pytest.raises(PeerLost, match="has not answered"):
            stranger.hello(spec, 0.5)
        stranger.close()
        found = client.stats()[0]
        assert found["refused"] == 0 and found["messages"] - counted < 10  # its own, and pings
        assert torch.equal(pull(client, 0, [1, 2]), rows)
        assert all(torch.equal(a, b) for a, b in zip(get_dense(client), dense))


def test_a_worker_with_keys_at_a_server_without(folder: Path) -> None:
    with serving() as running:
        client = Client(running.addresses, 0, read_keys(folder, "worker"))
        with pytest.raises(PeerLost, match="check their addresses and keys"):
            client.hello(make_spec(), 0.5)
        client.close()
        assert running.servers[0].messages == 0


def test_what_travels_cannot_be_read(folder: Path, running: Threads) -> None:
    """A line between them carries neither the names of tables nor the values of rows."""
    seen: list[bytes] = []

    class Listening(Proxy):
        def _pass_on(self, source, target, answers):  # type: ignore[no-untyped-def]
            try:
                while data := source.recv(1 << 16):
                    seen.append(data)
                    target.sendall(data)
            except OSError:
                pass

    proxy = Listening(running.addresses[0])
    with joined([proxy.address], make_spec(), keys=read_keys(folder, "worker")) as client:
        values = pull(client, 0, [1]).numpy().tobytes()
    proxy.close()
    travelled = b"".join(seen)
    assert len(travelled) > 1000 and b"CURVE" in travelled
    assert json.dumps("word").encode() not in travelled and values not in travelled
