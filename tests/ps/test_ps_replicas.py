"""Servers that hold the same rows: one is killed, and nobody waits, restarts or sees other rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
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
    share_of,
)
from test_ps_journal import ACTS, LIFE, begin, commit, kill
from test_ps_shards import assert_same, everything, steps_of, teach

from shoal.config import ConfigError
from shoal.distributed.world import PeerLost
from shoal.ps.server import shards
from shoal.ps.spec import Spec
from shoal.ps.wire import Kind
from shoal.ps.worker.client import Client
from shoal.runs.run import resolve

pytestmark = pytest.mark.usefixtures("quick")


@contextmanager
def replicated(folder: Path, spec: Spec) -> Iterator[tuple[Threads, Client]]:
    with (
        serving(spec.servers, replicas=2, folder=folder) as running,
        joined(running.addresses, spec, replicas=2, timeout=SECONDS) as client,
    ):
        yield running, client


def live(folder: Path, spec: Spec, when: int | None, who: int) -> tuple[list[Any], dict[str, Any]]:
    """Everything at the end of a life in which a server is killed after one of its acts."""
    folder.mkdir()
    with replicated(folder, spec) as (running, client):
        for number, act in enumerate(LIFE.split()):
            ACTS[act](client, folder)
            if number == when:
                kill(running, who)
        found, state = everything(client), client.dense_state()
        assert client.left_out == [when is not None and k == who for k in range(4)]
        return [*found, *(state[key] for key in sorted(state))], save(client, folder / "last")


@pytest.mark.parametrize(
    "mode", ["sync", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("async", "geo"))]
)
def test_a_killed_replica_changes_no_rows_or_files(tmp_path: Path, mode: str) -> None:
    """After any act of its life: the rows, states and files of a run that nobody hit."""
    spec = make_spec("sgd" if mode == "geo" else "adam", servers=2, mode=mode)
    expected, files = live(tmp_path / "whole", spec, None, 0)
    for when, who in [(1, 1), (6, 1), (8, 3)]:  # between steps, in a save, one that only follows
        found, again = live(tmp_path / f"killed{when}", spec, when, who)
        assert_same(found, expected)
        assert again == files  # checksums of everything that the servers hold


def test_a_replica_killed_between_two_pushes_applies_the_step_once(tmp_path: Path) -> None:
    """sync: the step is applied once, where both pushes are; rows that wait for it come, too."""
    spec = make_spec("adagrad", workers=2)
    with (
        replicated(tmp_path, spec) as (running, one),
        joined(running.addresses, spec, 1, replicas=2) as two,
    ):
        before = pull(one, 0, [3])
        first = push(one, {0: ([3], grads(1, 1))}, 0.1, 2.0, 1.0)
        reading = one.start_pull([share_of(one, 0, torch.tensor([3]))[0]], step=1)
        kill(running, 0)
        second = push(two, {0: ([3], grads(2, 1))}, 0.1, 3.0, 1.0)
        assert first.wait()[:2] == second.wait()[:2] == (5.0, 2.0)
        assert applied(running.servers[1]) == 1
        total = (grads(1, 1) + grads(2, 1)) / 2
        expected = before - 0.1 * total / (total.abs() + 1e-10)
        assert reading.wait()[0].allclose(expected)
        assert torch.equal(pull(two, 0, [3]), pull(one, 0, [3]))


def test_a_replica_killed_while_saving_is_replaced_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save is of its moment, whoever writes it in the end, and however late."""
    real = shards.write_shards

    def write(state: Any, folder: Any, marks: Any) -> dict[str, Any]:  # in the child
        if not folder.again:
            folder.write("rows-user-00000000.safetensors", b"a part")
            threading.Event().wait()
        return real(state, folder, marks)

    with replicated(tmp_path, make_spec("adagrad")) as (running, client):
        teach(client, 2)
        expected = save(client, tmp_path / "first")
        assert isinstance(running.servers[1].writer, shards.Written)  # its child is gone
        monkeypatch.setattr(shards, "write_shards", write)
        begin(client, tmp_path)
        hidden = tmp_path / ".step-2.new"
        while not (hidden / "rows-user-00000000.safetensors").exists():
            pass
        teach(client, 3, begin=2)
        kill(running, 0)
        assert client.saved() == expected
        commit(tmp_path, 2)
        teach(client, 1, begin=5)


