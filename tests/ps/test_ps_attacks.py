"""What was done to servers once, and does no harm any more."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from other_user import as_nobody, needs_root, reached
from ps_cluster import (
    Bare,
    grads,
    joined,
    make_spec,
    pull,
    push,
    rows_in,
    save,
    server_process,
    serving,
    share_of,
)

from shoal.config.row_rules import RowRules
from shoal.config.schema import Config
from shoal.distributed.key_files import make_keys, read_keys
from shoal.launch.servers import Servers
from shoal.ps import sockets
from shoal.ps.address import stays_here
from shoal.ps.server import state
from shoal.ps.server.server import Server
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.wire import IN_PIECES, PIECE, Kind, MessageHeader, WireError, in_pieces, join_pieces
from shoal.ps.worker.client import Client, ServerError


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def hello_text(spec: Spec, **wrong: Any) -> bytes:
    values = {**spec.model_dump(mode="json"), "host": "x", "server": 0}
    return json.dumps({**values, **wrong}).encode()


# ---- another user of the host -------------------------------------------------------------------


def say_hello(address: str) -> str:
    client = Client([address])
    try:
        client.hello(make_spec(), 2.0)
        return "let in"
    except Exception as error:
        return repr(error)
    finally:
        client.close()


@needs_root
def test_another_user_gets_no_answer(tmp_path: Path) -> None:
    """The servers of one host listen where nobody else may go, and on no port."""
    values = {"run": {"output": str(tmp_path / "run")}, "launch": {"servers": 1}}
    config = Config.model_validate(values)
    with Servers(config) as servers:
        (address,) = servers.addresses
        own = Path(address.removeprefix("ipc://")).parent
        assert as_nobody(reached, [own, *own.rglob("*")]) == []  # nor what it leaves there
        assert "has not answered" in as_nobody(say_hello, address)
        with joined([address], make_spec()) as client:  # and its own user is let in
            assert pull(client, 0, [1]).shape == (1, 4)
            client.bye()
        servers.wait()


# ---- beyond this host ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address, here",
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("ipc://x", True),
        ("127.evil.example:1", False),
        ("10.0.0.3:1", False),
        ("0.0.0.0:1", False),
        ("*:1", False),
    ],
)
def test_what_stays_on_this_host(address: str, here: bool) -> None:
    assert stays_here(address) is here


def test_no_keys_between_hosts() -> None:
    """Neither side speaks in the clear beyond this host, unless told to."""
    with pytest.raises(ValueError, match=r"127\.evil\.example:6180 leaves this host.*ps\.plain"):
        Client(["127.0.0.1:6180", "127.evil.example:6180"])
    with pytest.raises(ValueError, match=r"server 0: 0\.0\.0\.0:0 leaves this host.*--plain"):
        Server("0.0.0.0:0")
    Client(["10.255.255.1:6180"], plain=True).close()
    Server("0.0.0.0:0", plain=True).close()


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "../x", "nul\0", "\ud800", 5])
def test_a_save_stays_in_the_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "own" / "a" / "b").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    with serving(folder=tmp_path / "own") as running, joined(running.addresses, make_spec()) as one:
        bare = Bare(running.addresses[0])
        for kind in (Kind.SAVE, Kind.LOAD):
            text = json.dumps({"name": name, "files": {"rows-user-0": {}}, "steps": {}})
            if kind == Kind.SAVE:
                text = json.dumps({"name": name})
            answer = bare.ask(MessageHeader(kind, 0, 0, 9 + kind, -1, one.session), text.encode())
            assert answer[0] == Kind.ERROR and b"internal error" not in answer[1][0]
        bare.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither a folder's nor a file's: what they lead to stays as it was."""
    own, victim = tmp_path / "own", tmp_path / "victim"
    victim.mkdir()
    (own / "files").mkdir(parents=True)
    (victim / "precious").write_text("precious")
    (own / "folder").symlink_to(victim)
    name = "rows-user-00000000.safetensors"
    (own / "files" / name).symlink_to(victim / "precious")
    with serving(folder=own) as running, joined(running.addresses, make_spec()) as client:
        push(client, {0: ([1], grads(1, 1))}).wait()
        with pytest.raises(ServerError, match="cannot see the folder"):
            client.save(own / "folder")
        client.save(own / "files")
        with pytest.raises(ServerError, match=r"could not save its rows.*exists"):
            client.saved()
        for folder in ("folder", "files"):
            with pytest.raises(ServerError, match="cannot read"):
                client.load(own / folder, {name: {}}, {})
    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert (victim / "precious").read_text() == "precious"


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / "rows-user-0")
    with serving(folder=tmp_path) as running, joined(running.addresses, make_spec()) as client:
        with pytest.raises(ServerError, match="is no regular file"):
            client.load(tmp_path / "s", {"rows-user-0": {}}, {}, fresh=True)
        assert pull(client, 0, [1]).shape == (1, 4)


