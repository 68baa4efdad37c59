"""One list of demands on the export of every model: see tests/zoo_models.py and zoo_clicks.py.

- what an artifact answers is what the model answers, for every model
- and from every strategy: rows that ranks hold together come out as one table
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click_batches import MODELS as FIRST
from exported import CLICKS as PLANTED
from exported import check_here
from feature_data import FEATURES, config, write
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from zoo_clicks import CLICKS, HISTORIES, LABELS
from zoo_models import MODELS, zoo_config

from shoal.config.schema import Config
from shoal.models import MODELS as NAMES
from shoal.runs.artifact.export import CHECK
from shoal.runs.artifact.loaded import Artifact
from shoal.runs.artifact.writer import Writer
from shoal.runs.build import Parts, build
from shoal.runs.run import resolve
from shoal.training.checkpoint import Checkpoints, give
from shoal.training.evaluation import Evaluator
from shoal.world.world import World

QUICK = ["UserKNN", "DIN"]
FITTING = {  # of one width, for models that add or multiply vectors
    name: {key: value for key, value in said.items() if key != "dim"}
    for name, said in FEATURES.items()
}


def each(names: Any) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def trained(config: Config, world: World | None = None, steps: int = 3) -> Parts:
    """A model after a few steps."""
    world = world or World()
    parts = build(config, world)
    if parts.model.trainable:
        batches = parts.reader.batches(0, world.rank, world.size)
        for _, batch in zip(range(steps), batches):
            parts.strategy.train_step(batch)
    parts.model.eval()
    return parts


def export_here(parts: Parts, config: Config, folder: Path) -> Artifact:
    """Export and check, all in this process."""
    folder.mkdir()
    state = {"step": 3, "best_epoch": 0}
    run: Any = SimpleNamespace(
        model=parts.model, config=config, parts=parts, state=state, world=World()
    )
    save_file(Writer(run, folder, "float32", None, True).write(), folder / CHECK)
    found = check_here(folder, "float32", None)
    assert found["largest_difference"] <= found["allowed"]
    return Artifact(folder)


def click_config(name: str, folder: Path) -> Config:
    """Planted clicks; for histories and several labels, interactions with features."""
    options = {f"model.{key}": value for key, value in {**FIRST, **CLICKS}[name].items()}
    model = name.split()[0]
    if name not in HISTORIES and name not in LABELS:
        return resolve(values={"model": model, **PLANTED, **options}).config
    more: dict[str, Any] = {"data__features": FITTING}
    if name in LABELS:
        more["data__labels"] = {"click": {}, "both": {"column": "click", "weight": 0.5}}
    return config(
        write(folder), model, **more, **{k.replace(".", "__"): v for k, v in options.items()}
    )


def test_every_model_is_here() -> None:
    known = {name.split()[0] for name in [*MODELS, *CLICKS, *FIRST]}
    assert known == set(NAMES)


@pytest.mark.parametrize("name", each(MODELS))
def test_what_ranks_items(name: str, tmp_path: Path) -> None:
    config = zoo_config(name)
    export_here(trained(config), config, tmp_path / "artifact")


@pytest.mark.parametrize("name", each([*FIRST, *CLICKS]))
def test_what_predicts_clicks(name: str, tmp_path: Path) -> None:
    config = click_config(name, tmp_path / "data")
    artifact = export_here(trained(config), config, tmp_path / "artifact")
    assert len(artifact.labels) == (2 if name in LABELS else 1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DNN", "DeepFM", "LightFM"])
def test_features_of_every_kind(model: str, tmp_path: Path) -> None:
    features = FEATURES if model == "DNN" else FITTING
    own = config(write(tmp_path / "data"), model, data__features=features)
    export_here(trained(own), own, tmp_path / "artifact")


def test_a_history_with_times_typed_by_hand(tmp_path: Path) -> None:
    config = zoo_config("HSTU")
    artifact = export_here(trained(config), config, tmp_path / "artifact")
    told = artifact.history_of(7)
    items = artifact.items.all[told.items].tolist()
    assert told.times is not None
    typed = artifact.recommend(history=items, times=told.times[:-1].tolist())
    assert typed == artifact.recommend(artifact.users.all[7])
    with pytest.raises(ValueError, match="give times, in seconds"):
        artifact.recommend(history=items)


# ---- strategies ---------------------------------------------------------------------------------

SPREAD = ["BPR", "NeuMF", "SASRec", "MultiVAE", "KGCN", "HSTU"]
USERS, ITEMS = torch.arange(1, 9), torch.arange(1, 40)


def on_ranks(world: World, strategy: str, folder: str) -> list[str]:
    """Train, save, and leave what the spread model answers."""
    for name in SPREAD:
        config = zoo_config(name, strategy__name=strategy, strategy__replicate_below=0.0)
        parts = trained(config, world)
        evaluator = parts.evaluator
        assert isinstance(evaluator, Evaluator)
        with torch.inference_mode():
            query = evaluator.query(USERS.numpy(), evaluator.histories(("train", "valid", "test")))
            scores = parts.model.score(query, ITEMS)
        checkpoints = Checkpoints(Path(folder) / name, world)
        checkpoints.save(parts.strategy, {"step": 3})
        checkpoints.wait()
        if world.is_main:
            asked = {f"ids.{field}": query.tensor(field).clone() for field in query.ids}
            save_file({**asked, "scores": scores.clone()}, Path(folder) / f"{name}.safetensors")
        world.barrier()
        parts.strategy.close()
    return SPREAD


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "size"), [("ddp", 2), ("sharded", 2), ("sharded", 3)])
def test_from_ranks(strategy: str, size: int, tmp_path: Path) -> None:
    run_ranks(on_ranks, size, tmp_path / "ranks", strategy, str(tmp_path))
    for name in SPREAD:
        config = zoo_config(name)
        parts = build(config, World())
        give(parts.strategy, Checkpoints(tmp_path / name, World()).load_step(3))
        artifact = export_here(parts, config, tmp_path / f"{name}-artifact")
        asked = load_file(tmp_path / f"{name}.safetensors")
        query = {key[4:]: one for key, one in asked.items() if key.startswith("ids.")}
        found = artifact._scores(query, ITEMS.numpy())
        torch.testing.assert_close(found, asked["scores"], rtol=1e-5, atol=1e-6)
