"""One list of demands on every click model: see tests/zoo_clicks.py, where a new one joins.

- a batch may be cut anywhere: the losses of its parts add up, with dropout, and a part may be empty
- sharded, ddp and parameter servers train as one process does
- it learns a synthetic log nearly as well as anything could
"""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import MODELS as FIRST
from feature_data import FEATURES, config, write
from ranks import run_ranks
from zoo_clicks import ANY_WIDTH, CLICKS, LABELS, TREES, batch_of, facts_of, make_model

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.data.features import Feature
from shoal.distributed.world import World
from shoal.models import MODELS as NAMES
from shoal.models import find
from shoal.models.base import Facts
from shoal.models.nn.dropout import end_steps
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.training.steps import seed_step
from shoal.training.strategies import make_strategy

STEPS = 4
SLOW = pytest.mark.slow
QUICK = ["FFM", "FiBiNET", "Wukong", "PLE", "DIEN", "HSTURanker"]
EACH = [name if name in QUICK else pytest.param(name, marks=SLOW) for name in CLICKS]
CPU = torch.device("cpu")


def curve(model: str, world: World, **strategy: Any) -> list[float]:
    """Losses of the first global batches, each rank on its slice, with dropout."""
    chosen = make_strategy(StrategySection(**{"name": "single", **strategy}), world)
    chosen.setup(make_model(model), OptimizerSection(name="adagrad", lr=0.05), seed=1)
    chosen.model.train()
    found = []
    for step in range(STEPS):
        batch = batch_of(model, step)
        seed_step(1, step, world.rank, CPU)
        found.append(float(chosen.train_step(batch.rows(*world.slice(batch.size)))))
    chosen.synchronize()
    chosen.close()
    end_steps()
    return found


def test_every_click_model_is_here() -> None:
    clicks = {name for name in NAMES if find(name).kind == "clicks"}
    assert clicks == {name.split()[0] for name in CLICKS} | set(FIRST) | set(TREES)


@pytest.mark.parametrize("name", CLICKS)
def test_a_batch_may_be_cut(name: str) -> None:
    strategy = make_strategy(StrategySection(name="single"), World())
    strategy.setup(make_model(name), OptimizerSection(name="sgd", lr=0.1), seed=1)
    strategy.model.train()
    batch, found = batch_of(name, 1), []
    for cuts in ([(0, batch.size)], [(0, 0), (0, 20), (20, 21), (21, batch.size)]):
        total = count = 0.0
        seed_step(1, 0, 0, CPU)
        for start, stop in cuts:
            output = strategy.forward(batch.rows(start, stop))
            output.loss.backward()
            total, count = total + float(output.loss.detach()), count + float(output.count)
        found.append((total, count))
    end_steps()
    assert found[0][1] == found[1][1] == batch.size
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for parameter_name, parameter in strategy.model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", EACH)
def test_sharded_by_one_process_equals_single(name: str) -> None:
    alone = curve(name, World())
    assert curve(name, World(), name="sharded", place="row") == pytest.approx(alone, rel=1e-5)
    assert len(set(alone)) == STEPS


# --- several processes: one start runs every model


def curves(world: World, addresses: dict[str, str]) -> dict[str, list[float]]:
    found = {}
    for name in CLICKS:
        found[f"ddp {name}"] = curve(name, world, name="ddp")
        found[f"sharded {name}"] = curve(name, world, name="sharded", place="row")
        servers = {"addresses": [addresses[name]]}
        found[f"ps {name}"] = curve(name, world, name="ps", ps=servers)
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    servers = {name: Server(index=0) for name in CLICKS}
    for one in servers.values():
        threading.Thread(target=one.serve, daemon=True).start()
    addresses = {name: one.address for name, one in servers.items()}
    folder: Path = tmp_path_factory.mktemp("click zoo") / "out"
    return run_ranks(curves, 2, folder, addresses)


@SLOW
@pytest.mark.parametrize("name", CLICKS)
@pytest.mark.parametrize("strategy", ["ddp", "sharded", "ps"])
def test_two_processes_train_as_one(strategy: str, name: str, together: list) -> None:
    alone = curve(name, World())
    for rank in together:
        assert rank[f"{strategy} {name}"] == pytest.approx(alone, rel=1e-4)


# --- features of several widths

WIDTHS = (
    Feature("user_id", "id", "user", rows=30, dim=3),
    Feature("item_id", "id", "item", rows=30),
    Feature("age", "number", "user"),
)


@pytest.mark.parametrize("name", ["FFM", "NFM", "PNN", "Wukong", *ANY_WIDTH])
def test_widths_of_features(name: str) -> None:
    facts = replace(facts_of(name), features=WIDTHS, per_feature=True, num_slots=2, num_dense=1)
    if name in ANY_WIDTH:
        model = make_model(name, facts)
        assert model.width(4) == 3 + 4
    else:
        with pytest.raises(ValueError, match=r"data\.features\.user_id\.dim is 3"):
            make_model(name, facts)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("features"))


@pytest.mark.parametrize("name", EACH)
def test_runs_on_features_of_every_kind(name: str, shop: Path) -> None:
    """Lists, numbers, words, crosses, a history; each width its own where a model takes any."""
    widths = name in (*ANY_WIDTH, "PLE", "DIN")
    features = {
        key: {k: v for k, v in said.items() if widths or k != "dim"}
        for key, said in FEATURES.items()
    }
    given = {f"model__{key}": value for key, value in CLICKS[name].items()}
    if name in LABELS:
        given["data__labels"] = {"click": {}, "again": {"column": "click"}}
    made = config(shop, name.split()[0], data__features=features, **given)
    parts = build(made, World())
    parts.model.train()
    losses = [float(parts.strategy.train_step(batch)) for batch in parts.reader.batches(0)]
    assert losses[-1] < 2.0 and len(set(losses)) > 10
    found = parts.evaluator.evaluate(parts.model, "valid")
    assert 0.0 < found["auc"] < 1.0
    parts.model.eval()
    asked = Batch(2, {"user_id": torch.tensor([1, 2])})
    with torch.no_grad():
        scores = parts.model.score(asked, torch.tensor([[3, 4], [5, 3]]))
    assert scores.shape == (2, 2) and bool(scores.isfinite().all())


def test_what_cannot_be_is_refused() -> None:
    one = Facts(num_slots=1, num_dense=0, rows=9)
    for name in ("FFM", "PNN"):
        with pytest.raises(ValueError, match=f"{name} has one vector and so no pairs"):
            make_model(name, one)
    with pytest.raises(ValueError, match="DIN reads a history beside a candidate"):
        make_model("DIN", facts_of("FFM"))
    for name in ("ESMM", "AITM"):
        with pytest.raises(ValueError, match=f"{name} learns steps that follow each other"):
            make_model(name, replace(facts_of(name), labels=()))