def test_a_loaded_checkpoint_reaches_all_replicas(tmp_path: Path) -> None:
    """Every server takes it over, not only the one that is read from."""
    with replicated(tmp_path, make_spec("adagrad", servers=2)) as (running, client):
        teach(client, 3)
        files, kept = save(client, tmp_path / "saved"), everything(client)
        steps = steps_of(client)
        teach(client, 2, begin=3)
        client.load(tmp_path / "saved", files, steps, fresh=True)
        rows = everything(client)[:2]
        kill(running, 0)
        kill(running, 3)
        assert_same(everything(client)[:2], rows)
        assert_same(rows, kept[:2])


def test_a_later_connection_knows_the_lost_replicas(tmp_path: Path) -> None:
    """A connection that is made later knows who is lost, and finds out by itself who is later."""
    with replicated(tmp_path, make_spec(servers=2)) as (running, client):
        kill(running, 0)
        teach(client, 1)
        other = client.second()
        assert other.left_out == [True, False, False, False]
        kill(running, 1)
        assert len(other.stats()) == 2
        assert other.left_out == [True, True, False, False]
        other.close()
        teach(client, 1, begin=1)


def test_a_replica_that_one_worker_lost_is_left_out_by_all(tmp_path: Path) -> None:
    """A server that lives and lacks something, because one worker does not reach it any more."""
    spec = make_spec(workers=2, servers=2)
    with (
        replicated(tmp_path, spec) as (running, one),
        joined(running.addresses, spec, 1, replicas=2) as two,
    ):
        one.leave_out([False, True, False, False])
        two.leave_out(one.left_out)
        assert two.left_out == [False, True, False, False]
        pushes = [push(client, {0: ([3, 4, 5], grads(1))}) for client in (one, two)]
        for pushing in pushes:
            pushing.wait()
        assert [applied(server) for server in running.servers] == [1, 0, 1, 1]


def test_losing_both_replicas_is_one_error(tmp_path: Path) -> None:
    """One error that names both."""
    with replicated(tmp_path, make_spec(servers=2)) as (running, client):
        teach(client, 1)
        kill(running, 1)
        teach(client, 1, begin=1)
        kill(running, 3)
        one, other = running.addresses[1], running.addresses[3]
        said = rf"server 1 at {other} is gone \(its replica before it: server 1 at {one} is gone\)"
        with pytest.raises(PeerLost, match=said):
            teach(client, 1, begin=2)


def test_replicas_report_a_lost_worker(tmp_path: Path) -> None:
    """Both servers say so, and nobody takes that for the loss of a server."""
    spec = make_spec(workers=2)
    with (
        replicated(tmp_path, spec) as (running, one),
        joined(running.addresses, spec, 1, replicas=2) as two,
    ):
        assert two._heartbeat is not None
        two._heartbeat.stop()
        for server in running.servers:
            server.members.timeout = 2.0
        with pytest.raises(PeerLost, match=r"worker 1 on host .* has been silent"):
            push(one, {0: ([3], grads(1, 1))}).wait()


def test_reported_saves_of_replicas_are_checked(tmp_path: Path) -> None:
    with replicated(tmp_path, make_spec()) as (_, client):
        save(client, tmp_path / "saved")
        for told in (b"{}", b'{"files": 3}'):
            header = client.header(Kind.SAVED)
            client.servers[1].ask(header, [told])
            with pytest.raises(ValueError, match="its files must be told"):
                client.servers[1].wait(header.sequence)


@pytest.mark.parametrize(
    "keys, key, text",
    [
        ({"strategy.ps.journal": True}, "strategy.ps.journal", "choose one of the two"),
        ({"strategy.ps.elastic": True}, "strategy.ps.replicas", "kept by one server alone"),
        ({"strategy.ps.addresses": ["a:1", "b:1", "c:1"]}, "strategy.ps.replicas", "are 3 servers"),
    ],
)
def test_settings_that_exclude_replicas_are_refused(
    keys: dict[str, Any], key: str, text: str
) -> None:
    given = {"strategy.name": "ps", "strategy.ps.mode": "async", "strategy.ps.replicas": 2}
    with pytest.raises(ConfigError, match=f"{key}: .*{text}"):
        resolve(values={"model": "BPR", "data.name": "synthetic", **given, **keys})
