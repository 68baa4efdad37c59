"""Keys: made with the right modes, and without them a server is silent."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ps_cluster import Proxy, Threads, get_dense, joined, make_spec, pull, push, serving

from shoal.ps.keys import Keys, KeysError, make_keys, read_keys
from shoal.ps.wire import Kind
from shoal.ps.worker.client import Client
from shoal.world.world import PeerLost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys")


def test_keys_are_made(folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {
        "server.public": 0o644,
        "server.secret": 0o600,
        "worker.public": 0o644,
        "worker.secret": 0o600,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server, worker = read_keys(folder, "server"), read_keys(folder, "worker")
    assert server.peer == worker.public and worker.peer == server.public
    assert len({server.public, server.secret, worker.public, worker.secret}) == 4
    assert all(len(key) == 40 for key in (server.public, server.secret, worker.secret))


def test_secrets_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    for role in ("server", "worker"):
        assert stat.S_IMODE((folder / f"{role}.secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["server.public", "worker.secret"])
def test_keys_are_not_replaced(folder: Path, name: str) -> None:
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(KeysError, match="exists already; running jobs may need it"):
        make_keys(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    for other in contents:
        if other != name:
            (folder / other).unlink()
    with pytest.raises(KeysError, match=f"{name} exists already"):
        make_keys(folder)
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_secrets_that_others_can_read(folder: Path, mode: int) -> None:
    (folder / "worker.secret").chmod(mode)
    with pytest.raises(KeysError, match=r"worker\.secret can be read by others; run `chmod 600"):
        read_keys(folder, "worker")
    read_keys(folder, "server")  # which does not need that one


def test_keys_that_are_absent_or_damaged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"cannot read the key .* make keys with `shoal keys make"):
        read_keys(tmp_path / "nowhere", "server")
    (folder / "server.public").write_bytes(b"short\n")
    with pytest.raises(KeysError, match="holds no key: 5 characters, there must be 40"):
        read_keys(folder, "worker")


def test_the_command_makes_them(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-m", "shoal", "keys", "make", "keys"]
    env = {**os.environ, "PYTHONPATH": str(root)}
    made = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "copy it to every host and set strategy.ps.keys" in made.stdout
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


def wrong_keys(folder: Path, tmp_path: Path) -> dict[str, Keys | None]:
    """Whom a server must not answer."""
    good = read_keys(folder, "worker")
    other = read_keys(make_keys(tmp_path / "other"), "worker")
    return {
        "no keys": None,
        "another worker's": Keys(other.public, other.secret, good.peer),
        "only what is public": Keys(good.public, other.secret, good.peer),
        "another server's": Keys(good.public, good.secret, other.peer),
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
