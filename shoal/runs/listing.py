"""Listing: the runs of a folder, read off what each left behind. No registry is kept."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.config.schema import DataSection
from shoal.config.yaml_io import read_file
from shoal.training.run_folder import RunFolder
from shoal.world.durable import open_regular


def list_runs(root: str | Path) -> list[dict[str, Any]]:
    """The runs below a folder, the last one last: what `shoal runs --json` prints."""
    base = Path(root)
    if not base.is_dir():
        raise ValueError(f"there is no folder {base}; name the one that holds runs (run.root)")
    files = [base / "config.yaml"] if RunFolder(base).is_run else base.glob("*/config.yaml")
    found = [(file.stat().st_mtime, read_run(file.parent)) for file in files]
    return [run for _, run in sorted(found, key=lambda one: (one[0], one[1]["folder"]))]


def read_run(folder: Path) -> dict[str, Any]:
    """One of them; a file that is missing or damaged leaves its figures out."""
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # a damaged one must not hide the others
        config = read_file(folder / "config.yaml")[0]
    result = read_json(folder / "result.json", {})
    metric = str(_in(config, "eval").get("valid_metric", "MRR@10")).lower()
    exports = read_json(folder / "exports.json", [])
    failure = read_json(folder / "failure.json", {})
    title, state = "?", "finished" if result else "not finished"
    with suppress(LookupError, TypeError, ValueError):
        title = DataSection.model_validate(config["data"]).title
    if RunFolder(folder).is_in_use:
        state, failure = "running", {}
    return {
        "folder": str(folder),
        "model": str(_in(config, "model").get("name", "?")),
        "data": str(result.get("dataset") or title),
        "metric": metric,  # the one that decides
        "best_valid": _in(result, "best_valid").get(metric),
        "test": _in(result, "test").get(metric),
        "epochs": result.get("epochs"),  # None: not finished
        # finished, running, failed, stopped, or not finished (it was killed)
        "state": str(failure.get("state", state)),
        "reason": failure.get("reason"),  # of one that failed or was stopped, in a line
        "exported": [str(one.get("to")) for one in exports if isinstance(one, dict)],
        "start": _in(config, "start").get("run"),  # the run that it continued
    }


def _in(values: dict[str, Any], key: str) -> dict[str, Any]:
    """A section; one that is none, as files of others may have it, is empty."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def read_json(file: Path, default: Any) -> Any:
    """What a file of JSON holds; the default where it cannot be read, or is of another type."""
    try:
        with open_regular(file) as opened:
            found = json.loads(opened.read())
    except (OSError, ValueError, RecursionError):
        return default
    return found if isinstance(found, type(default)) else default
