"""Sweep: models × data × seeds, each an ordinary run; means, intervals and paired tests.

runs/MODEL-DATA-SEED/   the runs
sweep.json              what came of them: means, intervals, p-values

Seeds vary training alone: all runs of a data set have the same split, so that they are compared
user by user where a run keeps values of users, and seed by seed otherwise.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import config as config_room
from shoal.config import ConfigError, Resolved
from shoal.config.keys import KEYS, value_of
from shoal.config.yaml_io import SUFFIXES, inline, read_file
from shoal.models.own import check_launchable
from shoal.runs.given import with_data
from shoal.runs.listing import read_json
from shoal.runs.report.statistics import holm, mean_interval, paired
from shoal.runs.run import resolve
from shoal.runs.tuning.crew import Crew
from shoal.runs.tuning.files import in_folder, locked, why_failed
from shoal.training.metrics import higher_is_better
from shoal.training.run_folder import RunFolder
from shoal.world.durable import replace_durably

USERS = "evaluation/users.parquet"
NAMING = ("data.name", "data.path", "data.files", "data.format", "data.clicks.train")


@dataclass(frozen=True)
class Grid:
    """What is compared. A model is a name or a config file, data a name or a path."""

    models: list[str]
    data: list[str]
    seeds: list[int]


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    model: str  # as it is shown
    data: str
    seed: int
    resolved: Resolved


def read_grid(file: str | Path) -> dict[str, Any]:
    """The lists of a file: models, data, seeds."""
    values = read_file(file)[0]
    for key in values:
        if key not in ("models", "data", "seeds"):
            raise ConfigError(f"{file}: unknown key {key}; allowed: models, data, seeds")
    return values


def make_grid(models: Any = None, data: Any = None, seeds: Any = None, first: int = 2020) -> Grid:
    """A grid of lists, or of texts with commas; seeds: a list, or how many from `first` on."""
    words = [[one] if isinstance(one, str) else list(one or []) for one in (models, data)]
    names = [[part.strip() for word in one for part in str(word).split(",")] for one in words]
    chosen = _seeds([first] if seeds is None else seeds, first)
    for name, values in (("models", names[0]), ("data", names[1]), ("seeds", chosen)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} names one of {', '.join(map(str, values))} twice")
    return Grid(names[0], names[1], chosen)


def _seeds(given: Any, first: int) -> list[int]:
    try:
        if isinstance(given, str):
            given = [int(part) for part in given.split(",")] if "," in given else int(given)
        found = list(range(first, first + given)) if isinstance(given, int) else list(given)
        if not found or any(type(one) is not int for one in found):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"seeds: given {inline(given)}; write how many (3), or which (1,2,3)"
        ) from None
    return found


def cells(grid: Grid, files: Sequence[str | Path], overrides: Sequence[str]) -> list[Cell]:
    """Every run of a grid, its config resolved; without models or data: those of the config.

    A model that is only named, where nothing names its data, has those of the config files.
    """
    found = []
    titles = _titles([one for one in grid.models if _is_file(one)])
    given = {} if grid.data else {one: resolve([*files, one], overrides) for one in titles}
    for model in grid.models or [""]:
        is_file = model in titles
        named = [f"--model.name={model}"] if model and not is_file else []
        for data in grid.data or [""]:
            is_path = bool(data) and Path(data).exists()
            words = [*overrides, *named, *([f"--data.name={data}"] if data and not is_path else [])]
            resolved = resolve([*files, *([model] if is_file else [])], words)
            if is_path:
                resolved = with_data(resolved, data)
            elif given and not is_file and not _names_data(resolved):
                origin = "what the config files of the models agree on"
                resolved = resolved.with_values(_agreed(model, given), origin)
            config = resolved.config
            check_launchable(config.model.name)
            shown = titles.get(model, config.model.title)
            fixed = {"data.split.seed": _split_seed(resolved)}
            for seed in grid.seeds:
                one = resolved.with_values({**fixed, "run.seed": seed}, "shoal sweep")
                found.append(Cell(shown, config.data.title, seed, one))
    return found


def _is_file(model: str) -> bool:
    return Path(model).suffix in SUFFIXES


def _titles(files: Sequence[str]) -> dict[str, str]:
    """Config file -> what it is called: its name, with as many folders as tell it from others.

    studies/bpr/best.yaml, studies/gcn/best.yaml -> bpr/best, gcn/best
    """
    parts = {file: Path(file).with_suffix("").parts for file in files}
    found = {}
    for file, own in parts.items():
        others = [one for other, one in parts.items() if other != file]
        lengths = range(1, len(own) + 1)
        alone = (n for n in lengths if all(one[-n:] != own[-n:] for one in others))
        found[file] = "/".join(own[-next(alone, len(own)) :])
    return found


def _names_data(resolved: Resolved) -> bool:
    return any(not resolved.origins[key].startswith("default") for key in NAMING)


def _split_seed(resolved: Resolved) -> int:
    """Seeds of runs vary training alone: what the split of all of them is drawn with."""
    split = resolved.config.data.split.seed
    return resolved.config.run.seed if split is None else split


def _agreed(model: str, given: dict[str, Resolved]) -> dict[str, Any]:
    """The data of config files and how they are evaluated, for a model that names no data."""
    first = next(iter(given.values())).config
    same_eval = all(one.config.eval == first.eval for one in given.values())  # keys fit together
    wanted = [key for key in KEYS if key.startswith(("data.", "eval.") if same_eval else "data.")]
    values = [
        {key: value_of(one.config, key) for key in wanted} | {"data.split.seed": _split_seed(one)}
        for one in given.values()
    ]
    if any(one[key] != values[0][key] for one in values for key in NAMING):
        each = ", ".join(f"{file}: {one.config.data.title}" for file, one in given.items())
        raise ValueError(
            f"{model} names no data, and the config files name different ones ({each}); "
            "add --data NAME, or a path"
        )
    return {
        key: value
        for key, value in values[0].items()
        if value != KEYS[key].default and all(one[key] == value for one in values)
    }


class Sweep:
    """The runs of a grid in a folder, and their comparison."""

    def __init__(self, folder: Path, cells: list[Cell], report: Callable[[str], None]):
        self.folder, self.cells, self.report = folder, cells, report
        self._paths = {self.path(one): one for one in cells}
        if len(self._paths) < len(cells):
            raise ValueError("two models or data sets have the same name; rename one of the files")

    def path(self, cell: Cell) -> Path:
        """The folder of a run."""
        name = "-".join(re.sub(r"[^\w.]+", "_", str(part)) for part in (cell.model, cell.data))
        return self.folder / "runs" / f"{name}-{cell.seed}"

    def run(self, jobs: int, minutes: float | None, launch: str | None) -> dict[str, Any]:
        """Train what is not trained yet; what sweep.json holds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder), Crew(jobs, launch, minutes) as crew:
            is_done = crew.train(self._folders(), self._ended)
            found = {"finished": is_done, "data": compare(self._results())}
            text = json.dumps(found, indent=2) + "\n"
            replace_durably(self.folder / "sweep.json", text.encode())
        return {**found, "folder": str(self.folder)}

    def _folders(self) -> Iterator[Path]:
        for folder, cell in self._paths.items():
            text = config_room.dump(in_folder(cell.resolved, folder, True).config)
            run = RunFolder(folder)
            if run.is_run and (folder / "config.yaml").read_text() != text:
                raise ValueError(
                    f"{folder} was trained with another config; name another folder with --output"
                )
            if not run.is_finished:
                folder.mkdir(parents=True, exist_ok=True)
                run.write_config(text)
                yield folder

    def _ended(self, folder: Path, status: int) -> None:
        cell, result = self._paths[folder], read_json(folder / "result.json", {})
        metric = cell.resolved.config.eval.valid_metric.lower()
        score = result.get("best_valid", {}).get(metric)
        what = why_failed(folder, status) if score is None else f"valid {metric} {score:.4f}"
        self.report(f"{cell.model} on {cell.data}, seed {cell.seed}: {what}")

    def _results(self) -> dict[str, list[dict[str, Any]]]:
        """Data set -> one entry per run that has ended well."""
        found: dict[str, list[dict[str, Any]]] = {}
        for folder, cell in self._paths.items():
            rows = found.setdefault(cell.data, [])
            if result := read_json(folder / "result.json", {}):
                metric = cell.resolved.config.eval.valid_metric.lower()
                more = {"model": cell.model, "seed": cell.seed, "metric": metric}
                rows.append({**more, "folder": folder, "result": result})
        return found


