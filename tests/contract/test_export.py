"""One list of demands on the export of every model: see tests/zoo_models.py and zoo_clicks.py.

- what an artifact answers is what the model answers, for every model
- and from every strategy: rows that ranks hold together come out as one table
"""

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click_batches import MODELS as FIRST
from exported import CLICKS as SYNTHETIC
from exported import export_here, trained
from feature_data import FEATURES, config, write
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from zoo_clicks import CLICKS, HISTORIES, LABELS, TREES
from zoo_models import MODELS, zoo_config

from shoal.config.schema import Config
from shoal.distributed.world import World
from shoal.models import MODELS as NAMES
from shoal.models import find
from shoal.ps.server.server import Server
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.runs.run import resolve
from shoal.serving.artifact import check
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.writer import fields_of
from shoal.training.checkpoint.writing import Checkpoints, restore_into
from shoal.training.evaluation import Evaluator

QUICK = ["UserKNN", "DIN"]
FITTING = {  # of one width, for models that add or multiply vectors
    name: {key: value for key, value in said.items() if key != "dim"}
    for name, said in FEATURES.items()
}


def each(names: Any) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interactions with features."""
    return write(tmp_path_factory.mktemp("features"))


def click_config(name: str, data: Path, **values: Any) -> Config:
    """Synthetic clicks; for histories and several labels, interactions with features."""
    options = {f"model.{key}": value for key, value in {**FIRST, **CLICKS}[name].items()}
    model = name.split()[0]
    if name not in HISTORIES and name not in LABELS:
        given = {key.replace("__", "."): value for key, value in values.items()}
        return resolve(values={"model": model, **SYNTHETIC, **options, **given}).config
    more: dict[str, Any] = {"data__features": FITTING, **values}
    if name in LABELS:
        more["data__labels"] = {"click": {}, "both": {"column": "click", "weight": 0.5}}
    return config(data, model, **more, **{k.replace(".", "__"): v for k, v in options.items()})


def test_every_model_is_here() -> None:
    known = {name.split()[0] for name in [*MODELS, *CLICKS, *FIRST, *TREES]}
    assert known == set(NAMES)


@pytest.mark.parametrize("name", each(MODELS))
def test_ranking_models_answer_the_same_exported(name: str, tmp_path: Path) -> None:
    config = zoo_config(name)
    export_here(trained(config), tmp_path / "artifact")


@pytest.mark.parametrize("name", each([*FIRST, *CLICKS]))
def test_click_models_answer_the_same_exported(name: str, shop: Path, tmp_path: Path) -> None:
    config = click_config(name, shop)
    artifact = export_here(trained(config), tmp_path / "artifact")
    assert len(artifact.labels) == (2 if name in LABELS else 1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DNN", "DeepFM", "LightFM"])
def test_features_of_every_kind(model: str, shop: Path, tmp_path: Path) -> None:
    features = FEATURES if model == "DNN" else FITTING
    own = config(shop, model, data__features=features)
    export_here(trained(own), tmp_path / "artifact")


@pytest.mark.slow
def test_a_history_with_times_typed_by_hand(tmp_path: Path) -> None:
    config = zoo_config("HSTU")
    artifact = export_here(trained(config), tmp_path / "artifact")
    told = artifact.history_of(7)
    items = artifact.items.words[told.items].tolist()
    assert told.times is not None
    typed = artifact.recommend(history=items, times=told.times[:-1].tolist())
    assert typed == artifact.recommend(artifact.users.words[7])
    with pytest.raises(ValueError, match="give times, in seconds"):
        artifact.recommend(history=items)


# ---- strategies: one start of processes runs every model ----------------------------------------

WAYS = {"ddp, 2 processes": 2, "sharded, 3 processes": 3, "ps, 2 workers": 2}
TRAINED = [name for name in MODELS if find(name.split()[0]).trainable]
SPREAD = [*TRAINED, *FIRST, *CLICKS]
USERS, ITEMS = torch.arange(1, 9), torch.arange(1, 40)


def spread_config(name: str, data: Path, **values: Any) -> Config:
    return zoo_config(name, **values) if name in TRAINED else click_config(name, data, **values)


def on_ranks(world: World, way: str, folder: str, data: str, addresses: dict[str, str]) -> None:
    """Train and save every model, and leave what it answers while it is spread."""
    for name in SPREAD:
        values: dict[str, Any] = {"strategy__name": way.split(",")[0]}
        if name in addresses:
            values["strategy__ps__addresses"] = [addresses[name]]
        elif way.startswith("sharded"):
            values |= {"strategy__place": "row", "strategy__replicate_below": 0}
        parts = trained(spread_config(name, Path(data), **values), world)
        answers = answers_of(parts)
        checkpoints = Checkpoints(Path(folder) / name, world, rows_apart=parts.strategy.saves_rows)
        checkpoints.save(parts.strategy, {"step": 3})
        checkpoints.wait()
        if world.is_main:
            save_file(answers, Path(folder) / f"{name}.safetensors")
        world.barrier()
        parts.strategy.close()


def answers_of(parts: Parts) -> dict[str, torch.Tensor]:
    """What a model is asked, and what it answers: scores of items, or logits of samples."""
    evaluator = parts.evaluator
    with torch.inference_mode():
        if not isinstance(evaluator, Evaluator):
            batch = next(iter(parts.reader.batches(0)))
            asked = fields_of(batch, "0.")
            return asked | {"0.logits": parts.model.logits(batch).clone()}  # type: ignore[operator]
        query = evaluator.query(USERS.numpy(), evaluator.histories(("train", "valid", "test")))
        scores = parts.model.score(query, ITEMS)
    asked = {f"ids.{field}": query.tensor(field).clone() for field in query.ids}
    return asked | {"items": ITEMS, "scores": scores.clone()}


@pytest.fixture(scope="module")
def spread(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A way of training -> the folder with checkpoints and answers of every model."""

    @cache
    def made(way: str) -> Path:
        root: Path = tmp_path_factory.mktemp("spread")
        addresses = {}
        for name in SPREAD if way.startswith("ps") else ():
            server = Server(index=0, folder=root / name)
            threading.Thread(target=server.serve, daemon=True).start()
            addresses[name] = server.address
        run_ranks(on_ranks, WAYS[way], root / "ranks", way, str(root), str(shop), addresses)
        return root

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
@pytest.mark.parametrize("way", WAYS)
def test_from_ranks(
    way: str, name: str, spread: Callable[[str], Path], shop: Path, tmp_path: Path
) -> None:
    folder, config = spread(way), spread_config(name, shop)
    parts = build(config, World())
    restore_into(parts.strategy, Checkpoints(folder / name, World()).load_step(3))
    parts.model.eval()
    artifact = export_here(parts, tmp_path / "artifact")
    asked = load_file(folder / f"{name}.safetensors")
    expected, found = told_and_found(artifact, asked)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5 * check._spread(expected))


def told_and_found(
    artifact: Artifact, asked: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the spread model answered, and what the artifact does."""
    if "scores" in asked:
        return asked["scores"], check._scores(artifact, asked)
    return check._clicks(artifact, asked)
