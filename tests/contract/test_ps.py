"""Parameter servers in sync mode train as one process does: same losses, same predictions.

W workers are processes; S servers are threads of the test with sockets of their own, so that one
start of the workers runs every case.
"""

import threading
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import global_batch, losses, make_model
from ranks import run_ranks

from shoal.config.row_rules import TiersSection
from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
from shoal.distributed.world import World
from shoal.ps.server.server import Server
from shoal.training.strategies import Strategy, make_strategy

STEPS = 50
RATES = {"sgd": 0.1, "adagrad": 0.05, "adam": 0.003}
PLAIN = ("one", "fixed", "server")
# model, optimizer, servers, ids, rows, who keeps the dense parameters
Case = tuple[str, str, int, str, str, str]
QUICK: list[Case] = [
    ("DNN", "adam", 1, *PLAIN),
    ("DNN", "sgd", 2, *PLAIN),
    ("DNN", "adagrad", 3, "lists", "grows", "all_reduce"),
    ("WideDeep", "adagrad", 1, "one", "grows", "server"),
    ("WideDeep", "adam", 2, "lists", "fixed", "server"),
    ("WideDeep", "sgd", 3, "one", "fixed", "all_reduce"),
]
ALL: list[Case] = [
    (model, optimizer, servers, *PLAIN)
    for model, optimizer, servers in product(("DNN", "WideDeep"), RATES, (1, 2, 3))
]


def train(strategy: Strategy, case: Case) -> tuple[list[float], list[float]]:
    """Losses of 50 steps, and what the model then says about a batch of its own."""
    model, optimizer, _, kind, rows, _ = case
    section = OptimizerSection(name=optimizer, lr=RATES[optimizer])  # type: ignore[arg-type]
    strategy.setup(make_model(model, rows), section, seed=1)
    found = losses(strategy, STEPS, kind, rows)
    strategy.synchronize()
    strategy.model.eval()
    with torch.no_grad():
        said = strategy.model.logits(global_batch(1000, kind, rows))  # type: ignore[operator]
    return found, said.tolist()


def every_case(world: World, cases: list[Any], addresses: list[list[str]]) -> list[Any]:
    found = []
    for case, where in zip(cases, addresses):
        servers = ServersSection(mode="sync", dense=case[5], addresses=where)
        strategy = make_strategy(StrategySection(name="ps", ps=servers), world)
        found.append(train(strategy, case))
        strategy.close()
    return found


@cache
def alone(case: Case) -> tuple[list[float], list[float]]:
    return train(make_strategy(StrategySection(name="single"), World()), case)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ps")


def tiers_of(case: Case, folder: Path) -> TiersSection | None:
    """Servers of growing tables have rows on a disk, too; of others all are in memory."""
    if case[4] == "fixed":
        return None
    room = 26_400 if case[0] == "DNN" else 44_000  # less than all rows, more than those of a step
    return TiersSection(host=room // case[2], ssd=str(folder / "rows"))


@cache
def run(workers: int, quick: bool, folder: Path) -> dict[Case, list[Any]]:
    """Case -> what every worker found."""
    cases = QUICK if quick else ALL
    servers = [
        [Server(index=k, tiers=tiers_of(case, folder)) for k in range(case[2])] for case in cases
    ]
    threads = [threading.Thread(target=one.serve, daemon=True) for some in servers for one in some]
    for thread in threads:
        thread.start()
    addresses = [[one.address for one in some] for some in servers]
    ranks = run_ranks(every_case, workers, folder / f"{workers} {quick}", cases, addresses)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a server goes on after all workers said goodbye"
    for case, some in zip(cases, servers):
        leaves = [leaf for one in some if one.steps is not None for leaf in one.steps.state.stores]
        assert case[4] == "fixed" or any(leaf.traffic.evicted for leaf in leaves)
    return {case: [rank[k] for rank in ranks] for k, case in enumerate(cases)}


def check(case: Case, found: list[Any]) -> None:
    expected, said = alone(case)
    assert abs(expected[0] - expected[-1]) > 1e-3, "nothing was learned"
    for curve, says in found:
        assert curve == pytest.approx(expected, rel=1e-5)
        assert says == pytest.approx(said, rel=1e-4, abs=1e-5)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("workers", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize("case", QUICK, ids=lambda case: " ".join(map(str, case)))
def test_sync_equals_single(workers: int, case: Case, folder: Path) -> None:
    check(case, run(workers, True, folder)[case])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("case", ALL, ids=lambda case: " ".join(map(str, case)))
def test_sync_equals_single_everywhere(workers: int, case: Case, folder: Path) -> None:
    check(case, run(workers, False, folder)[case])
