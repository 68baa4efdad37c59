"""Law 2: the loss curve and every metric are the same for every number of ranks."""

from typing import Any

import pytest
from ranks import run_ranks
from small import VECTORS, first_batches, small_config

import shoal.training.evaluation.evaluator
from shoal.distributed.world import World
from shoal.embedding.service import LocalRows
from shoal.runs.build import build
from shoal.training.steps import keep_hardest, seed_step

STEPS = 70  # a little more than an epoch of pairs
SASREC = {"model": "SASRec", "model__n_layers": 1, "train__batch_size": 13}
BERT4REC = {
    "model": "BERT4Rec",
    "model__n_layers": 1,
    "model__mask_ratio": 0.5,
    # Adam makes steps of rounding where a row's gradient is nearly nothing: see test_strategies
    "train__optimizer__name": "sgd",
    "train__optimizer__lr": 2.0,
}
CURVES: dict[str, dict[str, Any]] = {
    "BPR adam": {"model": "BPR", "train__optimizer__lr": 0.01},
    "BPR adagrad, popular negatives": {
        "model": "BPR",
        "train__optimizer__name": "adagrad",
        "train__optimizer__lr": 0.05,
        "train__negatives__distribution": "popularity",
        "train__negatives__num": 2,
    },
    "BPR sgd, dynamic negatives, clipped": {
        "model": "BPR",
        "train__optimizer__name": "sgd",
        "train__optimizer__lr": 5.0,
        "train__negatives__dynamic": True,
        "train__negatives__candidates": 4,
        "train__clip_grad_norm": 0.05,
    },
    "NeuMF": {"model": "NeuMF", "train__optimizer__lr": 0.01},
    "LightGCN, pairs by user": {
        "model": "LightGCN",
        "train__optimizer__lr": 0.01,
        "train__positives": "by_user",
        "rows__init": {"kind": "normal", "scale": 0.1},
    },
    "SASRec": SASREC,
    "SASRec BPR": {**SASREC, "model__loss_type": "BPR", "train__negatives": {"num": 1}},
    "BPR vectors": {"model": "BPR", "train__optimizer__lr": 0.01, **VECTORS},
    "SASRec vectors": {**SASREC, **VECTORS},
    "BERT4Rec": BERT4REC,
    "BERT4Rec tied": {**BERT4REC, "model__tied": True},
    "BERT4Rec sampled": {
        **BERT4REC,
        "model__loss_type": "sampled",
        "train__negatives": {"num": 20, "distribution": "popularity"},
    },
}
RANKED = [
    *("Recall", "MRR", "NDCG", "Hit", "MAP", "Precision", "GAUC"),
    *("ItemCoverage", "AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"),
]
VALUED = ["AUC", "LogLoss", "MAE", "RMSE"]
MODES: dict[str, dict[str, Any]] = {
    "full": {"eval__mode": "full", "eval__metrics": RANKED},
    "uni": {"eval__mode": "uni20", "eval__metrics": RANKED + VALUED},
    "pop": {"eval__mode": "pop20", "eval__metrics": RANKED + VALUED},
    "labeled": {
        "eval__mode": "labeled",
        "eval__metrics": RANKED + VALUED,
        "data__threshold": {"rating": 3.0},
        "data__split__by": "ratio",  # leave-one-out leaves a user one row, which has no AUC
    },
}
BATCH_SIZES = (1, 100, 4096)


def curve(world: World, name: str) -> list[float]:
    """Losses of the first steps."""
    values = {"train__batch_size": 61, **CURVES[name]}
    config = small_config(values.pop("model"), **values)
    parts = build(config, world)
    parts.model.train()
    losses: list[float] = []
    for step, batch in enumerate(first_batches(parts.reader, world, STEPS)):
        batch = keep_hardest(parts.model, batch, config)
        seed_step(config.run.seed, step, world.rank, world.device)
        losses.append(float(parts.strategy.train_step(batch)))
    return losses


def metrics(world: World, mode: str, model: str) -> dict[str, dict[str, float]]:
    """Every metric of a model that knows something, so that hits are neither 0 nor 1."""
    config = small_config(model, eval__topk=[5, 10], **MODES[mode])
    parts = build(config, world)
    if parts.model.trainable:
        parts.model.train()
        for batch in parts.reader.batches(0):  # the same whole batches on every rank
            output = parts.model(batch)
            (output.loss / output.count).backward()
            rows = parts.strategy.rows
            rows.apply(LocalRows.collect(rows).rows, 0.05)  # type: ignore[arg-type]
            if parts.strategy.dense_optimizer is not None:
                parts.strategy.dense_optimizer.step(0.05)
    values = {}
    for size in BATCH_SIZES:
        parts.evaluator.section = parts.config.eval.model_copy(update={"batch_size": size})
        values[f"{model} {mode} {size}"] = parts.evaluator.evaluate(parts.model, "test")
    return values


def everything(world: World) -> dict[str, Any]:
    """All curves and all metrics in one go: starting processes is what costs."""
    shoal.training.evaluation.evaluator.TILE_USERS = (
        16  # 131 users then make 9 tiles, which 2, 3 and 4 do not divide
    )
    return {
        "curves": {name: curve(world, name) for name in CURVES},
        "metrics": {
            name: values
            for model in ("BPR", "Pop", "SASRec")
            for mode in MODES
            for name, values in metrics(world, mode, model).items()
        },
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return everything(World())


@pytest.fixture(
    scope="module", params=[3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(everything, request.param, tmp_path_factory.mktemp("ranks") / "out")


@pytest.mark.parametrize("name", CURVES)
def test_loss_curve_equals_single(name: str, alone: dict, together: list) -> None:
    for rank in together:
        assert rank["curves"][name] == pytest.approx(alone["curves"][name], rel=1e-5)


@pytest.mark.parametrize("name", CURVES)
def test_loss_goes_down(name: str, alone: dict) -> None:
    losses = alone["curves"][name]
    assert sum(losses[-10:]) < 0.99 * sum(losses[:10])


def test_metrics_equal_single(alone: dict, together: list) -> None:
    for rank in together:
        assert rank["metrics"].keys() == alone["metrics"].keys()
        for name, values in alone["metrics"].items():
            assert rank["metrics"][name] == pytest.approx(values, rel=0, abs=1e-8), name


@pytest.mark.parametrize("model", ["BPR", "Pop", "SASRec"])
@pytest.mark.parametrize("mode", MODES)
def test_metrics_do_not_depend_on_the_batch_size(mode: str, model: str, alone: dict) -> None:
    first = alone["metrics"][f"{model} {mode} {BATCH_SIZES[0]}"]
    assert len(first) == 11 * 2 + 1 + (0 if mode == "full" else 4)
    for size in BATCH_SIZES[1:]:
        assert alone["metrics"][f"{model} {mode} {size}"] == pytest.approx(first, rel=0, abs=1e-8)
