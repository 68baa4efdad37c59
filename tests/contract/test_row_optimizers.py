"""Every row optimizer, chosen in a config, under every synchronous strategy: textbook numbers.

The textbook stands below, in plain torch and doubles: BPR, and a formula for each optimizer.
"""

import threading
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from ranks import run_ranks
from small import first_batches, small_config
from torch import Tensor

from shoal.config.schema import RowOptimizerOptions
from shoal.data.reader import one_ahead
from shoal.distributed.world import World
from shoal.embedding.engines.init import initial_rows
from shoal.kernels.core import load_core
from shoal.optimizers.row_optimizer import ALIASES, HYPER_PARAMETERS, row_optimizer_names
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.parts import Parts

STEPS, LR, BATCH = 50, 0.2, 61
# What train.optimizer.rows says; the table of items has a rate of its own besides.
CASES: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 4.0, "weight_decay": 0.01},
    "momentum": {"lr": 1.0, "momentum": 0.8, "weight_decay": 0.01},
    "adagrad": {"lr": 0.05, "eps": 1e-6, "initial_accumulator_value": 1e-4},
    "rowwise_adagrad": {"lr": 0.02, "eps": 1e-5, "initial_accumulator_value": 1e-5, "clip": 0.01},
    "adam": {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.001},
    "adamw": {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.5},
    "rmsprop": {"lr": 0.005, "alpha": 0.9, "eps": 1e-4},
    "ftrl": {"lr": 0.1, "l1": 1e-4, "l2": 0.01, "beta": 0.1, "initial_accumulator_value": 0.1},
    "sparse_adam": {"lr": 0.01, "eps": 1e-4},
}
ITEMS: dict[str, dict[str, Any]] = {  # of the table of items, where it is not that of the users
    "two": {"name": "ftrl", "lr": 0.1, "initial_accumulator_value": 0.1}
}
CASES["two"] = {"name": "rowwise_adagrad", "lr": 0.02, "eps": 1e-5}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy__name": "ddp"},
    "sharded": {"strategy__name": "sharded", "strategy__place": "row"},
    "ps": {"strategy__name": "ps"},
}
QUICK = ["adamw", "two"]


# ---- what a config makes ------------------------------------------------------------------------


def parts_of(world: World, case: str, **values: Any) -> Parts:
    rows = {"name": case, **CASES[case]}
    items = ITEMS.get(case, {"lr": 0.5 * rows["lr"]})
    optimizer = {"name": "sgd", "lr": LR, "rows": rows, "tables": {"item": items}}
    values = {"train__batch_size": BATCH, "train__optimizer": optimizer, **values}
    return build(small_config("BPR", **values), world)


def rates() -> list[float]:
    """What a schedule with a warm-up gives."""
    return [LR * min(1.0, (step + 1) / 10) for step in range(STEPS)]


def train(parts: Parts, world: World) -> dict[str, Any]:
    """Losses of the steps, and the rows of all items after them."""
    found: list[float] = []
    parts.model.train()
    for batch, following in one_ahead(first_batches(parts.reader, world, STEPS)):
        if following is not None:
            parts.strategy.prefetch(following)
        found.append(float(parts.strategy.train_step(batch, rates()[len(found)])))
    parts.strategy.synchronize()
    parts.model.eval()
    with torch.no_grad():
        rows = parts.model.encode_item(torch.arange(parts.dataset.num_items))  # type: ignore[operator, union-attr]
    return {"losses": found, "rows": rows.tolist()}


def every_case(world: World, cases: list[str], addresses: dict[str, list[str]]) -> dict[str, Any]:
    found = {}
    for case in cases:
        for name, values in STRATEGIES.items():
            more = {"strategy__ps__addresses": addresses[case]} if name == "ps" else {}
            parts = parts_of(world, case, **values, **more)
            found[f"{case} {name}"] = train(parts, world)
            parts.strategy.close()
    return found


# ---- the textbook -------------------------------------------------------------------------------


@cache
def textbook(case: str) -> dict[str, Any]:
    """The same training in doubles."""
    parts = parts_of(World(), case, strategy__name="single")
    rows = {"name": case, **CASES[case]}
    own = {"user": rows, "item": {**rows, "lr": 0.5 * rows["lr"]}}
    own["item"] = ITEMS.get(case, own["item"])
    tables = {name: one for name, one in parts.model.embed.tables.items()}  # type: ignore[union-attr]
    values = {n: initial_rows(t, 2020, torch.arange(t.rows)).double() for n, t in tables.items()}  # type: ignore[arg-type]
    state: dict[str, dict[str, Tensor]] = {name: {} for name in values}
    found: list[float] = []
    for epoch in range(1000):
        for batch in parts.reader.batches(epoch, 0, 1, 0):
            if len(found) == STEPS:
                return {"losses": found, "rows": values["item"].tolist()}
            leaves = {name: one.clone().requires_grad_() for name, one in values.items()}
            users, items, others = batch.ids.values()
            queries = leaves["user"][users]
            margins = queries * (leaves["item"][items] - leaves["item"][others.flatten()])
            loss = -torch.nn.functional.logsigmoid(margins.sum(1)).mean()
            loss.backward()
            factor = rates()[len(found)] / LR
            found.append(float(loss.detach()))
            for name, ids in (("user", users), ("item", torch.cat([items, others.flatten()]))):
                touched = ids.unique()
                grads = leaves[name].grad[touched]  # type: ignore[index]
                row_step(own[name], values[name], state[name], touched, grads, factor, len(found))
    raise AssertionError("too few steps")


