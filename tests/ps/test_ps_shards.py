"""Rows that servers write while training goes on, and load at another number of servers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ps_cluster import (
    SECONDS,
    Bare,
    at_servers,
    get_dense,
    grads,
    joined,
    make_spec,
    pull,
    push,
    rows_in,
    save,
    server_process,
    serving,
    set_dense,
)
from safetensors.torch import load_file, save_file

from shoal.ps.server import shards
from shoal.ps.server.process import run_server
from shoal.ps.wire import Kind, MessageHeader
from shoal.ps.worker.client import Client, ServerError

USERS = list(range(0, 1000, 7))
WORDS = [-(1 << 62), -5, 1, 2, 3, 1 << 33, (1 << 63) - 1]


def teach(client: Client, steps: int, begin: int = 0) -> None:
    """Some steps, with rows of both tables and the dense parameters."""
    assert client.spec is not None
    for step in range(begin, begin + steps):
        users, words = USERS[step::2], WORDS[step % 3 :]
        dense = [
            grads(step + k, 1, size).view(shape)
            for k, (size, shape) in enumerate(zip(client.spec.sizes, client.spec.dense))
        ]
        rows = {
            0: (users, grads(step, len(users), 4)),
            1: (words, grads(step, len(words), 3)),
        }
        push(client, rows, 0.1, 1.0, 2.0, dense).wait()


def everything(client: Client) -> list[torch.Tensor]:
    return [pull(client, 0, range(1000)), pull(client, 1, [*WORDS, 77]), *get_dense(client)]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def steps_of(client: Client) -> dict[str, int]:
    assert client.spec is not None
    return {table.name: client.pushes for table in client.spec.tables}


# ---- saving -------------------------------------------------------------------------------------


def test_a_save_holds_the_rows_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that follow at once are not in it, however long the writing takes."""
    gate, real = tmp_path / "go on", shards.write_shards

    def late(*arguments: object) -> object:  # in the child
        deadline = time.monotonic() + SECONDS
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "write_shards", late)
    folder = tmp_path / "save"
    folder.mkdir()
    with at_servers(make_spec("adagrad"), tmp_path) as client:
        teach(client, 2)
        expected = everything(client)
        client.save(str(folder))
        teach(client, 3, begin=2)  # answered while the rows are being written
        assert not torch.equal(everything(client)[0], expected[0])
        with pytest.raises(ServerError, match="the last save is still being written"):
            client.save(str(folder))
        gate.touch()
        files = client.saved()
        found = rows_in(folder)
        assert sorted(files) == sorted(path.name for path in folder.iterdir())
        for table, (name, ids) in enumerate((("user", USERS), ("word", WORDS))):
            assert sorted(found[name]) == sorted(ids if table else USERS[0::2] + USERS[1::2])
            rows = torch.tensor([found[name][number]["values"] for number in ids])
            assert torch.equal(rows, pull_from(expected, table, ids))
        save(client, tmp_path / "next")  # the one before is over


def pull_from(rows: list[torch.Tensor], table: int, ids: list[int]) -> torch.Tensor:
    return rows[0][ids] if table == 0 else rows[1][: len(ids)]


def test_a_repeated_save_request_writes_once(tmp_path: Path) -> None:
    """The answer was late: the files must not be written a second time, with other rows."""
    folder = tmp_path / "save"
    folder.mkdir()
    with serving(folder=tmp_path) as running, joined(running.addresses, make_spec()) as client:
        teach(client, 2)
        bare = Bare(running.addresses[0])
        header = MessageHeader(Kind.SAVE, 0, 0, 99, -1, client.session)
        text = json.dumps({"name": folder.name, "delta": False}).encode()
        assert bare.ask(header, text) == (Kind.OK, [])
        files, before = client.saved(), rows_in(folder)
        teach(client, 1, begin=2)
        assert bare.ask(header, text) == (Kind.OK, [])
        assert client.saved() == files and rows_in(folder) == before
        bare.close()


