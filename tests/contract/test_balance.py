"""Law 2 where batches and slices are cut by length: the losses are those of one process, dropout
included, and balanced slices leave the losses what they are without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from small import first_batches, small_config

from shoal.data.cuts import cost
from shoal.data.windows import LengthReader
from shoal.distributed.world import World
from shoal.models.nn.dropout import end_steps
from shoal.runs.build import build
from shoal.training.steps import seed_step

pytestmark = pytest.mark.slow  # test_dropout_world has some of it in every run
STEPS = 20
SASREC = {"model": "SASRec", "model__hidden_dropout_prob": 0.5, "model__attn_dropout_prob": 0.5}
SGD = {"train__optimizer__name": "sgd", "train__optimizer__lr": 2.0}
BERT4REC = {"model": "BERT4Rec", "model__mask_ratio": 0.5, "model__hidden_dropout_prob": 0.3, **SGD}
BALANCED = {"train__balance": True, "train__batch_size": 61}
CURVES: dict[str, dict[str, Any]] = {
    "SASRec": {**SASREC, **BALANCED},
    "SASRec sharded": {**SASREC, **BALANCED, "strategy__name": "sharded"},
    "SASRec in batch": {**SASREC, **BALANCED, "model__loss_type": "in_batch"},
    "SASRec bucketed": {**SASREC, **BALANCED, "train__bucket": True},
    "SASRec by items": {**SASREC, "train__balance": True, "train__batch_tokens": 500},
    "SASRec by items, unbalanced": {**SASREC, "train__batch_tokens": 500},
    "BERT4Rec": {**BERT4REC, **BALANCED},
    "BERT4Rec by items": {**BERT4REC, "train__balance": True, "train__batch_tokens": 400},
}


def curve(world: World, name: str, **more: Any) -> dict[str, list[float]]:
    """Losses of the first steps, and what this rank's slices cost."""
    values = {**CURVES[name], **more}
    if world.size == 1:
        values.pop("strategy__name", None)
    config = small_config(values.pop("model"), **values)
    parts = build(config, world)
    parts.model.train()
    assert isinstance(parts.reader, LengthReader)
    losses, costs = [], []
    for step, batch in enumerate(first_batches(parts.reader, world, STEPS)):
        seed_step(config.run.seed, step, world.rank, world.device)
        losses.append(float(parts.strategy.train_step(batch)))
        items = (batch.tensor("history") > 0).sum(1).numpy()
        costs.append(int(cost(items, parts.reader.histories.max_len).sum()))
    end_steps()
    return {"losses": losses, "costs": costs}


def curves(world: World) -> dict[str, Any]:
    return {name: curve(world, name) for name in CURVES}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return curves(World())


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(curves, request.param, tmp_path_factory.mktemp("ranks") / "out")


@pytest.mark.parametrize("name", CURVES)
def test_losses_equal_single(name: str, alone: dict, together: list) -> None:
    for rank in together:
        assert rank[name]["losses"] == pytest.approx(alone[name]["losses"], rel=2e-5)


@pytest.mark.parametrize("name", [name for name in CURVES if "unbalanced" not in name])
def test_ranks_get_equal_work(name: str, alone: dict, together: list) -> None:
    """The cost of each batch is that of one process; a rank's is within 6 % of the mean."""
    costs = np.array([rank[name]["costs"] for rank in together])
    assert costs.sum(0).tolist() == alone[name]["costs"]
    assert (costs.max(0) / costs.mean(0)).mean() < 1.06


def test_balance_does_not_change_the_losses(alone: dict) -> None:
    for name in ("SASRec", "BERT4Rec"):
        assert curve(World(), name, train__balance=False) == alone[name]