def row_step(
    told: dict[str, Any],
    values: Tensor,
    state: dict[str, Tensor],
    at: Tensor,
    g: Tensor,
    factor: float,
    step: int,
) -> None:
    """One step of the rows `at` by their gradients g [n, dim]: values and state in place."""
    name, lr, eps = told["name"], told["lr"] * factor, told.get("eps", 0.0)
    begin = told.get("initial_accumulator_value", 0.0)
    kept = {key: state.setdefault(key, torch.full_like(values, begin)) for key in ("sum",)}
    kept |= {key: state.setdefault(key, torch.zeros_like(values)) for key in ("first", "second")}
    w, total, first, second = values[at], *(kept[key][at] for key in ("sum", "first", "second"))
    decay = told.get("weight_decay", 0.0)
    if "clip" in told:
        g = g * (told["clip"] / g.norm(dim=1, keepdim=True)).clamp(max=1.0)
    if name == "adamw":
        w = w - lr * decay * w
    else:
        g = g + decay * w
    if name == "sgd":
        w = w - lr * g
    elif name == "momentum":
        first = told["momentum"] * first + g
        w = w - lr * first
    elif name == "adagrad":
        total = total + g**2
        w = w - lr * g / (total.sqrt() + eps)
    elif name == "rowwise_adagrad":
        total = total + (g**2).mean(dim=1, keepdim=True)
        w = w - lr * g / (total.sqrt() + eps)
    elif name in ("adam", "adamw", "sparse_adam"):
        one, two = told.get("betas", (0.9, 0.999))
        first, second = one * first + (1 - one) * g, two * second + (1 - two) * g**2
        mean, square = first / (1 - one**step), second / (1 - two**step)
        if name == "sparse_adam":  # eps beside what is not corrected yet
            eps = eps / (1 - two**step) ** 0.5
        w = w - lr * mean / (square.sqrt() + eps)
    elif name == "rmsprop":
        second = told["alpha"] * second + (1 - told["alpha"]) * g**2
        w = w - lr * g / (second.sqrt() + eps)
    elif name == "ftrl":
        l1, l2, beta = (told.get(key, 0.0) for key in ("l1", "l2", "beta"))
        first = first + g - ((total + g**2).sqrt() - total.sqrt()) / lr * w
        total = total + g**2
        w = -first.sign() * (first.abs() - l1).clamp(min=0) / ((beta + total.sqrt()) / lr + l2)
    values[at], state["sum"][at], state["first"][at], state["second"][at] = w, total, first, second


# ---- the tests ----------------------------------------------------------------------------------


def check(case: str, found: dict[str, Any]) -> None:
    expected = textbook(case)
    assert abs(expected["losses"][0] - expected["losses"][-1]) > 1e-3, "nothing was learned"
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    rows = torch.tensor(found["rows"], dtype=torch.float64)
    torch.testing.assert_close(rows, torch.tensor(expected["rows"]).double(), rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("row_optimizers")


@cache
def run(quick: bool, folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks found: "CASE STRATEGY" -> losses and rows. Servers are threads."""
    cases = QUICK if quick else [case for case in CASES if case not in QUICK]
    servers = {case: [Server(index=k) for k in range(2)] for case in cases}
    every = [one for some in servers.values() for one in some]
    threads = [threading.Thread(target=one.serve, daemon=True) for one in every]
    for thread in threads:
        thread.start()
    addresses = {case: [one.address for one in some] for case, some in servers.items()}
    found = run_ranks(every_case, 2, folder / str(quick), cases, addresses)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a server goes on after all workers said goodbye"
    return found


@pytest.mark.parametrize("case", CASES)
def test_single_is_the_textbook(case: str) -> None:
    world = World()
    check(case, train(parts_of(world, case, strategy__name="single"), world))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_two_ranks_are_the_textbook(case: str, strategy: str, folder: Path) -> None:
    for found in run(case in QUICK, folder):
        check(case, found[f"{case} {strategy}"])


def test_every_optimizer_has_its_case_and_its_place_in_the_schema() -> None:
    """Whoever adds one is told where it is missing."""
    names = set(row_optimizer_names())
    assert names == CASES.keys() - ITEMS.keys()
    hints = get_type_hints(RowOptimizerOptions)
    assert set(hints) == {"name", "lr", *HYPER_PARAMETERS}
    core = load_core()
    assert core is None or set(core.OPTIMIZERS) == names - ALIASES.keys()
