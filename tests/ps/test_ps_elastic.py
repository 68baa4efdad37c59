"""Workers that come and go: what is lent to whom, and that every batch counts once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from ps_cluster import SECONDS, joined, make_spec, pull, push, serving
from small import small_config

from shoal.config import ConfigError, Resolved
from shoal.distributed.world import PeerLost
from shoal.ps.server.ledger import Applied, BatchRequest, Ledger, Turn
from shoal.ps.spec import Spec
from shoal.ps.wire import ANY_NUMBER, MOST_WORKERS, WireError
from shoal.ps.worker.lease import Lease
from shoal.ps.worker.link import ServerError
from shoal.runs.run import resolve, train_here

IDS = [3, 5, 900]


# ---- the ledger ---------------------------------------------------------------------------------


def ask(ledger: Ledger, worker: int, alive: list[int], **said: Any) -> dict[str, Any]:
    return ledger.ask(worker, BatchRequest(**said), alive)


def begun(last: int = 100, first: int = 0, **values: Any) -> Ledger:
    """A ledger in whose first turn nothing was lent yet; worker 0 is the chief."""
    ledger = Ledger()
    assert ask(ledger, 0, [0])["floor"] and ask(ledger, 1, [0, 1]) == {"wait": True}
    ledger.begin_turn(0, Turn(number=1, first=first, last=last, **values))
    return ledger


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("grain", [1, 7])
def test_every_batch_counts_once_when_workers_are_lost(seed: int, grain: int) -> None:
    """Workers come, are lost and leave in any order; two servers apply what reaches them."""
    chance = random.Random(seed)
    ledger, applied = begun(500, 30, grain=grain), [Applied(), Applied()]
    counted: list[Counter[int]] = [Counter(), Counter()]
    alive, ever = [0], 1
    while not ledger.all_done:
        if len(alive) < 5 and chance.random() < 0.2:
            alive.append(ever)
            ever += 1
        worker = chance.choice(alive)
        told = ask(ledger, worker, alive)
        if "lease" not in told:
            continue
        lease = Lease.of(told)
        while lease.computed < lease.last:
            lease.computed = min(lease.last, lease.computed + grain)
            first, last = lease.pushed, lease.computed
            reached = (
                [0, 1] if chance.random() < 0.9 else chance.sample([0, 1], k=chance.choice([0, 1]))
            )
            for server in reached:
                if applied[server].is_new(0, first, last):
                    applied[server].add(0, first, last)
                    counted[server].update(range(first, last))
            if len(reached) < 2:  # killed before all of them had it
                alive = [one for one in alive if one != worker] or [ever]
                ever += 1
                ledger.give_back(worker)
                break
            lease.pushed = lease.done = last
            ledger.advance(worker, lease.number, lease.done)
        else:
            ask(ledger, worker, alive, lease=lease.number, done=lease.last, wants=False)
    assert counted == [Counter(range(30, 500))] * 2


def test_a_repeated_request_gets_the_same_lease() -> None:
    ledger = begun()
    first = ask(ledger, 1, [0, 1])
    assert ask(ledger, 1, [0, 1]) == first
    second = ask(ledger, 1, [0, 1], lease=first["lease"], done=first["last"])
    assert second["first"] == first["last"]
    # the question before the last comes late
    assert ask(ledger, 1, [0, 1], lease=first["lease"], done=first["last"]) == second


def test_unfinished_batches_are_lent_again() -> None:
    ledger = begun()
    lost = ask(ledger, 1, [0, 1])
    ledger.advance(1, lost["lease"], lost["first"] + 3)
    assert ledger.give_back(1) == (lost["first"] + 3, lost["last"])
    again = ask(ledger, 0, [0])
    assert (again["first"], again["last"]) == (lost["first"] + 3, lost["last"])
    assert again["step"] == again["first"]


def test_a_lost_chief_is_replaced() -> None:
    ledger = begun(0, notes={"agreed": {"x": 1}})
    assert ask(ledger, 0, [0, 1, 2])["floor"]
    assert ask(ledger, 2, [0, 1, 2]) == {"wait": True}
    with pytest.raises(WireError, match="worker 2 says what comes next, and 0 has the floor"):
        ledger.begin_turn(2, Turn(number=2))
    told = ask(ledger, 1, [1, 2], knows=False)  # 0 is lost
    assert told["floor"] and told["turn"]["number"] == 1 and told["agreed"] == {"x": 1}
    for number in (1, 3):
        with pytest.raises(WireError, match="turn 1 is under way"):
            ledger.begin_turn(1, Turn(number=number))
    ledger.begin_turn(1, Turn(number=2, over=True))
    assert ask(ledger, 2, [1, 2]) == {"over": True} and ledger.over


def test_a_turn_ends_after_lent_batches_when_stopped() -> None:
    ledger = begun()
    lease = ask(ledger, 0, [0])
    done = {"lease": lease["lease"], "done": lease["last"], "loss": 6.0, "losses": 3}
    told = ask(ledger, 0, [0], stop=True, **done)
    assert told["floor"] and told["stop"] and told["turn"]["last"] == lease["last"] < 100
    assert (told["loss"], told["losses"]) == (6.0, 3)


def test_partly_pushed_batches_are_refused() -> None:
    applied = Applied()
    applied.add(1, 10, 20)
    assert not applied.is_new(1, 12, 14) and not applied.is_new(0, 50, 51)
    assert not applied.is_new(1, 40, 40) and applied.is_new(2, 12, 14)
    for first, last in ((5, 11), (19, 22), (5, 25)):
        with pytest.raises(WireError, match="some of which came before"):
            applied.is_new(1, first, last)


# ---- servers ------------------------------------------------------------------------------------


def elastic(**values: Any) -> Spec:
    return make_spec(**{"mode": "async", "elastic": True, "workers": MOST_WORKERS, **values})


def lend(number: int, first: int, last: int) -> Lease:
    return Lease(number, 0, first, last, 0, first, 1)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_batch_that_two_workers_computed_counts_once(mode: str) -> None:
    """One of them had reached one server only."""
    spec, ids = elastic(servers=2, mode=mode), list(range(20))
    with (
        serving(2) as running,
        joined(running.addresses, spec, ANY_NUMBER) as one,
        joined(running.addresses, spec, ANY_NUMBER) as two,
    ):
        assert (one.worker, two.worker) == (0, 1)
        before = pull(one, 0, ids)
        for client, number in ((one, 1), (two, 2)):
            client.lease = lend(number, 4, 6)
            client.lease.computed = 5
        one.links[1]._send = lambda message: None  # type: ignore[method-assign]
        pushing = push(one, {0: (ids, torch.ones(20, 4))}, lr=1.0)
        del pushing.requests[1:]
        pushing.wait()  # and then it was killed
        assert push(two, {0: (ids, torch.ones(20, 4))}, lr=1.0).wait() is not None
        once = pull(two, 0, ids)
        assert torch.allclose((once - before).abs(), torch.ones(20, 4), atol=1e-6)
        assert two.lease is not None and two.lease.done == two.lease.pushed == 5
        two.lease.computed = 6
        push(two, {0: (ids, torch.ones(20, 4))}, lr=1.0).wait()
        assert torch.allclose((pull(two, 0, ids) - before).abs(), 2 * torch.ones(20, 4), atol=1e-6)


def test_other_workers_continue_without_a_silent_worker() -> None:
    spec = elastic()
    with serving(timeout=1.5) as running, joined(running.addresses, spec, ANY_NUMBER) as one:
        assert one.ask_lease({})["floor"]
        one.set_turn({"number": 1, "last": 8})
        with joined(running.addresses, spec, ANY_NUMBER) as two:
            lost = two.ask_lease({})
            assert lost["workers"] == 2
        deadline = time.monotonic() + SECONDS
        seen: set[int] = set()
        while not running.servers[0].members.ledger.all_done:
            assert time.monotonic() < deadline
            told = one.ask_lease({})
            if "lease" in told:
                seen |= set(range(told["first"], told["last"]))
                one.ask_lease({"lease": told["lease"], "done": told["last"], "wants": False})
            time.sleep(0.05)
        assert seen == set(range(8)) and running.servers[0].failure is None
        two = running.servers[0].members[1]
        assert "has been silent" in two.lost


def test_a_server_without_workers_ends_with_an_error() -> None:
    with serving(timeout=1.0) as running:
        with joined(running.addresses, elastic(), ANY_NUMBER) as one:
            one.bye()
        assert running.join() == [1]
        assert "all workers have left or were lost" in str(running.servers[0].failure)


def test_the_chief_ends_the_run() -> None:
    with serving(2) as running:
        with joined(running.addresses, elastic(servers=2), ANY_NUMBER) as one:
            one.ask_lease({})
            one.set_turn({"number": 1, "over": True})
            assert one.ask_lease({}) == {"over": True}
            one.over = True
            one.bye()
        assert running.join() == [0, 0]


def test_a_worker_that_joins_at_the_end_does_not_wait(tmp_path: Path) -> None:
    """Before the others have left, while the servers end, and when they are gone."""
    with serving(2) as running:
        with joined(running.addresses, elastic(servers=2), ANY_NUMBER) as one:
            one.ask_lease({})
            one.set_turn({"number": 1, "over": True})
            with (
                pytest.raises(ServerError, match="the run is over: there is nothing left to do"),
                joined(running.addresses, elastic(servers=2), ANY_NUMBER, joins=True),
            ):
                pass
            one.over = True
            one.bye()
        assert running.join() == [0, 0]
    gone = running.addresses
    with serving() as running:
        some = [*running.addresses, gone[1]]
        with (
            pytest.raises(PeerLost, match="is gone: the run that this worker joins has ended"),
            joined(some, elastic(servers=2), ANY_NUMBER, joins=True),
        ):
            pass
        assert running.servers[0].members.alive == []  # it does not wait for the one who left
    values = {"name": "ps", "ps__mode": "async", "ps__elastic": True, "ps__addresses": gone}
    given = {f"strategy__{key}": value for key, value in values.items()}
    config = Resolved(small_config("BPR", **given, run__output=str(tmp_path)), {})
    with pytest.raises(PeerLost, match=r"no server of this run listens .* it has ended, or was st"):
        train_here(config)
    (tmp_path / "result.json").write_text("{}")
    assert train_here(config) == {}


def test_requests_that_are_refused() -> None:
    with serving(2) as running, joined(running.addresses, elastic(servers=2), ANY_NUMBER) as one:
        for said in ({"lease": -1}, {"done": 1 << 60}, {"x": 1}, {"loss": "much"}):
            with pytest.raises(ServerError, match="a LEASE that is not right"):
                one.ask_lease(said)
        one.ask_lease({})
        for said in ({}, {"number": 1, "first": 9, "last": 3}, {"number": 1, "grain": 0}):
            with pytest.raises(ServerError):
                one.set_turn(said)
        with pytest.raises(ServerError, match="at most 1048576 are taken"):
            one.set_turn({"number": 1, "notes": {"x": "y" * (1 << 20)}})
        one.links.reverse()
        with pytest.raises(ServerError, match="server 0 keeps the ledger of this run"):
            one.ask_lease({})
        one.links.reverse()
    with (
        serving() as running,
        joined(running.addresses, make_spec()) as one,
        pytest.raises(ServerError, match="the workers of this run do not come and go"),
    ):
        one.ask_lease({})


# ---- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys, key, text",
    [
        ({"strategy.ps.mode": "sync"}, "strategy.ps.elastic", "strategy.ps.mode=async"),
        ({"strategy.ps.dense": "all_reduce"}, "strategy.ps.dense", "leave it at server"),
        ({"strategy.ps.journal": True}, "strategy.ps.journal", "set one of the two to false"),
        ({"train.ema": 0.9}, "train.ema", "leave it out"),
        ({"start.run": "x"}, "start.run", "is not read with strategy.ps.elastic yet"),
    ],
)
def test_what_needs_all_workers_is_refused(keys: dict[str, Any], key: str, text: str) -> None:
    given = {"strategy.name": "ps", "strategy.ps.mode": "async", "strategy.ps.elastic": True}
    with pytest.raises(ConfigError, match=f"{key}: .*{text}"):
        resolve(values={"model": "BPR", "data.name": "synthetic", **given, **keys})
