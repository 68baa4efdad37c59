"""Custom code of a run, of its model and its metrics: files, and copies that its folder has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.config.sources import from_file
from shoal.models.own import code_of, is_file, is_own
from shoal.training.run_folder import RunFolder


def own_names(model: str, metrics: Sequence[str]) -> list[str]:
    """FILE.py:Class or package.module:Class of the model and the metrics that are custom ones."""
    return list(filter(is_own, (model, *metrics)))


def own_code(model: str, metrics: Sequence[str]) -> dict[str, bytes]:
    """The texts of the files of custom models and metrics, by the files' names."""
    texts: dict[str, bytes] = {}
    for name, text in filter(None, map(code_of, own_names(model, metrics))):
        if texts.setdefault(name, text) != text:
            raise ValueError(f"the model and the metrics come from two files {name}; rename one")
    return texts


def kept_code(config_file: Path) -> dict[str, Any]:
    """The copies of its model's and metrics' files that a run folder keeps, as their names."""
    layer = from_file(config_file)
    values: dict[str, Any] = {}
    named, section = layer.model_name(), layer.values.get("eval")
    if named is not None and isinstance(named[0], str):
        values["model.name"] = _kept(config_file.parent, named[0])
    metrics = section.get("metrics") if isinstance(section, dict) else None
    if isinstance(metrics, list):
        values["eval.metrics"] = [_kept(config_file.parent, str(one)) for one in metrics]
    return {key: value for key, value in values.items() if ":" in str(value)}


def _kept(folder: Path, name: str) -> str:
    """FILE.py:Class with the copy that a run folder has of the file; other names as they are."""
    path, _, title = name.rpartition(":")
    kept = RunFolder(folder).kept_code(Path(path).name) if is_file(name) else None
    return name if kept is None else f"{kept}:{title}"