def test_a_delta_holds_what_changed(tmp_path: Path) -> None:
    with at_servers(make_spec("adam", servers=2), tmp_path) as client:
        with pytest.raises(ServerError, match="a delta needs a whole save before it"):
            save(client, tmp_path / "early", delta=True)
        teach(client, 2)
        save(client, tmp_path / "whole")
        push(client, {0: ([7, 999], grads(9, 2, 4)), 1: ([50], grads(9, 1, 3))}).wait()
        save(client, tmp_path / "first", delta=True)
        push(client, {0: ([14], grads(9, 1, 4))}).wait()
        save(client, tmp_path / "second", delta=True)
        save(client, tmp_path / "empty", delta=True)
        whole, first = rows_in(tmp_path / "whole"), rows_in(tmp_path / "first")
        assert sorted(whole["user"]) == USERS and sorted(whole["word"]) == WORDS
        assert {name: sorted(rows) for name, rows in first.items()} == {
            "user": [7, 999],
            "word": [50],
        }
        assert first["user"][7]["values"] != whole["user"][7]["values"]
        assert set(first["user"][7]) == set(whole["user"][7]) > {"values", "state.exp_avg"}
        assert {n: sorted(r) for n, r in rows_in(tmp_path / "second").items()} == {"user": [14]}
        assert rows_in(tmp_path / "empty") == {}


@pytest.mark.parametrize("folder", ["nowhere", "file", "x" * 5000])
def test_a_folder_that_the_server_cannot_see_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with at_servers(make_spec(), tmp_path) as client:
        teach(client, 1)
        with pytest.raises(ServerError, match=r"server 0 cannot see the folder .* all hosts"):
            client.save(f"{tmp_path}/{folder}")
        with pytest.raises(ServerError, match="nothing was saved"):
            client.saved()
        save(client, tmp_path / "good")


def test_a_save_into_a_removed_folder_fails_and_the_server_continues(tmp_path: Path) -> None:
    """The child fails, and says so; the server goes on."""
    with at_servers(make_spec(), tmp_path) as client:
        teach(client, 1)
        (tmp_path / "gone").mkdir()
        for name in ("user", "word"):
            (tmp_path / "gone" / f"rows-{name}-00000000.safetensors").mkdir()
        client.save(str(tmp_path / "gone"))
        with pytest.raises(ServerError, match=r"server 0 could not save its rows: .*exists"):
            client.saved()
        save(client, tmp_path / "good")


