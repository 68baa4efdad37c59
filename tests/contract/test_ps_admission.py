"""Growing tables with admission, decay and eviction: servers and ddp train as one process does.

Which ids have a row, and their counters, are besides worked out here from the batches alone.
"""

import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import global_batch, losses, make_model
from ranks import run_ranks

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
from shoal.data.batch import Jagged
from shoal.distributed.world import World
from shoal.ps.server.server import Server
from shoal.training.strategies import Strategy, make_strategy

STEPS = 30
RATES = {"sgd": 0.1, "adagrad": 0.05}
# Coefficients and the decay are exact in binary, so that no count hangs on rounding.
RULES: dict[str, Any] = {
    "off": {},
    "counts": {"counter_decay": {"every": 1000}},
    "admission": {
        "admission": {"threshold": 14.0, "show_coefficient": 0.25, "click_coefficient": 1.0}
    },
    "all": {
        "admission": {"threshold": 7.0, "show_coefficient": 0.25, "click_coefficient": 1.0},
        "counter_decay": {"every": 5, "rate": 0.5},
        "shrink": {"every": 7, "min_score": 5.0, "max_age": 2},
    },
}
# optimizer, ids, rules
Case = tuple[str, str, str]
CASES: list[Case] = [
    ("adagrad", "one", "off"),
    ("adagrad", "one", "counts"),
    ("sgd", "one", "admission"),
    ("adagrad", "lists", "all"),
]


def train(strategy: Strategy, case: Case) -> tuple[list[float], list[float]]:
    """Losses, and what the model then says about a batch of its own."""
    optimizer, kind, rules = case
    section = OptimizerSection(name=optimizer, lr=RATES[optimizer])  # type: ignore[arg-type]
    strategy.setup(
        make_model("DNN", "grows"), section, seed=1, rows=RowsSection.model_validate(RULES[rules])
    )
    found = losses(strategy, STEPS, kind, "grows")
    strategy.synchronize()
    strategy.model.eval()
    with torch.no_grad():
        said = strategy.model.logits(global_batch(1000, kind, "grows"))  # type: ignore[operator]
    return found, said.tolist()


@cache
def alone(case: Case) -> tuple[list[float], list[float], dict[str, Any]]:
    strategy = make_strategy(StrategySection(name="single"), World())
    return *train(strategy, case), counters([strategy.stores["slots"]])


def counters(stores: list[Any]) -> dict[str, Any]:
    """Of stores that hold a table together: id -> show, click, last step; of rows and of others."""
    rows: dict[int, tuple[float, ...]] = {}
    pending: dict[int, tuple[float, ...]] = {}
    for store in stores:
        for chunk in store.export():
            names = [n for n in ("show", "click", "last_step") if n in chunk.state]
            columns = zip(*(chunk.state[n].tolist() for n in names)) if names else [()] * len(store)
            rows |= dict(zip(chunk.ids.tolist(), columns))
        for part in store.export_pending():
            columns = zip(part.show.tolist(), part.click.tolist(), part.last_step.tolist())
            pending |= dict(zip(part.ids.tolist(), columns))
    return {"rows": rows, "pending": pending}


