"""Listing: the runs of a folder, read off what each left behind. No registry is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.schema import DataSection
from shoal.config.yaml_io import read_file
from shoal.training.run_folder import RunFolder


@dataclass(frozen=True)
class Found:
    """One run as its folder tells of it."""

    folder: Path
    model: str
    data: str
    metric: str  # the one that decides
    best_valid: float | None
    test: float | None
    epochs: int | None  # None: not finished
    exported: tuple[str, ...]  # where, the last one last
    start: str | None  # the run that it went on from


def list_runs(root: str | Path) -> list[Found]:
    """The runs below a folder, the last one last."""
    base = Path(root)
    if not base.is_dir():
        raise ValueError(f"there is no folder {base}; name the one that holds runs (run.root)")
    files = [base / "config.yaml"] if RunFolder(base).is_run else base.glob("*/config.yaml")
    found = [(file.stat().st_mtime, _read(file.parent)) for file in files]
    return [run for _, run in sorted(found, key=lambda one: (one[0], str(one[1].folder)))]


def _read(folder: Path) -> Found:
    config = _config(folder / "config.yaml")
    result = _json(folder / "result.json", {})
    metric = str(config.get("eval", {}).get("valid_metric", "MRR@10")).lower()
    exports = _json(folder / "exports.json", [])
    return Found(
        folder,
        str(config.get("model", {}).get("name", "?")),
        str(result.get("dataset") or _title(config)),
        metric,
        (result.get("best_valid") or {}).get(metric),
        (result.get("test") or {}).get(metric),
        result.get("epochs"),
        tuple(str(one.get("to")) for one in exports if isinstance(one, dict)),
        config.get("start", {}).get("run"),
    )


def _title(config: dict[str, Any]) -> str:
    """What the data of a run that is not finished is called."""
    try:
        return DataSection.model_validate(config["data"]).title
    except (LookupError, TypeError, ValueError):
        return "?"


def _config(file: Path) -> dict[str, Any]:
    try:
        return read_file(file)[0]
    except (OSError, ValueError):  # a damaged one must not hide the others
        return {}


def _json(file: Path, default: Any) -> Any:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return default
    return found if isinstance(found, type(default)) else default
