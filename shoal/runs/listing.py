"""Listing: the runs of a folder, read off what each left behind. No registry is kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.config.schema import DataSection, EvalSection
from shoal.config.yaml_io import read
from shoal.data.protocol import protocol_of
from shoal.runs.run_files import mapping, number, read_list, read_object, text_of, whole
from shoal.training.run_folder import RunFolder

MOST_CHARACTERS = 4096  # of a text that a table shows


def list_runs(root: str | Path) -> list[dict[str, Any]]:
    """The runs below a folder, the last one last: what `shoal runs --json` prints."""
    base = Path(root)
    if not base.is_dir():
        raise ValueError(f"there is no folder {base}; name the one that holds runs (run.root)")
    files = [base / "config.yaml"] if RunFolder(base).is_run else base.glob("*/config.yaml")
    runs = [(file.stat().st_mtime, read_run(file.parent)) for file in files]
    return [run for _, run in sorted(runs, key=lambda entry: (entry[0], entry[1]["folder"]))]


def read_run(folder: Path) -> dict[str, Any]:
    """The figures of one run; those of a missing or damaged file are left out."""
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # a damaged one must not hide the others
        config = read_config(folder)
    result = read_object(folder / "result.json")
    metric = _text(mapping(config, "eval").get("valid_metric", "MRR@10")).lower()
    exports = read_list(folder / "exports.json")
    failure = read_object(folder / "failure.json")
    title, state, protocol = "?", "finished" if result else "not finished", None
    with suppress(LookupError, TypeError, ValueError):
        data = DataSection.model_validate(config["data"])
        title = data.title
        protocol = protocol_of(data, EvalSection.model_validate(config["eval"]))
    if RunFolder(folder).is_in_use:
        state, failure = "running", {}
    start = mapping(config, "start").get("run")
    return {
        "folder": str(folder),
        "model": _text(mapping(config, "model").get("name", "?")),
        "data": _text(result.get("dataset") or title),
        "protocol": None if protocol is None else protocol.title,  # None: not decided yet
        "metric": metric,  # the one that decides
        "best_valid": number(mapping(result, "best_valid").get(metric)),
        "test": number(mapping(result, "test").get(metric)),
        "epochs": whole(result.get("epochs")),  # None: not finished
        # finished, running, failed, stopped, or not finished (it was killed)
        "state": _text(failure.get("state", state)),
        # Of one that failed or was stopped, in a line.
        "reason": None if failure.get("reason") is None else _text(failure["reason"]),
        "exported": [_text(one.get("to")) for one in exports if isinstance(one, dict)],
        "start": start if isinstance(start, str) else None,  # the run that it continued
    }


def read_config(folder: Path) -> dict[str, Any]:
    """The values of a run's config, as written; ValueError where it is none."""
    values = read(text_of(folder / "config.yaml"), "config.yaml")[0]
    return values if isinstance(values, dict) else {}


def _text(value: Any) -> str:
    """Text that does not fill a table."""
    return str(value)[:MOST_CHARACTERS]
