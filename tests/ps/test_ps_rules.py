"""Servers that admit ids, let counts fade and drop rows: known answers, saves, wrong messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import global_batch, make_model
from ps_cluster import (
    Bare,
    at_servers,
    joined,
    make_spec,
    pull,
    push,
    rows_in,
    save,
    serving,
    share_of,
)
from safetensors.torch import load_file

from shoal.config.row_rules import RowRules, RowsSection
from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
from shoal.distributed.world import World
from shoal.embedding.engines.init import initial_rows
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.wire import Kind, MessageHeader, numbers_frame, parts_frame, send_ids, send_rows
from shoal.ps.worker.client import Client, ServerError
from shoal.training.checkpoint.writing import Checkpoints, read, restore_into
from shoal.training.strategies import make_strategy
from shoal.training.strategies.ps import ParameterServers


def spec_of(servers: int = 1, mode: str = "sync", optimizer: str = "sgd", **rules: Any) -> Spec:
    """One growing table with rules, and no dense parameters."""
    made = RowRules.model_validate(rules)
    table = TableSpec(name="ads", dim=2, init="uniform", scale=0.5, rules=made)
    return make_spec(optimizer, servers=servers, mode=mode, tables=[table], dense=[])


def show(client: Client, *ids: int, clicks: tuple[int, ...] = ()) -> None:
    """One step in which these ids came, as often as they are named; some of them clicked."""
    distinct = sorted(set(ids))
    share, order = share_of(client, 0, torch.tensor(distinct))
    seen = torch.tensor([[ids.count(i), clicks.count(i)] for i in distinct], dtype=torch.float32)
    share = type(share)(share.table, share.ids, share.counts, seen[order])
    client.start_push([share], [torch.ones(len(distinct), 2)], 0.5, 0.0, 1.0).wait()


def held(running: Any) -> list[int]:
    """Ids that have a row, on all servers."""
    stores = [server.steps.state.stores[0] for server in running.servers]
    return sorted(i for store in stores for chunk in store.export() for i in chunk.ids.tolist())


# ---- known answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2])
def test_a_rare_id_reads_its_initial_value(servers: int) -> None:
    """Until it came for the third time; then it has the gradient of that time alone."""
    spec = spec_of(servers, admission={"threshold": 3.0})
    first = initial_rows(spec.tables[0].table(), 1, torch.tensor([7, 8]))
    with serving(servers) as running, joined(running.addresses, spec, dense=False) as client:
        show(client, 7, 7, 8)
        assert held(running) == [] and torch.equal(pull(client, 0, [7, 8]), first)
        show(client, 7)
        assert held(running) == [7]
        torch.testing.assert_close(pull(client, 0, [7]), first[:1] - 0.5)
        show(client, 8)
        assert torch.equal(pull(client, 0, [8]), first[1:])
        show(client, 8)
        torch.testing.assert_close(pull(client, 0, [8]), first[1:] - 0.5)


def test_servers_share_the_capacity() -> None:
    spec = spec_of(2, shrink={"every": 2, "capacity": 10})
    with at_servers(spec) as client:
        show(client, *range(100))
        show(client, *range(100))
        sizes = [one["tables"]["ads"]["rows"] for one in client.stats()]
        assert sizes == [5, 5]


# ---- saves --------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "admission": {"threshold": 3.0},
    "counter_decay": {"every": 5, "rate": 0.5},
    "shrink": {"every": 6, "max_age": 4},
}


def teach(client: Client, begin: int, end: int) -> None:
    for step in range(begin, end):
        random = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 60, (40,), generator=random).tolist()
        show(client, *ids, clicks=tuple(ids[::5]))


def saved_counters(folder: Path) -> dict[int, tuple[float, ...]]:
    """Of ids without a row, in a save's files."""
    found: dict[int, tuple[float, ...]] = {}
    for file in folder.glob("rows-*"):
        tensors = load_file(file)
        if "pending.ids" in tensors:
            names = ("ids", "show", "click", "last_step")
            for number, *known in zip(*(tensors[f"pending.{n}"].tolist() for n in names)):
                found[number] = tuple(known)
    return found


@pytest.mark.parametrize("many, others", [(1, 3), (3, 2)])
def test_another_number_of_servers_continues_the_same(
    tmp_path: Path, many: int, others: int
) -> None:
    """Rows, their counters and those of ids without a row: what follows is the same."""
    with serving(many, folder=tmp_path) as running:
        spec = spec_of(many, optimizer="adagrad", **EVERYTHING)
        with joined(running.addresses, spec, dense=False) as client:
            teach(client, 0, 9)
            files = save(client, tmp_path / "nine")
            teach(client, 9, 20)
            save(client, tmp_path / "twenty")
    pending = saved_counters(tmp_path / "nine")
    assert pending and not pending.keys() & rows_in(tmp_path / "nine")["ads"].keys()
    with serving(others, folder=tmp_path) as running:
        spec = spec_of(others, optimizer="adagrad", **EVERYTHING)
        with joined(running.addresses, spec, dense=False) as client:
            client.load(str(tmp_path / "nine"), files, {"ads": 9}, fresh=True)
            teach(client, 9, 20)
            save(client, tmp_path / "again")
    assert rows_in(tmp_path / "again") == rows_in(tmp_path / "twenty")
    assert saved_counters(tmp_path / "again") == saved_counters(tmp_path / "twenty")


