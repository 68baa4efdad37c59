"""A model of one's own is exported, and its artifact answers as it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import check_here
from ranks import run_ranks
from test_estimator import batches, make
from torch import Tensor, nn

import shoal
from shoal.distributed.world import World
from shoal.serving.artifact import export as artifacts
from shoal.serving.service.service import Service


class Rated(nn.Module):
    """Rows that grow, a taken-over embedding, numbers beside ids."""

    def __init__(self) -> None:
        super().__init__()
        self.items = shoal.Embedding("item", dim=4)
        self.users = nn.Embedding(9, 3, padding_idx=0)
        self.head = nn.Linear(9, 1)

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        parts = [self.items(given["item"]), self.users(given["user"]), given["age"]]
        return torch.sigmoid(self.head(torch.cat(parts, 1)).squeeze(1))


def inputs(size: int = 12) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        "item": torch.randint(0, 10**12, (size,), generator=generator),
        "user": torch.randint(0, 9, (size,), generator=generator),
        "age": torch.rand(size, 2, generator=generator),
    }


def exported(world: World, folder: str, check_too: bool = False) -> tuple[str, list[float]]:
    """Train, export: where to, and what the trained model answers."""
    with pytest.MonkeyPatch.context() as patch:
        if not check_too:  # in this process: to start another takes seconds
            patch.setattr(artifacts, "check_apart", check_here)
        torch.manual_seed(5)
        strategy = shoal.CollectiveStrategy(world=world)
        with strategy.scope(), strategy.embedding_scope():
            model = Rated()
        optimizer = strategy.optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        for given in strategy.split([inputs()] * 3):
            optimizer.zero_grad()
            (model(given) - (given["user"] % 2)).square().mean().backward()
            optimizer.step()
        path = strategy.export_saved_model(folder, model, inputs(5))
        assert path.parent == Path(folder) and path.name.isdigit()
        assert "| samples | 5 |" in (path / "README.md").read_text()  # what its check found
        with torch.no_grad():
            return str(path), model.eval()(inputs()).tolist()


def answers(folder: str | Path) -> list[float]:
    given = {name: one.numpy() for name, one in inputs().items()}
    return shoal.load(folder).answer(given).tolist()


@pytest.mark.slow
def test_exporting_a_model_of_a_loop(tmp_path: Path) -> None:
    path, expected = exported(World(), str(tmp_path / "model"))
    assert answers(path) == pytest.approx(expected, abs=1e-6)
    loaded = shoal.load(path)
    unknown = {"item": [77], "user": [3], "age": np.zeros((1, 2), np.float32)}
    assert loaded.answer(unknown).shape == (1,)  # an id that was never trained begins as it would
    with pytest.raises(ValueError, match="have no 'age'"):
        loaded.answer({"item": [1], "user": [1]})
    with pytest.raises(ValueError, match="use answer"):
        loaded.recommend("1")


@pytest.mark.slow
def test_exporting_from_two_processes_equals_a_fresh_process(tmp_path: Path) -> None:
    _, alone = exported(World(), str(tmp_path / "alone"))
    ranks = run_ranks(exported, 2, tmp_path / "ranks", str(tmp_path / "two"), True)
    for path, found in ranks:
        assert path == ranks[0][0] and found == pytest.approx(alone, abs=1e-6)
    assert answers(path) == pytest.approx(alone, abs=1e-6)


def test_exporting_an_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "check_apart", check_here)
    make(tmp_path / "run").train(batches)
    opened, new = make(tmp_path / "run"), {"item": np.arange(7)}
    expected = [float(one["predictions"]) for one in opened.predict(lambda: [new])]
    # As TensorFlow's pages have it: into the folder of the run, which is there, and once more,
    # when the clock was set back.
    paths, now = [], time.time
    for back in (0, 3600):
        monkeypatch.setattr(time, "time", lambda back=back: now() - back)
        paths.append(opened.export_saved_model(tmp_path / "run", lambda: new))
    assert paths[0].parent == tmp_path / "run" and int(paths[0].name) < int(paths[1].name)
    for path in (*paths, Service(tmp_path / "run").model.folder):
        assert shoal.load(path).answer(new).tolist() == pytest.approx(expected, abs=1e-6)


def test_models_that_cannot_be_exported_are_refused(tmp_path: Path) -> None:
    strategy = shoal.CollectiveStrategy(world=World())
    with strategy.scope(), strategy.embedding_scope():
        model: Any = nn.Sequential(nn.EmbeddingBag(9, 3, mode="max"))
    with pytest.raises(RuntimeError, match=r"come after strategy\.optimizer"):
        strategy.export_saved_model(tmp_path / "m", model, torch.ones(2, 3, dtype=torch.int64))
    strategy.optimizer(rows="sgd", lr=0.1)
    with pytest.raises(ValueError, match=r"torch\.export cannot take Sequential"):
        strategy.export_saved_model(tmp_path / "m", model, torch.ones(2, 3, dtype=torch.int64))
    assert not list((tmp_path / "m").iterdir())  # nothing half done is left
