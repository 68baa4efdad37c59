"""A server that is killed and started again: what it was, bit for bit, or one clear error."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ps_cluster import (
    SECONDS,
    Threads,
    applied,
    grads,
    joined,
    make_spec,
    pull,
    push,
    save,
    serving,
    set_dense,
)
from test_ps_shards import WORDS, assert_same, everything, steps_of, teach

from shoal.distributed.world import PeerLost
from shoal.ps.server import shards
from shoal.ps.server.journal import FILES, checked, first_check, heads, write
from shoal.ps.server.server import Server
from shoal.ps.spec import Spec
from shoal.ps.worker.client import Client, ServerError

pytestmark = pytest.mark.usefixtures("quick")


def kill(running: Threads, number: int) -> None:
    """End a server; what it has written stays as it is."""
    server = running.servers[number]
    server.recovery.journal.discard = lambda: None  # type: ignore[method-assign]
    server._all_done = lambda: True  # type: ignore[method-assign]
    server._ending = True
    running._threads[number].join(SECONDS)
    assert not running._threads[number].is_alive()


def start(running: Threads, number: int, folder: Path) -> Server:
    """Another process of a server, as far as it knows: at the same address."""
    deadline = time.monotonic() + SECONDS
    while True:  # somebody else may have its port for a moment
        try:
            server = Server(running.addresses[number], number, folder=folder, journal=True)
            break
        except ValueError as error:
            if "in use" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    running.servers[number] = server
    running._threads[number] = threading.Thread(target=running._serve, args=(number,))
    running._threads[number].start()
    return server


@contextmanager
def journaled(folder: Path, spec: Spec, dense: bool = True) -> Iterator[tuple[Threads, Client]]:
    with (
        serving(spec.servers, folder=folder, journal=True) as running,
        joined(running.addresses, spec, dense=dense, recovery=SECONDS) as client,
    ):
        yield running, client


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("journal/*"))


def commit(folder: Path, step: int) -> None:
    os.rename(folder / f".step-{step}.new", folder / f"step-{step}")


def saved(client: Client, folder: Path, step: int, delta: bool = False) -> None:
    save(client, folder / f".step-{step}.new", delta)
    commit(folder, step)


Act = Callable[[Client, Path], None]
ACTS: dict[str, Act] = {
    "teach": lambda client, folder: teach(client, 1, begin=client.pushes),
    "save": lambda client, folder: saved(client, folder, client.pushes),
    "delta": lambda client, folder: saved(client, folder, client.pushes, delta=True),
    "begin": lambda client, folder: begin(client, folder),
    "end": lambda client, folder: end(client, folder),
}


def begin(client: Client, folder: Path) -> None:
    """A save that is not committed yet, nor known to be written."""
    (folder / f".step-{client.pushes}.new").mkdir()
    client.save(folder / f".step-{client.pushes}.new")


def end(client: Client, folder: Path) -> None:
    """What `begin` began is committed; all its files are there, each of them whole."""
    (hidden,) = folder.glob(".step-*")
    files = client.saved()
    assert sorted(files) == sorted(path.name for path in hidden.iterdir())
    commit(folder, int(hidden.name[6:-4]))


LIFE = "teach teach save teach delta teach begin teach end teach teach"


def live(folder: Path, spec: Spec, kills: tuple[int, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Everything at the end of a life in which server 1 is killed after some of its acts."""
    folder.mkdir()
    with journaled(folder, spec) as (running, client):
        for number, act in enumerate(LIFE.split()):
            ACTS[act](client, folder)
            if number in kills:
                kill(running, 1)
                start(running, 1, folder)
        found, state = everything(client), client.dense_state()
        client.save(_made(folder / "last"))
        return [*found, *(state[key] for key in sorted(state))], client.saved()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "mode", ["sync", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("async", "geo"))]
)
def test_a_server_killed_after_every_act_ends_with_the_same_state(
    tmp_path: Path, mode: str
) -> None:
    """Killed after every act of its life: the rows, states and files of one that never was."""
    spec = make_spec("sgd" if mode == "geo" else "adam", servers=2, mode=mode)
    expected, files = live(tmp_path / "whole", spec, ())
    found, again = live(tmp_path / "killed", spec, tuple(range(11)))
    assert_same(found, expected)
    assert again == files  # checksums of everything that both servers hold
    assert not (tmp_path / "killed" / "journal").exists()  # the run is over