def compare(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For every data set and metric: mean and interval of each model, and p against the best.

    The best is chosen by the validation metric; p-values of one metric are corrected by Holm.
    """
    found: list[dict[str, Any]] = []
    for data, runs in results.items():
        names = list(dict.fromkeys(one["model"] for one in runs))
        by_model = {name: [one for one in runs if one["model"] == name] for name in names}
        if not names:
            found.append({"data": data, "best": None, "metrics": {}})
            continue
        metric = runs[0]["metric"]
        sign = 1.0 if higher_is_better(metric) else -1.0
        best = max(names, key=lambda name: sign * _mean(by_model[name], "best_valid", metric))
        tests = [set(one["result"]["test"]) for one in runs]
        shared = [name for name in runs[0]["result"]["test"] if all(name in t for t in tests)]
        compared = {name: _compared(by_model, name, best) for name in shared}
        found.append({"data": data, "decided_by": metric, "best": best, "metrics": compared})
    return found


def _compared(by_model: dict[str, list[Any]], metric: str, best: str) -> dict[str, dict[str, Any]]:
    """Model -> mean over seeds, interval, difference from the best one, p."""
    values, unit = _values(by_model, metric)
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in by_model.items():
        _, low, high = mean_interval(values[name])
        row: dict[str, Any] = {"mean": _mean(runs, "test", metric), "seeds": len(runs)}
        rows[name] = {**row, "low": _number(low), "high": _number(high), "over": unit}
    others = [name for name in by_model if name != best]
    found = [
        paired(values[best], values[name])
        if len(values[best]) == len(values[name])
        else None  # a run failed, and users or seeds cannot be paired
        for name in others
    ]
    ps = holm([float("nan") if one is None else float(one.p) for one in found])
    for name, one, p in zip(others, found, ps):
        if one is not None:
            rows[name] |= {"difference": _number(one.difference), "p": _number(p)}
    return rows


def _values(by_model: dict[str, list[Any]], metric: str) -> tuple[dict[str, np.ndarray], str]:
    """What is resampled: each user's mean over seeds where all runs keep them, else the seeds."""
    users = {name: [_of_users(one["folder"], metric) for one in runs] for name, runs in
             by_model.items()}  # fmt: skip
    known = [one for runs in users.values() for one in runs]
    if all(one is not None for one in known) and len({tuple(one) for one in known if one}) == 1:
        means = {
            name: np.mean([list(one.values()) for one in runs if one], axis=0)
            for name, runs in users.items()
        }
        return means, "users"
    seeds = {
        name: np.array([one["result"]["test"][metric] for one in runs])
        for name, runs in by_model.items()
    }
    return seeds, "seeds"


def _of_users(folder: Path, metric: str) -> dict[str, float] | None:
    """User -> value of a metric, of a run that keeps them."""
    if not (folder / USERS).is_file():
        return None
    import polars as pl

    table = pl.read_parquet(folder / USERS)
    if metric not in table.columns:
        return None
    return dict(sorted(zip(table["user"].to_list(), table[metric].to_list())))


def _mean(runs: list[Any], part: str, metric: str) -> float:
    return float(np.mean([one["result"][part][metric] for one in runs]))


def _number(value: Any) -> float | None:
    """As JSON has it: NaN, of a single seed, is null."""
    return float(value) if np.isfinite(value) else None
