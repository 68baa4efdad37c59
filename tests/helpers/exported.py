"""Small trained runs and their artifacts, made once for all tests of a process."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from small import DATA, NO_DROPOUT

import shoal
from shoal.config.schema import Config
from shoal.distributed.world import World
from shoal.files.durable import sole_holder
from shoal.recommender.catalogue import RunCatalogue
from shoal.recommender.recommender import NO_IDS, Recommender
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.serving.artifact import check, export, files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.writer import Writer
from shoal.training.evaluation import Evaluator
from shoal.training.steps import solve

CLICKS = {
    "data.name": "synthetic",
    "data.clicks.synthetic.samples": 3000,
    "data.clicks.synthetic.slots": 5,
    "data.clicks.synthetic.ids_per_slot": 40,
    "train.batch_size": 100,
    "train.optimizer.lr": 0.01,
    "run.progress": False,
    "run.trackers": [],
}


def train(model: str, folder: Path, **more: Any) -> Path:
    """A short run; keyword a__b stands for the key a.b."""
    values = {"train.epochs": 1, "run.output": str(folder), "run.log_level": "warning"}
    if model in NO_DROPOUT:
        values |= {**DATA, **NO_DROPOUT[model], "train.batch_size": 256}
    else:
        values |= CLICKS
    values |= {key.replace("__", "."): value for key, value in more.items()}
    shoal.run(model=model, config_dict=values)
    return folder


def check_here(hidden: Path, tolerance: float | None) -> dict[str, Any]:
    """The check of an export in this process: to start another takes seconds."""
    files.write_manifest(hidden)
    facts, wrong = check.compare(Artifact(hidden), load_file(hidden / export.CHECK), tolerance)
    if wrong:
        raise ValueError(wrong)
    return facts


MODELS = ("BPR", "SASRec", "DNN")


def exported() -> dict[str, Path]:
    """Model -> its artifact; beside it MODEL-run is the run. Tests copy what they change.

    The processes of a test session share them: the first that asks trains.
    """
    root = Path(os.environ["SHOAL_TEST_SHARED"]) / "exported"
    root.mkdir(exist_ok=True)
    with sole_holder(root / ".lock", wait=True):
        if not (root / MODELS[-1]).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export, "check_apart", check_here)
                for model in MODELS:
                    shoal.export(train(model, root / f"{model}-run"), root / model)
    return {model: root / model for model in MODELS}


def rewrite(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of an artifact as its author may: with checksums that are right."""
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))
    files.write_manifest(folder)


def trained(config: Config, world: World | None = None, steps: int = 3) -> Parts:
    """A model after a few steps."""
    world = world or World()
    parts = build(config, world)
    if parts.model.trainable:
        batches = parts.reader.batches(0, world.rank, world.size)
        for _, batch in zip(range(steps), batches):
            parts.strategy.train_step(batch)
        parts.strategy.synchronize()
    else:
        solve(parts.model, config.run.seed, world.device)
    parts.model.eval()
    return parts


def export_here(parts: Parts, folder: Path) -> Artifact:
    """Export and check, all in this process."""
    folder.mkdir()
    state = {"step": 3, "best_epoch": 0}
    given = {"model": parts.model, "config": parts.config, "parts": parts, "state": state}
    run: Any = SimpleNamespace(**given, world=World(), types=(str, str), earlier=(NO_IDS, NO_IDS))
    if isinstance(parts.evaluator, Evaluator):
        run.recommender = Recommender(RunCatalogue(parts.model, parts.evaluator))
    save_file(Writer(run, folder, "float32", None, True).write(), folder / export.CHECK)
    found = check_here(folder, None)
    assert found["largest_difference"] <= found["allowed"]
    return Artifact(folder)