@pytest.mark.slow
def test_the_writer_process_ends_with_a_killed_server(tmp_path: Path) -> None:
    """No process is left when a server is killed in the midst of a save."""
    slow = server_process(tmp_path, run_slow_server, folder=str(tmp_path))
    with slow as (process, address), joined([address], make_spec()) as client:
        teach(client, 1)
        (tmp_path / "slow").mkdir()
        client.save(tmp_path / "slow")
        deadline = time.monotonic() + SECONDS
        while not (children := children_of(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.join()
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline, "the writer goes on without its server"
            time.sleep(0.01)


def run_slow_server(**arguments: Any) -> None:
    """A server whose saves into the folder `slow` take for ever."""
    real = shards.write_shards

    def write(state: Any, folder: Any, marks: Any) -> dict[str, Any]:
        while folder.path.name == "slow":
            time.sleep(0.01)
        return real(state, folder, marks)

    shards.write_shards = write
    run_server(**arguments)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_killed_writer_process_is_reported(tmp_path: Path) -> None:
    slow = server_process(tmp_path, run_slow_server, folder=str(tmp_path))
    with slow as (process, address), joined([address], make_spec()) as client:
        teach(client, 1)
        (tmp_path / "slow").mkdir()
        client.save(tmp_path / "slow")
        deadline = time.monotonic() + SECONDS
        while not (children := children_of(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(children[0], signal.SIGKILL)
        with pytest.raises(ServerError, match="a server's save ended with status -9"):
            client.saved()
        save(client, tmp_path / "again")


# ---- loading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("many, others", [(1, 3), (3, 2)])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_rows_load_on_another_number_of_servers(
    tmp_path: Path, optimizer: str, many: int, others: int
) -> None:
    """Same rows, same state: the steps that follow are the same as well."""
    with serving(many, folder=tmp_path) as running:
        spec = make_spec(optimizer, servers=many)
        with joined(running.addresses, spec) as client:
            teach(client, 3)
            files, steps = save(client, tmp_path / "whole"), steps_of(client)
            teach(client, 1, begin=3)
            more = save(client, tmp_path / "delta", delta=True)
            state, before, steps2 = client.dense_state(), everything(client), steps_of(client)
            assert len(state) == {"adam": 9, "adagrad": 6}[optimizer]
            teach(client, 2, begin=4)
            after = everything(client)
            save(client, tmp_path / "last")
    with serving(others, folder=tmp_path) as running:
        spec = make_spec(optimizer, servers=others)
        with joined(running.addresses, spec, dense=False) as client:
            client.load(str(tmp_path / "whole"), files, steps, fresh=True)
            client.load(str(tmp_path / "delta"), more, steps2)
            set_dense(client, before[2:], state)
            assert_same(everything(client), before)
            sizes = [one["tables"]["user"]["rows"] for one in client.stats()]
            assert sum(sizes) == len(USERS) and all(sizes)
            found = client.dense_state()
            assert found.keys() == state.keys()
            assert all(torch.equal(found[key], state[key]) for key in state)
            teach(client, 2, begin=4)
            assert_same(everything(client), after)
            save(client, tmp_path / "again")
    assert rows_in(tmp_path / "again") == rows_in(tmp_path / "last")


def test_loading_an_earlier_checkpoint_drops_later_rows(tmp_path: Path) -> None:
    """A row that was first taught after the checkpoint reads as its initial value again."""
    with at_servers(make_spec(), tmp_path) as client:
        teach(client, 1)
        files, steps, before = save(client, tmp_path / "s"), steps_of(client), everything(client)
        teach(client, 3, begin=1)
        push(client, {0: ([1, 2], grads(1, 2, 4)), 1: ([77], grads(1, 1, 3))}).wait()
        client.load(str(tmp_path / "s"), files, steps, fresh=True)
        assert_same(everything(client)[:2], before[:2])
        assert client.stats()[0]["tables"]["user"]["rows"] == len(USERS[0::2])
        with pytest.raises(ServerError, match="a delta needs a whole save"):
            save(client, tmp_path / "delta", delta=True)


def test_a_repeated_load_request_loads_once(tmp_path: Path) -> None:
    """The answer was late: what was taught since must stay."""
    with serving(folder=tmp_path) as running, joined(running.addresses, make_spec()) as client:
        teach(client, 1)
        files = save(client, tmp_path / "s")
        bare = Bare(running.addresses[0])
        header = MessageHeader(Kind.LOAD, 0, 0, 99, -1, client.session)
        values = {"name": "s", "files": files, "steps": steps_of(client)}
        assert bare.ask(header, json.dumps(values).encode()) == (Kind.OK, [])
        teach(client, 1, begin=1)
        taught = everything(client)
        assert bare.ask(header, json.dumps(values).encode()) == (Kind.OK, [])
        assert_same(everything(client), taught)
        bare.close()


def test_loads_that_are_refused(tmp_path: Path) -> None:
    """By name, and the rows that were there stay."""
    with at_servers(make_spec(), tmp_path) as client:
        teach(client, 2)
        folder = tmp_path / "s"
        files, before = save(client, folder), everything(client)
        _user, word = sorted(files)
        good = (folder / word).read_bytes()

        def refused(message: str, **values: object) -> None:
            given = {"folder": folder, "files": files, "steps": {}, **values}
            with pytest.raises(ServerError, match=message):
                client.load(**given, fresh=True)  # type: ignore[arg-type]
            assert_same(everything(client), before)

        facts = files[word]
        refused("cannot read .*: No such file", folder=str(tmp_path / "nowhere"))
        refused("a table 'other' that the model does not have", files={"rows-other-0": facts})
        refused("'dense.safetensors' holds no rows", files={"dense.safetensors": facts})
        refused("holds no rows", files={"rows-../../user-0": facts})
        refused("a load is", files={word: "text"})
        refused("a load is", files=[word])
        refused("a load is", steps={"user": "many"})
        refused("a load is", steps={"user": -1})
        refused("no plain name", files={"rows-user-\0": facts})
        (folder / word).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        refused(f"is damaged: {word} fails its checksum")
        (folder / word).write_bytes(good[:100])
        refused(f"is damaged: {word} fails its checksum")
        (folder / word).unlink()
        refused(f"cannot read .*{word}")
        (folder / word).write_bytes(good)
        # Whole files that do not fit: of another table, of another optimizer.
        refused(
            "values is torch.float32",
            files={word.replace("word", "user"): facts}
            | {word.replace("word", "user"): shadow(folder, word, word.replace("word", "user"))},
        )
        client.load(str(folder), {word: facts}, {})
        assert_same(everything(client), before)


def shadow(folder: Path, source: str, target: str) -> dict[str, object]:
    """Put one table's file where another's is; the facts of it."""
    tensors = load_file(folder / source)
    save_file(tensors, folder / target)
    return {"sha256": hashlib.sha256((folder / target).read_bytes()).hexdigest()}