def expected(case: Case) -> dict[str, Any]:
    """The counters, from the batches alone."""
    _, kind, rules = case
    section = RowsSection.model_validate(RULES[rules])
    admission, shrink, decay = section.admission, section.shrink, section.counter_decay
    rows: dict[int, list[float]] = {}
    pending: dict[int, list[float]] = {}

    def score(known: list[float]) -> float:
        show, click, _ = known
        return admission.show_coefficient * (show - click) + admission.click_coefficient * click

    for step in range(1, STEPS + 1):
        batch = global_batch(step - 1, kind, "grows")
        ids = batch.ids["slots"]
        assert batch.labels is not None
        came: dict[int, list[float]] = {}
        for sample, label in enumerate(batch.labels.tolist()):
            if isinstance(ids, Jagged):
                lists = len(ids) // batch.size
                bounds = ids.offsets[[sample * lists, (sample + 1) * lists]].tolist()
                some = ids.values[bounds[0] : bounds[1]].tolist()
            else:
                some = ids[sample].tolist()
            for id_ in some:
                known = came.setdefault(id_, [0.0, 0.0])
                known[0] += 1
                known[1] += label
        for id_, (show, click) in came.items():
            known = rows.get(id_) or pending.pop(id_, [0.0, 0.0, 0])
            known = [known[0] + show, known[1] + click, step]
            has_row = id_ in rows or score(known) >= admission.threshold
            (rows if has_row else pending)[id_] = known
        for group in (rows, pending):
            if decay.every and step % decay.every == 0:
                for known in group.values():
                    known[0], known[1] = known[0] * decay.rate, known[1] * decay.rate
            if shrink.every and step % shrink.every == 0:
                for id_, known in list(group.items()):
                    old = shrink.max_age is not None and step - known[2] > shrink.max_age
                    if old or score(known) < shrink.min_score:
                        del group[id_]
    return {"rows": _tuples(rows), "pending": _tuples(pending)}


def _tuples(group: dict[int, list[float]]) -> dict[int, tuple[float, ...]]:
    return {id_: tuple(known) for id_, known in group.items()}


def every_case(world: World, addresses: list[list[str]]) -> list[Any]:
    """At the servers; then by ddp, and what rank 0 holds then."""
    found = []
    for case, where in zip(CASES, addresses):
        strategy = make_strategy(
            StrategySection(name="ps", ps=ServersSection(addresses=where)), world
        )
        at_servers = train(strategy, case)
        strategy.close()
        strategy = make_strategy(StrategySection(name="ddp"), world)
        by_ddp = train(strategy, case)
        held = counters([strategy.stores["slots"]])
        found.append([at_servers, by_ddp, [list(group.items()) for group in held.values()]])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admission")


@cache
def run(workers: int, servers: int, folder: Path) -> dict[tuple[Case, str], Any]:
    """Case, strategy -> what every worker found, and what is held then."""
    running = [[Server(index=k) for k in range(servers)] for _ in CASES]
    threads = [threading.Thread(target=one.serve, daemon=True) for some in running for one in some]
    for thread in threads:
        thread.start()
    addresses = [[one.address for one in some] for some in running]
    if workers == 1:
        ranks = [every_case(World(), addresses)]
    else:
        ranks = run_ranks(every_case, workers, folder, addresses)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a server goes on after all workers said goodbye"
    result = {}
    for k, case in enumerate(CASES):
        states = [one.steps.state for one in running[k]]
        at_servers = counters([state.stores[0] for state in states if state is not None])
        rows, pending = ({i: tuple(known) for i, known in some} for some in ranks[0][k][2])
        result[case, "ps"] = [rank[k][0] for rank in ranks], at_servers
        result[case, "ddp"] = [rank[k][1] for rank in ranks], {"rows": rows, "pending": pending}
    return result


def check(case: Case, found: list[Any], held: dict[str, Any]) -> None:
    curve, said, counted = alone(case)
    assert abs(curve[0] - curve[-1]) > 1e-3, "nothing was learned"
    for mine, says in found:
        assert mine == pytest.approx(curve, rel=1e-5)
        assert says == pytest.approx(said, rel=1e-4, abs=1e-5)
    assert held == counted


@pytest.mark.parametrize("case", CASES[1:], ids=" ".join)
def test_single_admits_ids_by_their_counts(case: Case) -> None:
    counted, wanted = alone(case)[2], expected(case)
    assert counted == wanted
    if case[2] != "counts":
        assert wanted["rows"] and wanted["pending"], "the case shows nothing"


def test_counters_alone_change_nothing() -> None:
    """With threshold 0 all ids have rows at once: the numbers are those without counters."""
    assert alone(CASES[0])[:2] == alone(CASES[1])[:2]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
@pytest.mark.parametrize("strategy", ["ps", "ddp"])
@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 2)])
def test_many_workers_equal_single(
    case: Case, strategy: str, workers: int, servers: int, folder: Path
) -> None:
    check(case, *run(workers, servers, folder)[case, strategy])
