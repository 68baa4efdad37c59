"""Sweep: models × data × seeds, each an ordinary run; means, intervals and paired tests.

runs/MODEL-DATA-SEED/   the runs
sweep.json              what came of them: means, intervals, p-values

All runs of a data set have one protocol (split, candidates, what counts as seen): what the config
leaves open is decided once, from the data. Seeds vary training alone. So runs are compared user by
user where they keep values of users, and seed by seed otherwise. Where config files of models name
different protocols, means are shown and nothing is tested.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal import config as config_room
from shoal.config import ConfigError, Resolved
from shoal.config.keys import KEYS, value_of
from shoal.config.trust import own_values
from shoal.config.yaml_io import SUFFIXES, inline, read, read_file
from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.loading.location import named_data
from shoal.data.protocol import DECIDED as PROTOCOL
from shoal.data.protocol import decide, decide_log, values_of
from shoal.data.split import AUTO
from shoal.experiments.report.comparison import protocol_difference
from shoal.experiments.report.statistics import holm, mean_interval, paired
from shoal.experiments.tuning.trial_files import check_begun, in_folder, locked, why_failed
from shoal.experiments.tuning.worker_pool import WorkerPool
from shoal.files.durable import replace_durably
from shoal.files.folders import inner_folder
from shoal.models import find
from shoal.models.own import check_launchable
from shoal.runs.input_data import with_data
from shoal.runs.listing import read_config
from shoal.runs.run import resolve
from shoal.runs.run_files import metrics_of, read_object, same_settings
from shoal.runs.run_record import RunRecord, read_record
from shoal.training.metrics import higher_is_better
from shoal.training.run_folder import RunFolder

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


@dataclass(frozen=True)
class Result:
    """A run that has ended well, with what it left behind."""

    model: str
    seed: int
    metric: str  # the one that decides
    record: RunRecord


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


def _seeds(value: Any, first: int) -> list[int]:
    try:
        if isinstance(value, str):
            value = [int(part) for part in value.split(",")] if "," in value else int(value)
        seeds = list(range(first, first + value)) if isinstance(value, int) else list(value)
        if not seeds or any(type(one) is not int for one in seeds):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"seeds: given {inline(value)}; write how many (3), or which (1,2,3)"
        ) from None
    return seeds


def cells(
    grid: Grid, files: Sequence[str | Path], overrides: Sequence[str], trust: bool = False
) -> list[Cell]:
    """Every run of a grid, its config resolved; without models or data: those of the config.

    A model that is only named, where nothing names its data, has those of the config files.
    """
    runs = []
    titles = _titles([model for model in grid.models if _is_file(model)])
    resolved_by_file: dict[str, Resolved] = {}
    if not grid.data:
        for file in titles:
            resolved_by_file[file] = resolve([*files, file], overrides, trust=trust)
    for model in grid.models or [""]:
        is_file = model in titles
        named = [f"--model.name={model}"] if model and not is_file else []
        for data in grid.data or [""]:
            is_path = bool(data) and Path(data).exists()
            words = [*overrides, *named, *([f"--data.name={data}"] if data and not is_path else [])]
            resolved = resolve([*files, *([model] if is_file else [])], words, trust=trust)
            if is_path:
                resolved = with_data(resolved, data)
            elif resolved_by_file and not is_file and not _names_data(resolved):
                origin = "what the config files of the models agree on"
                resolved = resolved.with_values(_find_shared_data(model, resolved_by_file), origin)
            config = resolved.config
            check_launchable(config.model.name)
            shown = titles.get(model, config.model.title)
            fixed = {"data.split.seed": _split_seed(resolved)}
            for seed in grid.seeds:
                with_seed = resolved.with_values({**fixed, "run.seed": seed}, "shoal sweep")
                runs.append(Cell(shown, config.data.title, seed, with_seed))
    return _leave_disputes_to_data(runs)


def _leave_disputes_to_data(runs: list[Cell]) -> list[Cell]:
    """The cells, where defaults of models or tools that disagree leave the protocol to the data."""
    disputed: dict[tuple[str, str], set[Any]] = {}
    for cell in runs:
        for key in PROTOCOL:
            if cell.resolved.origins[key].startswith("default"):
                values = disputed.setdefault((cell.data, key), set())
                values.add(value_of(cell.resolved.config, key))
    return [replace(cell, resolved=_leave_to_data(cell, disputed)) for cell in runs]


def _leave_to_data(cell: Cell, disputed: dict[tuple[str, str], set[Any]]) -> Resolved:
    keys = [key for key in PROTOCOL if len(disputed.get((cell.data, key), ())) > 1]
    default = [key for key in keys if cell.resolved.origins[key].startswith("default")]
    if not default:
        return cell.resolved
    return cell.resolved.with_values(dict.fromkeys(default, AUTO), "shoal sweep")


def decide_protocol(runs: Sequence[Cell]) -> list[Cell]:
    """The cells with what the data decides in place of `auto`; every data set is read once."""
    datasets: dict[str, Dataset] = {}
    decided = []
    for cell in runs:
        config = cell.resolved.config
        if all(value_of(config, key) != AUTO for key in PROTOCOL):
            decided.append(cell)
            continue
        model = find(config.model.name)
        is_click_model = model.kind == "clicks"
        if named_data(config.data, is_click_model).kind == "clicks":
            chosen = decide_log(config)
        else:
            reads_features = is_click_model or model.reads_features
            data = with_side_files(config.data) if reads_features else config.data
            key = data.model_dump_json()
            if key not in datasets:
                datasets[key] = load_dataset(data, config.run.seed)
            chosen = decide(config, datasets[key])
        resolved = cell.resolved.with_values(values_of(chosen), "the data")
        decided.append(replace(cell, resolved=resolved))
    return decided


def _is_file(model: str) -> bool:
    return Path(model).suffix in SUFFIXES


def _titles(files: Sequence[str]) -> dict[str, str]:
    """Config file -> title: its name, with as many folders as make the title unique.

    studies/bpr/best.yaml, studies/gcn/best.yaml -> bpr/best, gcn/best
    """
    parts = {file: Path(file).with_suffix("").parts for file in files}
    titles = {}
    for file, file_parts in parts.items():
        others = [one for other, one in parts.items() if other != file]
        lengths = range(1, len(file_parts) + 1)
        alone = (n for n in lengths if all(one[-n:] != file_parts[-n:] for one in others))
        titles[file] = "/".join(file_parts[-next(alone, len(file_parts)) :])
    return titles


def _names_data(resolved: Resolved) -> bool:
    return any(not resolved.origins[key].startswith("default") for key in NAMING)


def _split_seed(resolved: Resolved) -> int:
    """The seed of the split, shared by all runs: their own seeds vary training alone."""
    split = resolved.config.data.split.seed
    return resolved.config.run.seed if split is None else split


def _find_shared_data(model: str, resolved_by_file: dict[str, Resolved]) -> dict[str, Any]:
    """The data of config files and how they are evaluated, for a model that names no data."""
    first = next(iter(resolved_by_file.values())).config
    # Keys of `eval` fit together, so they are taken all or not at all.
    same_eval = all(resolved.config.eval == first.eval for resolved in resolved_by_file.values())
    shared_keys = [
        key for key in KEYS if key.startswith(("data.", "eval.") if same_eval else "data.")
    ]
    values = [
        {key: value_of(resolved.config, key) for key in shared_keys}
        | {"data.split.seed": _split_seed(resolved)}
        for resolved in resolved_by_file.values()
    ]
    if any(entry[key] != values[0][key] for entry in values for key in NAMING):
        data_by_file = ", ".join(
            f"{file}: {resolved.config.data.title}" for file, resolved in resolved_by_file.items()
        )
        raise ValueError(
            f"{model} names no data, and the config files name different ones ({data_by_file}); "
            "add --data NAME, or a path"
        )
    return {
        key: value
        for key, value in values[0].items()
        if value != KEYS[key].default and all(entry[key] == value for entry in values)
    }


class Sweep:
    """The runs of a grid in a folder, and their comparison."""

    def __init__(
        self,
        folder: Path,
        cells: list[Cell],
        report: Callable[[str], None],
        trust: bool = False,
    ):
        """trust: run the copies of custom models that runs in the folder keep."""
        self.folder = folder
        self.report = report
        self.trust = trust
        self._paths = {self.path(one): one for one in cells}
        if len(self._paths) < len(cells):
            raise ValueError("two models or data sets have the same name; rename one of the files")

    def path(self, cell: Cell) -> Path:
        """The folder of a run."""
        name = "-".join(re.sub(r"[^\w.]+", "_", str(part)) for part in (cell.model, cell.data))
        return self.folder / "runs" / f"{name}-{cell.seed}"

    def run(self, jobs: int, minutes: float | None, launch: str | None) -> dict[str, Any]:
        """Train what is not trained yet; what sweep.json holds."""
        cells = decide_protocol(list(self._paths.values()))
        self._paths = dict(zip(self._paths, cells))
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder), WorkerPool(jobs, launch, minutes) as pool:
            is_done = pool.train(self._folders(), self._report_end)
            report = {"finished": is_done, "data": compare(self._results())}
            text = json.dumps(report, indent=2) + "\n"
            replace_durably(self.folder / "sweep.json", text.encode())
        return {**report, "folder": str(self.folder)}

    def _folders(self) -> Iterator[Path]:
        for folder, cell in self._paths.items():
            text = config_room.dump(in_folder(cell.resolved, folder, True).config)
            run = RunFolder(folder)
            if run.is_run and not same_settings(read_config(folder), read(text, "")[0]):
                raise ValueError(
                    f"{folder} was trained with another config; name another folder with --output"
                )
            if not run.is_finished:
                inner_folder(self.folder, "runs", folder.name)
                check_begun(folder, own_values(cell.resolved.config), self.trust)
                run.write_config(text)
                yield folder

    def _report_end(self, folder: Path, status: int) -> None:
        cell, result = self._paths[folder], read_object(folder / "result.json")
        metric = cell.resolved.config.eval.valid_metric.lower()
        score = metrics_of(result, "best_valid").get(metric)
        outcome = why_failed(folder, status) if score is None else f"valid {metric} {score:.4f}"
        self.report(f"{cell.model} on {cell.data}, seed {cell.seed}: {outcome}")

    def _results(self) -> dict[str, list[Result]]:
        """Data set -> its runs that have ended well."""
        results_by_data: dict[str, list[Result]] = {}
        for folder, cell in self._paths.items():
            results = results_by_data.setdefault(cell.data, [])
            if (folder / "result.json").is_file():
                record = read_record(folder, cell.model)
                metric = cell.resolved.config.eval.valid_metric.lower()
                if metric in record.best_valid and record.test:
                    results.append(Result(cell.model, cell.seed, metric, record))
        return results_by_data


def compare(results: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """For every data set and metric: mean and interval of each model, and p against the best.

    The best is chosen by the validation metric; p-values of one metric are corrected by Holm. Runs
    of different protocols have separate means and intervals: no best, no difference, no test.
    """
    comparisons: list[dict[str, Any]] = []
    for data, runs in results.items():
        names = list(dict.fromkeys(one.model for one in runs))
        by_model = {name: [one for one in runs if one.model == name] for name in names}
        if not names:
            comparisons.append({"data": data, "best": None, "metrics": {}})
            continue
        metric = runs[0].metric
        sign = 1.0 if higher_is_better(metric) else -1.0
        difference = _protocol_difference(runs)
        best = None
        if difference is None:
            best = max(names, key=lambda name: sign * _mean_valid(by_model[name], metric))
        shared = [name for name in runs[0].record.test if all(name in r.record.test for r in runs)]
        compared = {name: _compared(by_model, name, best) for name in shared}
        protocols = {name: by_model[name][0].record.summary["protocol"] for name in names}
        row = {"data": data, "decided_by": metric, "best": best, "protocols": protocols}
        comparisons.append({**row, "no_test": difference, "metrics": compared})
    return comparisons


def _protocol_difference(runs: list[Result]) -> str | None:
    """How the protocols of runs differ, of one seed each; None where they do not."""
    first: dict[int, Result] = {}
    for run in runs:
        first_run = first.setdefault(run.seed, run)
        if (difference := protocol_difference(first_run.record, run.record)) is not None:
            return difference
    return None


def _compared(
    by_model: dict[str, list[Result]], metric: str, best: str | None
) -> dict[str, dict[str, Any]]:
    """Model -> mean over seeds, interval; difference from the best one and p, if there is one."""
    values, unit = _values(by_model, metric)
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in by_model.items():
        _, low, high = mean_interval(values[name])
        row: dict[str, Any] = {"mean": _mean_test(runs, metric), "seeds": len(runs)}
        rows[name] = {**row, "low": _number(low), "high": _number(high), "over": unit}
    if best is None:
        return rows
    others = [name for name in by_model if name != best]
    differences = [
        paired(values[best], values[name])
        if len(values[best]) == len(values[name])
        else None  # a run failed, and users or seeds cannot be paired
        for name in others
    ]
    ps = holm([float("nan") if one is None else float(one.p) for one in differences])
    for name, difference, p in zip(others, differences, ps):
        if difference is not None:
            rows[name] |= {"difference": _number(difference.difference), "p": _number(p)}
    return rows


def _values(by_model: dict[str, list[Result]], metric: str) -> tuple[dict[str, np.ndarray], str]:
    """What is resampled: each user's mean over seeds where all runs keep them, else the seeds."""
    users = {name: [_by_user(run, metric) for run in runs] for name, runs in by_model.items()}
    tables = [table for runs in users.values() for table in runs]
    if all(tables) and len({tuple(table) for table in tables}) == 1:
        means = {
            name: np.mean([list(table.values()) for table in runs], axis=0)
            for name, runs in users.items()
        }
        return means, "users"
    seeds = {
        name: np.array([run.record.test[metric] for run in runs]) for name, runs in by_model.items()
    }
    return seeds, "seeds"


def _by_user(run: Result, metric: str) -> dict[str, float]:
    """User -> value of a metric, by name; empty where the run keeps none."""
    users = run.record.users
    if users is None or metric not in users.columns:
        return {}
    return dict(sorted(zip(users["user"].to_list(), users[metric].to_list())))


def _mean_test(runs: list[Result], metric: str) -> float:
    return float(np.mean([run.record.test[metric] for run in runs]))


def _mean_valid(runs: list[Result], metric: str) -> float:
    return float(np.mean([run.record.best_valid[metric] for run in runs]))


def _number(value: Any) -> float | None:
    """A number for JSON: NaN, the deviation of a single seed, becomes None."""
    return float(value) if np.isfinite(value) else None