def test_a_server_killed_between_two_pushes_applies_the_step_once(tmp_path: Path) -> None:
    """sync: the push that waits for another one is remembered, and is not applied twice."""
    spec = make_spec("adagrad", workers=2)
    with (
        journaled(tmp_path, spec) as (running, one),
        joined(running.addresses, spec, 1, recovery=SECONDS) as two,
    ):
        before = pull(one, 0, [3])
        first = push(one, {0: ([3], grads(1, 1))}, 0.1, 2.0, 1.0)
        pull(one, 0, [3])  # it has come
        kill(running, 0)
        second = push(two, {0: ([3], grads(2, 1))}, 0.1, 3.0, 1.0)
        server = start(running, 0, tmp_path)
        assert first.wait()[:2] == second.wait()[:2] == (5.0, 2.0)
        assert applied(server) == 1
        total = (grads(1, 1) + grads(2, 1)) / 2
        expected = before - 0.1 * total / (total.abs() + 1e-10)
        assert pull(two, 0, [3]).allclose(expected)


def test_loads_and_sets_are_replayed_once(tmp_path: Path) -> None:
    """A checkpoint that was loaded, and dense parameters that were set, come back with it."""
    spec = make_spec("adagrad", servers=2)
    with journaled(tmp_path, spec) as (running, client):
        teach(client, 3)
        files = save(client, tmp_path / "saved")
        kept, steps, dense = everything(client), steps_of(client), client.dense_state()
        teach(client, 2, begin=3)
        client.load(tmp_path / "saved", files, steps, fresh=True)
        set_dense(client, kept[2:], dense)
        kill(running, 0)
        start(running, 0, tmp_path)
        assert_same(everything(client), kept)


def test_a_save_of_a_killed_server_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had written is written again, of the same moment."""
    real, life = shards.write_shards, [0]

    def write(state: Any, folder: Any, marks: Any) -> dict[str, Any]:  # in the child
        if life[0] == 0:
            folder.write("rows-user-00000000.safetensors", b"a part")
            threading.Event().wait()
        return real(state, folder, marks)

    monkeypatch.setattr(shards, "write_shards", write)
    with journaled(tmp_path, make_spec("adagrad")) as (running, client):
        teach(client, 2)
        begin(client, tmp_path)
        hidden = tmp_path / ".step-2.new"
        while not (hidden / "rows-user-00000000.safetensors").exists():
            pass
        kill(running, 0)
        life[0] += 1
        start(running, 0, tmp_path)
        teach(client, 1, begin=2)
        end(client, tmp_path)
        assert (tmp_path / "step-2" / "rows-user-00000000.safetensors").stat().st_size > 6


def test_a_journal_of_another_run_is_not_used(tmp_path: Path) -> None:
    """The journal of a run before is nobody's; and its files are for their user alone."""
    spec = make_spec()
    with journaled(tmp_path, spec) as (running, client):
        first = everything(client)
        teach(client, 2)
        (file,) = segments(tmp_path)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert client._heartbeat is not None
        client._heartbeat.stop()  # that run is over
        kill(running, 0)
        start(running, 0, tmp_path)
        with joined(running.addresses, spec) as other:
            assert_same(everything(other), first)
            assert [one.name for one in segments(tmp_path)] == ["000-000001"]
        with pytest.raises(ServerError, match="worker 0 is not known here"):
            pull(client, 0, [3])


# ---- damage -------------------------------------------------------------------------------------


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def cut(file: Path, place: int) -> None:
    os.truncate(file, file.stat().st_size + place)


