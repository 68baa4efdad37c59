"""Law 2 with dropout: masks belong to samples, so losses are the same for every number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click_batches import DENSE, ROWS, SLOTS, global_batch
from ranks import run_ranks
from small import small_config

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.models.base import Facts
from shoal.models.clicks.dnn import DNN
from shoal.models.nn.dropout import end_steps
from shoal.runs.build import build
from shoal.training.steps import seed_step
from shoal.training.strategies import make_strategy

SASREC = {
    "model": "SASRec",
    "train__batch_size": 13,
    "model__hidden_dropout_prob": 0.5,
    "model__attn_dropout_prob": 0.5,
}
BERT4REC = {
    "model": "BERT4Rec",
    "model__mask_ratio": 0.5,
    "model__hidden_dropout_prob": 0.3,
    "model__attn_dropout_prob": 0.3,
    # Adam makes steps of rounding where a row's gradient is nearly nothing: see test_strategies
    "train__optimizer__name": "sgd",
    "train__optimizer__lr": 2.0,
}
SHARDED = {"strategy__name": "sharded"}
CURVES: dict[str, tuple[int, dict[str, Any]]] = {
    "SASRec": (50, SASREC),
    "SASRec sharded": (50, {**SASREC, **SHARDED}),
    "BERT4Rec": (20, BERT4REC),
    "BERT4Rec sharded": (20, {**BERT4REC, **SHARDED}),
    "SASRec balanced, by items": (
        20,
        {**SASREC, "train__balance": True, "train__batch_tokens": 300},
    ),
    "BERT4Rec balanced": (10, {**BERT4REC, **SHARDED, "train__balance": True}),
    "NeuMF": (20, {"model": "NeuMF", "model__dropout_prob": 0.5, "train__negatives__num": 3}),
}


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    yield
    end_steps()  # masks of later tests are not those of our last step


def curve(world: World, name: str, parts_of_a_slice: int = 1) -> list[float]:
    """Losses of the first steps; a slice may be cut further, as train.accumulate does."""
    steps, values = CURVES[name]
    values = {"train__batch_size": 61, **values}
    if world.size == 1:
        values.pop("strategy__name", None)
    config = small_config(values.pop("model"), **values)
    made = build(config, world)
    made.model.train()
    n = parts_of_a_slice
    losses: list[float] = []
    for epoch in range(steps):
        slices = [made.reader.batches(epoch, world.rank * n + k, world.size * n) for k in range(n)]
        for parts in zip(*slices):
            seed_step(config.run.seed, len(losses), world.rank, world.device)
            losses.append(float(made.strategy.step(list(parts))))
            if len(losses) == steps:
                return losses
    raise AssertionError("too few steps")


def click_curve(world: World, strategy: str) -> list[float]:
    """Losses of DNN; some global batches are one sample, so that other ranks have none."""
    facts = Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS)
    torch.manual_seed(5)
    model = DNN(DNN.Options(dim=6, layers=[16, 8], initial_range=0.1, dropout=0.5), facts)
    made = make_strategy(StrategySection(name=strategy), world)
    made.setup(model, OptimizerSection(name="adagrad", lr=0.05), seed=1)
    losses = []
    for step in range(20):
        batch = global_batch(step, "one", "fixed")
        cuts = [batch.size * rank // world.size for rank in (world.rank, world.rank + 1)]
        seed_step(1, step, world.rank, world.device)
        losses.append(float(made.train_step(batch.rows(*cuts))))
    return losses


def curves(world: World) -> dict[str, list[float]]:
    """All of them: starting processes is what costs."""
    found = {name: curve(world, name) for name in CURVES}
    for strategy in ("ddp", "sharded"):
        found[f"DNN {strategy}"] = click_curve(world, strategy if world.size > 1 else "single")
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    return curves(World())


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(curves, request.param, tmp_path_factory.mktemp("ranks") / "out")


@pytest.mark.parametrize("name", [*CURVES, "DNN ddp", "DNN sharded"])
def test_losses_with_dropout_equal_single(name: str, alone: dict, together: list) -> None:
    for rank in together:
        assert rank[name] == pytest.approx(alone[name], rel=1e-5)


@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec", "NeuMF"])
def test_accumulated_slices_are_dropped_alike(name: str, alone: dict) -> None:
    assert curve(World(), name, 3) == pytest.approx(alone[name], rel=1e-5)


@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec", "NeuMF"])
def test_dropout_does_something(name: str, alone: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, values = CURVES[name]
    without = {k: 0.0 if "dropout" in k else v for k, v in values.items()}
    monkeypatch.setitem(CURVES, name, (steps, without))
    assert curve(World(), name) != pytest.approx(alone[name], rel=1e-3)
