"""An Estimator on one process: modes, hooks, checkpoints, what is refused."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.distributed.world import World


def batches(count: int = 12) -> Iterator[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        ids = torch.randint(0, 40, (16,), generator=generator)
        yield {"item": ids.numpy()}, (ids % 2).float().numpy()


def make(folder: Path, **config: Any) -> Any:
    torch.manual_seed(3)
    strategy = shoal.CollectiveStrategy(world=World())

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> shoal.EstimatorSpec:
        with strategy.embedding_scope():
            items = strategy.module("items", lambda: nn.Embedding(40, 4))
        head = strategy.module("head", lambda: nn.Linear(4, 1))
        scores = torch.sigmoid(head(items(features["item"])).squeeze(1))
        if mode == shoal.ModeKeys.PREDICT:
            return shoal.EstimatorSpec(mode, predictions=scores)
        loss = nn.functional.binary_cross_entropy(scores, labels)
        op = strategy.minimize(loss, functools.partial(torch.optim.Adagrad, lr=0.5))
        return shoal.EstimatorSpec(
            mode, loss, train_op=op, eval_metric_ops={"AUC": (scores, labels)}
        )

    return strategy.estimator(model_fn, folder, {"tensorboard": False, **config})


class Watching(shoal.Hook):
    def __init__(self, last: int = 0) -> None:
        self.calls: list[Any] = []
        self.last = last

    def begin(self) -> None:
        self.calls.append("begin")

    def after_run(self, step: int, loss: float) -> bool:
        self.calls.append(loss)
        return step == self.last

    def end(self) -> None:
        self.calls.append("end")


def test_training_continues_from_a_checkpoint(tmp_path: Path) -> None:
    straight = Watching()
    one = make(tmp_path / "one").train(batches, hooks=[straight])
    assert one.step == 12 and straight.calls[0] == "begin" and straight.calls[-1] == "end"
    first, second = Watching(last=5), Watching()
    make(tmp_path / "two").train(batches, hooks=[first])
    again = make(tmp_path / "two").train(batches, hooks=[second])
    assert again.step == 12
    seen = first.calls[1:-1] + second.calls[1:-1]
    assert seen == pytest.approx(straight.calls[1:-1], rel=1e-6)
    metrics = [one.evaluate(batches), again.evaluate(batches)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)
    assert again.train(batches, steps=3).step == 15  # the input was used up: it begins anew


@pytest.mark.slow  # the writer of curves is slow to import
def test_curves(tmp_path: Path) -> None:
    make(tmp_path, tensorboard=True, save_summary_steps=5).train(batches)
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_run_at_max_steps_is_only_evaluated(tmp_path: Path) -> None:
    specs = shoal.TrainSpec(batches, max_steps=10), shoal.EvalSpec(batches, steps=None)
    found = make(tmp_path).train_and_evaluate(*specs)
    again = make(tmp_path)
    assert again.train_and_evaluate(*specs) == found and again.step == 10
    assert make(tmp_path).train(batches, steps=1).step == 11


def test_a_trained_model_is_opened_for_use(tmp_path: Path) -> None:
    trained, new = make(tmp_path).train(batches), [{"item": range(5)}]
    opened = make(tmp_path)
    assert opened.evaluate(batches) == pytest.approx(trained.evaluate(batches), rel=1e-6)
    said = [
        [float(one["predictions"]) for one in estimator.predict(lambda: new)]
        for estimator in (trained, opened)
    ]
    assert len(said[0]) == 5 and said[0] == pytest.approx(said[1], rel=1e-6)
    with pytest.raises(RuntimeError, match="opened for use alone"):
        opened.train(batches, steps=1)


def test_wrong_calls_are_refused_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        make(tmp_path / "none").evaluate(batches)
    with pytest.raises(ValueError, match="did you mean save_checkpoints_steps"):
        make(tmp_path, save_checkpoint_steps=3)
    with pytest.raises(ValueError, match="input_fn gives no batches"):
        make(tmp_path).train(list)
    with pytest.raises(ValueError, match="not both"):
        make(tmp_path).train(batches, steps=1, max_steps=2)