def head_of_last(file: Path) -> int:
    """Where the last record begins, and a little more."""
    return file.read_bytes().rindex(b"SHJ1") + 5


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda file: flip(file, -1), "is damaged: a record fails its checksum"),
        (lambda file: file.unlink(), r"0 was started again .* its journal \(.*\) was removed"),
        (lambda file: flip(file, 5), "does not know worker 0: its journal"),
        (lambda file: flip(file, head_of_last(file)), "the head of a record fails its checksum"),
        (lambda file: flip(file, file.stat().st_size // 2), "is damaged: "),
        (lambda file: file.rename(file.with_name("000-000009")), "is damaged: a record fails"),
        (lambda file: cut(file, -1), r"has lost pushes of worker 0 .* \(3 of 4 are there\)"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "does not know worker 0: its journal"),
        (lambda file: (file.rename("x"), file.symlink_to("x")), "does not know worker 0: its jour"),
    ],
)
def test_a_damaged_journal_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], Any], said: str
) -> None:
    """One clear error, never other numbers."""
    monkeypatch.chdir(tmp_path)
    with journaled(tmp_path, make_spec("adagrad")) as (running, client):
        teach(client, 4)
        kill(running, 0)
        (file,) = segments(tmp_path)
        damage(file)
        server = start(running, 0, tmp_path)
        with pytest.raises((PeerLost, ServerError), match=said):
            teach(client, 1, begin=4)
        assert applied(server) <= 4  # the last push was never taken


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    with journaled(tmp_path, make_spec("adagrad")) as (running, client):
        for _ in range(2):  # saves that are never committed: every segment is needed
            teach(client, 1, begin=client.pushes)
            begin(client, tmp_path)
            client.saved()
        kill(running, 0)
        segments(tmp_path)[1].unlink()
        start(running, 0, tmp_path)
        with pytest.raises((PeerLost, ServerError), match="the journal's 000-000002 is missing"):
            teach(client, 1, begin=2)


def test_damaged_rows(tmp_path: Path) -> None:
    with journaled(tmp_path, make_spec("adagrad")) as (running, client):
        teach(client, 2)
        saved(client, tmp_path, 2)
        kill(running, 0)
        flip(next((tmp_path / "step-2").glob("rows-user-*")), -1)
        start(running, 0, tmp_path)
        with pytest.raises(PeerLost, match=r"server 0 cannot recover: .* fails its checksum"):
            pull(client, 1, WORDS)


GONE = {"rows": [["../elsewhere", {"rows-user-0": {"sha256": ""}}]]}
STATES = [
    {},
    {"rows": []},
    {"rows": [["step-2"]]},
    {"rows": [[3, {}]]},
    {"rows": [["step-2", 5]]},
    {"rows": [["step-2", {"dense.safetensors": {}}]]},
    GONE,
]


@pytest.mark.parametrize("rows", STATES)
def test_a_forged_journal_is_refused(tmp_path: Path, rows: dict[str, Any]) -> None:
    """Whoever can write it can at most end the run: its checksums are right, and it is refused."""
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "own"
    with journaled(folder, make_spec("adagrad")) as (running, client):
        teach(client, 2)
        saved(client, folder, 2)
        kill(running, 0)
        forge(segments(folder)[-1], rows)
        server = start(running, 0, folder)
        with pytest.raises((PeerLost, ServerError), match="server 0 cannot recover"):
            pull(client, 1, WORDS)
        assert applied(server) == 0
    assert not list((tmp_path / "elsewhere").iterdir())


def forge(segment: Path, rows: dict[str, Any]) -> None:
    """The same segment, with other files of rows."""
    found, check = [], first_check(segment.name)
    with open(segment, "rb") as file:
        for what, sizes, _ in heads(file, segment.name, True):
            frames = [file.read(size) for size in sizes]
            found.append((what, [json.dumps(rows).encode()] if what == FILES else frames))
    handle = os.open(segment, os.O_WRONLY | os.O_TRUNC)
    for what, frames in found:
        check = checked(frames, check)
        write(handle, what, frames, check)
    os.close(handle)


def test_a_push_cut_while_written_is_sent_again(tmp_path: Path) -> None:
    """A record that is cut was never answered: it goes, and the worker sends it again."""
    spec = make_spec("adagrad")
    with journaled(tmp_path / "whole", spec) as (_, client):
        teach(client, 3)
        expected = everything(client)
    with journaled(tmp_path / "cut", spec) as (running, client):
        teach(client, 2)
        before = segments(tmp_path / "cut")[0].stat().st_size
        kill(running, 0)
        with open(segments(tmp_path / "cut")[0], "ab") as file:
            file.write(b"SHJ1 a part of a head")
        start(running, 0, tmp_path / "cut")
        teach(client, 1, begin=2)
        assert_same(everything(client), expected)
        kill(running, 0)
        assert segments(tmp_path / "cut")[0].stat().st_size > before
        start(running, 0, tmp_path / "cut")
        assert_same(everything(client), expected)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journaled(tmp_path, make_spec()) as (_, client):
        teach(client, 1)

        def full(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(PeerLost, match="server 0 cannot write its journal: No space left"):
            teach(client, 1, begin=1)


def test_a_journal_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="a journal needs a folder"):
        Server(journal=True)