def test_only_worker_0_gives_orders(tmp_path: Path) -> None:
    spec = make_spec(workers=2)
    with (
        serving(folder=tmp_path) as running,
        joined(running.addresses, spec) as first,
        joined(running.addresses, spec, 1) as second,
    ):
        files = save(first, tmp_path / "s")
        before = first.dense()
        for order in (
            lambda: second.set_dense([torch.zeros(15)], {}),
            lambda: second.load(tmp_path / "s", files, {}, fresh=True),
            lambda: save(second, tmp_path / "other"),
            second.saved,
        ):
            with pytest.raises(ServerError, match="worker 1 orders what only worker 0 may"):
                order()
        assert torch.equal(first.dense()[0], before[0])
        assert rows_in(tmp_path / "other") == {}


# ---- sizes --------------------------------------------------------------------------------------


def bloom(counters: int) -> list[TableSpec]:
    admission = {"threshold": 2.0, "bloom_counters": counters}
    rules = RowRules.model_validate({"admission": admission})
    return [TableSpec(name="ads", dim=4, init="constant", scale=0.0, rules=rules)]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("what", ["sides", "dense", "tables", "filters"])
def test_a_hello_that_is_too_large(what: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered before anything of that size is made, whether or not a model is known."""
    spec = make_spec(servers=1)
    table = spec.model_dump(mode="json")["tables"][0]
    filters = [json.loads(one.model_dump_json()) for one in bloom(2**36 - 1)]
    cases: dict[str, tuple[dict[str, Any], bytes]] = {
        "sides": ({"dense": [[2**33] * 60000]}, b"dense.0: List should have at most 16 items"),
        "dense": ({"dense": [[2**30]]}, b"cannot hold this model"),
        "tables": ({"tables": [{**table, "name": str(k)} for k in range(5000)]}, b"at most 4096"),
        "filters": ({"tables": filters}, b"cannot hold this model"),
    }
    wrong, told = cases[what]
    monkeypatch.setattr(state, "half_of_memory", lambda: 1 << 30)
    with serving() as running:
        bare, before = Bare(running.addresses[0]), resident()
        if known:
            assert bare.ask(MessageHeader(Kind.HELLO, 0, session=5), hello_text(spec))[0] == Kind.OK
        kind, frames = bare.ask(MessageHeader(Kind.HELLO, 0, session=5), hello_text(spec, **wrong))
        assert kind == Kind.ERROR and resident() - before < 256 << 20
        assert (b"describes another model" if known else told) in frames[0]
        bare.close()


def test_many_shows_take_no_memory(tmp_path: Path) -> None:
    """A push of a few bytes says that an id was shown 2^28 times."""
    spec = make_spec(tables=bloom(0), dense=[])
    with server_process(tmp_path) as (process, address), joined([address], spec) as client:
        share, _ = share_of(client, 0, torch.tensor([7]))
        shown = type(share)(0, share.ids, share.counts, torch.tensor([[float(1 << 28), 1.0]]))
        client.start_push([share], [torch.ones(1, 4)], 0.1, 0.0, 1.0).wait()
        before = resident(process.pid)
        client.start_push([shown], [torch.ones(1, 4)], 0.1, 0.0, 1.0).wait()
        peak = Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        assert int(peak) * 1024 - before < 64 << 20
        assert client.stats()[0]["tables"]["ads"]["rows"] == 1


# ---- memory before and after it is known who speaks ---------------------------------------------


def test_memory_before_a_key_is_shown(tmp_path: Path) -> None:
    """Who never shows a key sends as much as it likes, and a server holds a frame of it."""
    keys = make_keys(tmp_path / "keys")
    options = {"keys": read_keys(keys, "server")}
    with server_process(tmp_path, **options) as (process, address):
        before = resident(process.pid)
        host, port = address.split(":")
        lines, chunk, sent = [], bytes(1 << 20), 0
        for _ in range(8):
            line = socket.create_connection((host, int(port)))
            line.settimeout(0.5)
            lines.append(line)
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
            try:
                line.sendall(greeting + b"\x06" + struct.pack(">Q", 600 << 20))  # a long command
                for _ in range(100):
                    line.sendall(chunk)
                    sent += len(chunk)
            except OSError:  # it does not listen, or has hung up
                pass
        assert resident(process.pid) - before < len(lines) * 2 * PIECE + (16 << 20)
        for line in lines:
            line.close()
        with joined([address], make_spec(), keys=read_keys(keys, "worker")) as client:
            assert pull(client, 0, [1]).shape == (1, 4)


def test_300_silent_connections_keep_no_worker_out(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    options = {"keys": read_keys(keys, "server")}
    with server_process(tmp_path, **options) as (process, address):
        before = resident(process.pid)
        host, port = address.split(":")
        lines = [socket.create_connection((host, int(port)), timeout=60) for _ in range(300)]
        for line in lines[::2]:
            line.sendall(b"\xff" + bytes(8) + b"\x7f\x03")  # half a greeting
        with joined([address], make_spec(), keys=read_keys(keys, "worker")) as client:
            assert pull(client, 0, [1]).shape == (1, 4)
        assert resident(process.pid) - before < 64 << 20
        for line in lines:
            line.close()


def test_a_frame_that_is_too_large() -> None:
    """The connection is cut; a worker's large frames come in pieces."""
    with serving() as running, joined(running.addresses, make_spec()) as client:
        bare = Bare(running.addresses[0])
        bare.send(MessageHeader(Kind.PING, 0, session=client.session), bytes(PIECE + 1))
        assert bare.receive(0.5) is None
        bare.close()
        assert pull(client, 0, [1]).shape == (1, 4)


def test_pushes_that_were_never_made() -> None:
    """Who speaks of them to a server that lost nothing is wrong, and the run goes on."""
    with serving() as running, joined(running.addresses, make_spec()) as client:
        bare = Bare(running.addresses[0])
        bare.send(MessageHeader(Kind.PING, 0, step=1 << 40, session=client.session))
        answer = bare.receive(5.0)
        assert answer is not None and answer[0].kind == Kind.ERROR
        bare.close()
        assert pull(client, 0, [1]).shape == (1, 4)


def test_large_frames_come_in_pieces() -> None:
    spec = make_spec(dense=[[PIECE // 2]])
    with serving() as running, joined(running.addresses, spec) as client:
        (before,) = client.dense()
        push(client, {}, 1.0, dense=[torch.ones(PIECE // 2)]).wait()
        torch.testing.assert_close(client.dense()[0], before - 1.0)


def test_pieces_that_do_not_fit() -> None:
    head, *frames = in_pieces(MessageHeader(Kind.PUSH, 0), [b"ab", bytes(PIECE) + b"c", b""])
    assert head == MessageHeader(Kind.PUSH, 0, IN_PIECES).pack()
    assert list(map(len, frames)) == [24, 2, PIECE, 1]
    assert join_pieces(list(map(memoryview, frames))) == [b"ab", bytes(PIECE) + b"c", b""]
    for wrong in (
        [],
        [b""],
        [b"123"],
        [struct.pack("<q", 3), b"ab"],
        [struct.pack("<2q", -1, 3), b"ab"],
        [struct.pack("<9q", *range(9)), bytes(36)],
    ):
        with pytest.raises(WireError, match="pieces"):
            join_pieces(list(map(memoryview, wrong)))


def test_answers_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept up to a bound, then dropped; all others are served."""
    monkeypatch.setattr(sockets, "MOST_UNREAD", 20)
    spec = make_spec(dense=[[1 << 18]])
    with serving() as running, joined(running.addresses, spec) as client:
        deaf = Bare(running.addresses[0])
        deaf.socket.setsockopt(zmq.RCVHWM, 1)
        before = resident()
        for number in range(400):  # a MiB each
            deaf.send(MessageHeader(Kind.DENSE, 0, 0, number, -1, client.session))
            assert len(client.dense()[0]) == 1 << 18
        assert resident() - before < 200 << 20
        deaf.close()
