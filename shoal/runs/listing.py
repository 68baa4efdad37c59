"""Listing: the runs of a folder, read off what each left behind. No registry is kept."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
    state: str  # finished, running, failed, stopped, or not finished (it was killed)
    reason: str | None  # of one that failed or was stopped, in a line
    exported: tuple[str, ...]  # where, the last one last
    start: str | None  # the run that it went on from

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "folder": str(self.folder)}


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
    metric = str(_in(config, "eval").get("valid_metric", "MRR@10")).lower()
    exports = _json(folder / "exports.json", [])
    failure = _json(folder / "failure.json", {})
    state = "finished" if result else "not finished"
    if RunFolder(folder).is_in_use:
        state, failure = "running", {}
    return Found(
        folder,
        str(_in(config, "model").get("name", "?")),
        str(result.get("dataset") or _title(config)),
        metric,
        _in(result, "best_valid").get(metric),
        _in(result, "test").get(metric),
        result.get("epochs"),
        str(failure.get("state", state)),
        failure.get("reason"),
        tuple(str(one.get("to")) for one in exports if isinstance(one, dict)),
        _in(config, "start").get("run"),
    )


def _in(values: dict[str, Any], key: str) -> dict[str, Any]:
    """A section; one that is none, as files of others may have it, is empty."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


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
    except (OSError, ValueError, RecursionError):
        return default
    return found if isinstance(found, type(default)) else default
