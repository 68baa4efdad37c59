"""The grid of a sweep: models × data × seeds, and the config of each of its runs.

All runs of a data set have one protocol (split, candidates, what counts as seen): what the config
leaves open is decided once, from the data. Seeds vary training alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config import ConfigError, Resolved
from shoal.config.keys import KEYS, value_of
from shoal.config.yaml_io import SUFFIXES, inline, read_file
from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.loading.location import named_data
from shoal.data.protocol import DECIDED as PROTOCOL
from shoal.data.protocol import decide, decide_log, values_of
from shoal.data.split import AUTO
from shoal.models import find
from shoal.models.own import check_launchable
from shoal.runs.input_data import with_data
from shoal.runs.run import resolve

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

    @property
    def folder_name(self) -> str:
        """The folder of the run, within those of the sweep."""
        names = [re.sub(r"[^\w.]+", "_", part) for part in (self.model, self.data)]
        return f"{'-'.join(names)}-{self.seed}"


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
    chosen = read_seeds([first] if seeds is None else seeds, first)
    for name, values in (("models", names[0]), ("data", names[1]), ("seeds", chosen)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} names one of {', '.join(map(str, values))} twice")
    return Grid(names[0], names[1], chosen)


def read_seeds(value: Any, first: int) -> list[int]:
    """Seeds as they are written: a list, text with commas, or how many from `first` on."""
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


def plan_cells(
    grid: Grid, files: Sequence[str | Path], overrides: Sequence[str], trust: bool = False
) -> list[Cell]:
    """Every run of a grid, its config resolved; without models or data: those of the config.

    A model that is only named, where nothing names its data, has those of the config files.
    """
    runs = []
    titles = titles_of_files([model for model in grid.models if is_config_file(model)])
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
            fixed = {"data.split.seed": split_seed(resolved)}
            for seed in grid.seeds:
                with_seed = resolved.with_values({**fixed, "run.seed": seed}, "shoal sweep")
                runs.append(Cell(shown, config.data.title, seed, with_seed))
    return leave_disputes_to_data(runs)


def leave_disputes_to_data(runs: list[Cell]) -> list[Cell]:
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


def is_config_file(model: str) -> bool:
    """Whether a model is named by a config file."""
    return Path(model).suffix in SUFFIXES


def titles_of_files(files: Sequence[str]) -> dict[str, str]:
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


def split_seed(resolved: Resolved) -> int:
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
        | {"data.split.seed": split_seed(resolved)}
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
