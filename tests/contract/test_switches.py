"""Switches that change how a step is computed: parts of a batch, precision, compilation."""

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from small import small_config

from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.training.run_folder import RunFolder
from shoal.training.trainer import Trainer

MODELS: dict[str, dict[str, Any]] = {
    "BPR": {},
    "NeuMF": {},
    "SASRec": {"train__batch_size": 13},
    "BERT4Rec": {"train__batch_size": 31, "train__negatives": None},
}


def losses(world: World, model: str, folder: str, **values: Any) -> list[float]:
    """Losses of the steps of one epoch, as the trainer makes them."""
    given = {"train__batch_size": 211, **MODELS[model], **values}
    config = small_config(model, train__epochs=1, train__eval_every=0, **given)
    parts = build(config, world)
    if world.is_main:
        RunFolder(folder).create(resume=False)
    found: list[float] = []
    trainer = Trainer(
        parts.config,
        parts.strategy,
        parts.reader,
        parts.evaluator,
        RunFolder(folder),
        parts.fingerprint,
        lambda step, loss: found.append(float(loss)),
    )
    trainer.fit(0.0)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_parts_of_a_batch_change_nothing(model: str, tmp_path: Path) -> None:
    whole = losses(World(), model, str(tmp_path / "whole"))
    parts = losses(World(), model, str(tmp_path / "parts"), train__accumulate=3)
    assert len(whole) > 10 and parts == pytest.approx(whole, rel=1e-5)


def on_ranks(world: World, folder: str, strategy: str) -> dict[str, list[float]]:
    name = {"strategy__name": strategy, "train__accumulate": 2}
    return {model: losses(world, model, f"{folder}/{model}", **name) for model in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_parts_on_two_ranks(strategy: str, tmp_path: Path) -> None:
    whole = {model: losses(World(), model, str(tmp_path / f"alone {model}")) for model in MODELS}
    for rank in run_ranks(on_ranks, 2, tmp_path / "ranks", str(tmp_path / strategy), strategy):
        for model in MODELS:
            assert rank[model] == pytest.approx(whole[model], rel=1e-5)


@pytest.mark.parametrize("model", ["NeuMF", "SASRec", "BERT4Rec"])
def test_bfloat16_is_near_and_not_the_same(model: str, tmp_path: Path) -> None:
    whole = losses(World(), model, str(tmp_path / "whole"))
    half = losses(World(), model, str(tmp_path / "half"), train__precision="bfloat16")
    assert half != whole
    assert half == pytest.approx(whole, rel=0.02)


@pytest.mark.slow
def test_compiled_models_learn_the_same(tmp_path: Path) -> None:
    whole = losses(World(), "SASRec", str(tmp_path / "whole"))
    made = losses(World(), "SASRec", str(tmp_path / "made"), train__compile=True)
    assert made == pytest.approx(whole, rel=1e-4)
