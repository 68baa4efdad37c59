"""Features of every kind train under every strategy as one process does."""

from pathlib import Path
from typing import Any

import pytest
from feature_data import FEATURES, config, write
from ps_cluster import serving
from ranks import run_ranks
from small import first_batches

from shoal.distributed.world import World
from shoal.runs.build import build

STEPS = 12
SIDED = {
    name: {k: v for k, v in said.items() if k != "dim"}
    for name, said in FEATURES.items()
    if name not in ("device", "both")
}
CASES: dict[str, dict[str, Any]] = {
    "DNN": {
        "data__features": FEATURES,
        "data__labels": {"click": {}, "spent": {"loss": "squared", "weight": 0.3}},
        "data__sample_weight": "weight",
        "train__optimizer__name": "adagrad",
        "train__optimizer__lr": 0.05,
    },
    "LightFM": {"data__features": SIDED, "train__optimizer__lr": 0.01, "eval__topk": [5]},
}
CASES["HSTURanker"] = {
    **CASES["DNN"],
    "data__features": {
        **{name: said for name, said in FEATURES.items() if name != "liked"},
        "item_id": {"kind": "id"},
        "history": {"kind": "sequence", "column": "item_id", "table": "item_id", "length": 6},
    },
    **{"model__hidden_size": 8, "model__n_heads": 2, "model__layers": [8]},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy__name": "ddp"},
    "row": {"strategy__name": "sharded", "strategy__place": "row"},
    "table": {"strategy__name": "sharded", "strategy__place": "table"},
}


def curve(world: World, folder: str, model: str, more: dict[str, Any]) -> dict[str, Any]:
    """Losses of some steps, and the metrics after them."""
    given = {**CASES[model], **more}
    if model == "LightFM":
        given["eval__valid_metric"] = "MRR@5"
    parts = build(config(folder, model, **given), world)
    parts.model.train()
    slices = first_batches(parts.reader, world, STEPS)
    losses = [float(parts.strategy.train_step(batch)) for batch in slices]
    parts.strategy.synchronize()
    valid = parts.evaluator.evaluate(parts.model, "valid")
    parts.strategy.close()
    return {"losses": losses, "valid": valid}


def every(world: World, folder: str, models: list[str], servers: list[str]) -> dict[str, Any]:
    found = {}
    served = {"strategy__name": "ps", "strategy__ps__addresses": servers}
    for model in models:
        for name, more in {**STRATEGIES, "ps": served}.items():
            found[f"{model} {name}"] = curve(world, folder, model, more)
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("features")))


@pytest.mark.parametrize("model", CASES)
def test_one_process_of_every_strategy_equals_single(model: str, data: str) -> None:
    with serving(2) as servers:
        found = every(World(), data, [model], servers.addresses)
    compare([found], [model], data)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("model", CASES)
def test_processes_of_every_strategy_equal_single(
    model: str, size: int, data: str, tmp_path: Path
) -> None:
    with serving(2) as servers:
        ranks = run_ranks(every, size, tmp_path / "ranks", data, [model], servers.addresses)
    compare(ranks, [model], data)


def compare(ranks: list[dict[str, Any]], models: list[str], data: str) -> None:
    for model in models:
        single = curve(World(), data, model, {})
        for rank in ranks:
            for name in [*STRATEGIES, "ps"]:
                found = rank[f"{model} {name}"]
                assert found["losses"] == pytest.approx(single["losses"], rel=1e-5), name
                assert found["valid"] == pytest.approx(single["valid"], rel=1e-4), name


def test_what_is_compared_learns(data: str) -> None:
    found = curve(World(), data, "DNN", {})
    assert sum(found["losses"][-4:]) < sum(found["losses"][:4])
    assert {"auc", "auc_click", "logloss_click", "rmse_spent"} <= set(found["valid"])
    assert found["valid"]["auc"] == found["valid"]["auc_click"]
