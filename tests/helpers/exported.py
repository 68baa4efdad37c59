"""Small trained runs and their artifacts, made once for all tests of a process."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from small import DATA, NO_DROPOUT

import shoal
from shoal.runs.artifact import check, export, files
from shoal.runs.artifact.loaded import Artifact

CLICKS = {
    "data.name": "planted",
    "data.clicks.planted.samples": 3000,
    "data.clicks.planted.slots": 5,
    "data.clicks.planted.ids_per_slot": 40,
    "train.batch_size": 100,
    "train.optimizer.lr": 0.01,
    "run.progress": False,
    "run.tensorboard": False,
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


@cache
def exported() -> dict[str, Path]:
    """Model -> its artifact; beside it MODEL-run is the run."""
    root = Path(tempfile.mkdtemp(prefix="shoal-exported-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        for model in ("BPR", "SASRec", "DNN"):
            shoal.export(train(model, root / f"{model}-run"), root / model)
    return {model: root / model for model in ("BPR", "SASRec", "DNN")}


def rewrite(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of an artifact as its author may: with checksums that are right."""
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))
    files.write_manifest(folder)