def test_a_delta_is_refused_after_rows_were_dropped(tmp_path: Path) -> None:
    spec = spec_of(shrink={"every": 3, "max_age": 1})
    with at_servers(spec, tmp_path) as client:
        show(client, 1)
        save(client, tmp_path / "base")
        show(client, 2)
        save(client, tmp_path / "delta", delta=True)
        show(client, 3)
        assert client.stats()[0]["rewritten"]
        with pytest.raises(ServerError, match="rows were dropped, or counts faded, since the last"):
            save(client, tmp_path / "second", delta=True)
        save(client, tmp_path / "whole")
        assert sorted(rows_in(tmp_path / "whole")["ads"]) == [2, 3]
        assert not client.stats()[0]["rewritten"]


def test_row_ages_count_steps_of_all_workers(tmp_path: Path) -> None:
    """In async a worker counts its own pushes, and a server those of all: rows must not go."""
    spec = spec_of(mode="async", shrink={"every": 12, "max_age": 4})
    with (
        serving(folder=tmp_path) as running,
        joined(running.addresses, spec, dense=False) as client,
    ):
        for step in range(10):
            show(client, step)
        files = save(client, tmp_path / "s")
        client.load(str(tmp_path / "s"), files, {"ads": 5}, fresh=True)  # of two workers, five each
        show(client, 20)
        show(client, 21)
        assert held(running) == [7, 8, 9, 20, 21]  # of steps 8 to 12


@contextmanager
def worker(
    section: RowsSection, servers: int, folder: Path, **more: Any
) -> Iterator[ParameterServers]:
    """The one worker of a run at servers."""
    with serving(servers, folder=folder) as running:
        given = ServersSection(addresses=running.addresses, **more)
        strategy = make_strategy(StrategySection(name="ps", ps=given), World())
        assert isinstance(strategy, ParameterServers)
        optimizer = OptimizerSection(name="adagrad", lr=0.05)
        strategy.setup(make_model("DNN", "grows"), optimizer, seed=1, rows=section)
        yield strategy
        strategy.close()


def test_a_run_saves_all_rows_after_some_were_dropped(tmp_path: Path) -> None:
    """By itself; and what it saved is read without servers, and without counters."""
    section = RowsSection.model_validate({**EVERYTHING, "admission": {"threshold": 2.0}})
    checkpoints = Checkpoints(tmp_path, World(), keep=9, rows_apart=True, whole_every=4)
    with worker(section, 2, folder=tmp_path) as strategy:
        for step in range(1, 9):
            strategy.train_step(global_batch(step, "one", "grows"))
            checkpoints.save(strategy, {"step": step, "best_step": None})
            checkpoints.wait()
        batch = global_batch(3, "one", "grows")
        strategy.model.eval()
        with torch.no_grad():
            said = strategy.model.logits(batch)  # type: ignore[operator]
    bases = [read(path, rows=False).rows for path in reversed(checkpoints.committed())]
    # 1 whole, 2 to 4 deltas, 5 (decay) and 6 (shrink) whole, 7 and 8 deltas of 6.
    assert [len(folders) for folders in bases] == [1, 2, 3, 4, 1, 1, 2, 3]
    plain = make_strategy(StrategySection(name="single"), World())
    plain.setup(make_model("DNN", "grows"), OptimizerSection(name="adagrad", lr=0.05), seed=1)
    restore_into(plain, read(checkpoints.committed()[0]))
    plain.model.eval()
    with torch.no_grad():
        assert torch.equal(plain.model.logits(batch), said)  # type: ignore[operator]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seen", [[0.0, 0.0], [1.5, 0.0], [-1.0, 0.0], [1.0, -1.0], [1e30, 0.0], [1.0, float("nan")]]
)
def test_impossible_counts_are_refused(seen: list[float]) -> None:
    spec = spec_of(admission={"threshold": 3.0})
    with serving() as running, joined(running.addresses, spec, dense=False) as client:
        share, _ = share_of(client, 0, torch.tensor([7]))
        wrong = type(share)(0, share.ids, share.counts, torch.tensor([seen]))
        with pytest.raises(ServerError, match="impossible counts of table 'ads'"):
            client.start_push([wrong], [torch.ones(1, 2)], 0.5, 0.0, 1.0).wait()
        client.pushes = 0
        show(client, 7, 7, 7)
        assert held(running) == [7]


def test_pushes_without_counts() -> None:
    spec = spec_of(admission={"threshold": 3.0})
    with serving() as running, joined(running.addresses, spec, dense=False) as client:
        bare = Bare(running.addresses[0])
        frames = [
            numbers_frame(0.5, 0.0, 1.0),
            parts_frame([(0, 1)]),
            send_ids([torch.tensor([7])], 0),
            send_rows([torch.ones(1, 2)], 0),
            b"",
        ]
        header = MessageHeader(Kind.PUSH, 0, 0, 50, 0, client.session)
        for extra in ([], [b"x"], [send_rows([torch.ones(3)], 0)]):
            kind, (text,) = bare.ask(header, *frames, *extra)
            assert kind == Kind.ERROR and b"frame" in text
        bare.close()
        push(client, {0: ([7], torch.ones(1, 2))}).wait()  # by default each id came once
        assert held(running) == []


def test_unsupported_row_rules_are_refused() -> None:
    rules = RowRules.model_validate({"admission": {"threshold": 3.0}})
    fixed = TableSpec(name="ads", dim=2, rows=5, init="uniform", scale=0.5, rules=rules)
    for spec in (make_spec(tables=[fixed]), spec_of(mode="geo", admission={"threshold": 3.0})):
        with serving() as running:
            client = Client(running.addresses)
            with pytest.raises(ServerError, match="table 'ads' cannot count its ids"):
                client.hello(spec)
            client.close()
