"""What the board shows of a run. Files may be missing, damaged or foreign: what cannot be
read is left out, and of every value the type is checked.
"""

import json
import math
from typing import Any

from shoal.config.output import flat
from shoal.config.schema import DataSection
from shoal.config.yaml_io import read as read_yaml
from shoal.experiments.board.run_index import FoundRun, Root
from shoal.runs.run_files import mapping, number, objects, parse_object, whole
from shoal.training.metrics import higher_is_better
from shoal.training.run_folder import RunFolder

POINTS = 500  # of a curve
LONGEST = 300  # characters of a text


def summary(root: Root, run: FoundRun) -> dict[str, Any]:
    """One line of the table."""
    (config, title), result = _config(root, run), _json(root, run, "result.json")
    failure, lines = _json(root, run, "failure.json"), _lines(root, run)
    metric = _text(mapping(config, "eval").get("valid_metric", "MRR@10")).lower()
    state, reason, progress = "finished" if result else "not finished", "", None
    if RunFolder(root.folder(run)).is_in_use:
        state, progress = "running", _progress(root, run)
    elif failure:
        state, reason = _text(failure.get("state", "failed")), _text(failure.get("reason", ""))
    best = number(mapping(result, "best_valid").get(metric))
    if best is None:
        best = _best(lines, metric)
    epochs = number(mapping(config, "train").get("epochs"))
    return {
        "key": run.key,
        "name": run.name,
        "model": _text(mapping(config, "model").get("name", "?")).rpartition(":")[2],
        "data": _text(result.get("dataset") or title),
        "state": state,
        "reason": reason,
        "metric": metric,
        "best_valid": best,
        "test": number(mapping(result, "test").get(metric)),
        "epoch": max(len(lines), progress["epoch"] if progress else 0),  # done so far
        "epochs": len(lines) if result else epochs,
        "progress": progress,
        "started": root.changed(run, "config.yaml"),
    }


def details(root: Root, run: FoundRun) -> dict[str, Any]:
    """A chosen run: its curves by name as [epoch, value], and its config by dotted key."""
    curves: dict[str, list[list[float]]] = {}
    for line in _lines(root, run):
        epoch = whole(line.get("epoch"))
        named = {"loss": line.get("loss"), **mapping(line, "valid")}
        for name, value in named.items():
            if epoch is not None and (shown := number(value)) is not None:
                curves.setdefault(_text(name), []).append([epoch, shown])
    config = {_text(key): _shown(value) for key, value in flat(_config(root, run)[0]).items()}
    thin = {name: _thinned(points) for name, points in list(curves.items())[:100]}
    return {"key": run.key, "name": run.name, "curves": thin, "config": config}


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """A curve thinned evenly to at most POINTS points; the last one stays."""
    step = math.ceil(len(points) / POINTS)
    return points[::-1][::step][::-1] if step > 1 else points


def _progress(root: Root, run: FoundRun) -> dict[str, Any] | None:
    """Progress of a run; None where it has written none yet."""
    progress = _json(root, run, "progress.json")
    epoch = whole(progress.get("epoch"))
    if epoch is None:
        return None
    numbers = ("time", "epochs", "step", "steps", "samples_per_second")
    return {
        "epoch": epoch,
        "phase": _text(progress.get("phase", "")),
        **{name: number(progress.get(name)) for name in numbers},
        "memory": number(mapping(progress, "memory").get("host")),
        "gpu_memory": number(mapping(progress, "memory").get("gpu")),
        "ranks": _list_processes(progress, "ranks", ("rank", "pid", "seen", "memory"), ("host",)),
        "servers": _list_processes(progress, "servers", ("server", "seen"), ("address",)),
    }


def _list_processes(
    progress: dict[str, Any], name: str, numbers: tuple[str, ...], texts: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The processes of a progress file, each with what is known of it."""
    processes = progress.get(name)
    return [
        {key: number(process.get(key)) for key in numbers}
        | {key: _text(process.get(key)) for key in texts}
        for process in (processes if isinstance(processes, list) else [])[:1000]
        if isinstance(process, dict)
    ]


def _config(root: Root, run: FoundRun) -> tuple[dict[str, Any], str]:
    """The config and the title of its data."""
    return root.read(run, "config.yaml", _parse_config) or ({}, "?")


def _parse_config(data: bytes) -> tuple[dict[str, Any], str]:
    content = read_yaml(data.decode(), "config.yaml")[0]
    config = content if isinstance(content, dict) else {}
    return config, _title(config)


def _json(root: Root, run: FoundRun, name: str) -> dict[str, Any]:
    return root.read(run, name, parse_object) or {}


def _lines(root: Root, run: FoundRun) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a torn or damaged one is passed over."""
    return root.read(run, "metrics.jsonl", _parse_lines) or []


def _parse_lines(data: bytes) -> list[dict[str, Any]]:
    return [line for line in objects(data.decode("utf-8", "replace")) if line]


def _title(config: dict[str, Any]) -> str:
    try:
        return DataSection.model_validate(config["data"]).title
    except (LookupError, TypeError, ValueError):
        return "?"


def _best(lines: list[dict[str, Any]], metric: str) -> float | None:
    """The best value of the epochs so far."""
    values = [number(mapping(line, "valid").get(metric)) for line in lines]
    valid = [value for value in values if value is not None]
    try:
        higher = higher_is_better(metric)
    except (LookupError, ValueError):  # of a class that is not known here
        higher = True
    return (max if higher else min)(valid, default=None)


def _text(value: Any) -> str:
    return str("" if value is None else value)[:LONGEST].encode("utf-8", "replace").decode()


def _shown(value: Any) -> str:
    return _text(value if isinstance(value, str) else json.dumps(value))
