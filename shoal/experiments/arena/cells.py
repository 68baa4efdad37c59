"""The cells of an arena: the config of every run, and what cannot be trained, with its reason.

All models of a data set have one protocol, as in a sweep: one split, the same metrics, the same
candidates. Where keys make them differ, nothing is trained.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import config as config_room
from shoal.config import ConfigError, Resolved
from shoal.config.errors import did_you_mean
from shoal.config.metric_classes import metric_classes
from shoal.config.output import flat
from shoal.config.yaml_io import inline, read
from shoal.data.loading.location import named_data
from shoal.data.sources import FORMATS
from shoal.data.sources.files import is_remote
from shoal.experiments.arena.arena_file import ArenaEntry, ArenaFile
from shoal.experiments.tuning.sweep_grid import (
    NAMING,
    Cell,
    decide_protocol,
    is_config_file,
    leave_disputes_to_data,
    split_seed,
    titles_of_files,
)
from shoal.models import find
from shoal.models.own import check_launchable
from shoal.runs.input_data import KEY, with_data
from shoal.runs.run import resolve

# Keys that decide what a figure means: figures of one data set share them.
SHARED = (
    "eval.mode",
    "eval.metrics",
    "eval.topk",
    "eval.valid_metric",
    "eval.repeatable",
    "eval.tail_ratio",
    "eval.groups.",
    "data.split.",
    "data.filter.",
    "data.threshold",
    "data.presplit",
    "data.synthetic.",
    "data.path",
    *NAMING,
)


@dataclass(frozen=True)
class Refusal:
    """A model that cannot train on a data set, and why."""

    model: str
    data: str
    reason: str


@dataclass(frozen=True)
class ArenaPlan:
    """What an arena trains, and what it cannot."""

    cells: list[Cell]
    refused: list[Refusal]

    @property
    def models(self) -> list[str]:
        """The titles of the models, in the order of the file."""
        titles = [cell.model for cell in self.cells] + [one.model for one in self.refused]
        return list(dict.fromkeys(titles))

    @property
    def data(self) -> list[str]:
        """The titles of the data sets, in the order of the file."""
        titles = [cell.data for cell in self.cells] + [one.data for one in self.refused]
        return list(dict.fromkeys(titles))


def plan_arena(arena: ArenaFile, trust: bool = False) -> ArenaPlan:
    """The config of every run of an arena; ValueError where nothing of it can be compared."""
    cells: list[Cell] = []
    refused: list[Refusal] = []
    for data in arena.data:
        cells_of_data, refused_models = _plan_data(arena, data, trust)
        cells += cells_of_data
        refused += refused_models
    # What the data decides is decided once for all models, as in a sweep.
    cells = leave_disputes_to_data(cells)
    decided: list[Cell] = []
    for title in dict.fromkeys(cell.data for cell in cells):
        cells_of_data = [cell for cell in cells if cell.data == title]
        possible, refused_models = _separate(cells_of_data, decide_protocol)
        decided += possible
        refused += refused_models
    _check_titles(arena, decided, refused)
    _check_shared_keys(decided)
    _check_published(arena, decided)
    return ArenaPlan(_in_order(decided, arena), refused)


def _plan_data(arena: ArenaFile, data: ArenaEntry, trust: bool) -> tuple[list[Cell], list[Refusal]]:
    """The cells of a data set, and the models that cannot learn from it."""
    files = titles_of_files([one.name for one in arena.models if is_config_file(one.name)])
    cells = []
    for model in arena.models:
        resolved = _resolve(arena, model, data, trust)
        title = model.title or files.get(model.name, resolved.config.model.title)
        cells.append(Cell(title, data.title or data.name, arena.seeds[0], resolved))
    possible, refused = _separate(cells, lambda group: [_with_data(cell, data) for cell in group])
    return [one for cell in possible for one in _seeded(cell, arena.seeds)], refused


def _resolve(arena: ArenaFile, model: ArenaEntry, data: ArenaEntry, trust: bool) -> Resolved:
    """The config of a model and a data set: keys of the model win, then those of the data set."""
    values = {**arena.keys, **data.keys, **model.keys}
    files = [model.name] if is_config_file(model.name) else []
    if not files:
        values["model.name"] = model.name
    if not _is_place(data.name):
        values["data.name"] = data.name
    resolved = resolve(files, (), values, source=str(arena.path), trust=trust)
    check_launchable(resolved.config.model.name)
    return resolved


def _is_place(name: str) -> bool:
    """Whether a data set is named by its file or folder, there or not."""
    is_table = any(form.reads(Path(name)) for form in FORMATS.values())
    return is_remote(name) or os.sep in name or is_table or Path(name).exists()


def _with_data(cell: Cell, data: ArenaEntry) -> Cell:
    """The cell with its data; ValueError where its model cannot learn from it."""
    resolved = cell.resolved
    if _is_place(data.name):
        resolved = with_data(resolved, data.name, flag=KEY)
    config = resolved.config
    named_data(config.data, find(config.model.name).kind == "clicks")
    title = data.title or config.data.title
    return Cell(cell.model, title, cell.seed, resolved)


def _seeded(cell: Cell, seeds: list[int]) -> Iterator[Cell]:
    """A cell for each seed; the split is the same for all of them."""
    fixed = {"data.split.seed": split_seed(cell.resolved)}
    for seed in seeds:
        resolved = cell.resolved.with_values({**fixed, "run.seed": seed}, "shoal arena")
        yield Cell(cell.model, cell.data, seed, resolved)


def _separate(
    cells: list[Cell], prepare: Callable[[list[Cell]], list[Cell]]
) -> tuple[list[Cell], list[Refusal]]:
    """The cells of one data set as `prepare` makes them, and the models that it refuses.

    ValueError where it refuses all models: then it is the data that cannot be used.
    """
    try:
        return prepare(cells), []
    except ValueError as error:
        first_error = error
    possible: list[Cell] = []
    refused: list[Refusal] = []
    for model in dict.fromkeys(cell.model for cell in cells):
        cells_of_model = [cell for cell in cells if cell.model == model]
        try:
            possible += prepare(cells_of_model)
        except ValueError as error:
            refused.append(Refusal(model, cells[0].data, str(error)))
    if not possible:
        raise ValueError(f"data set {cells[0].data}: {first_error}") from first_error
    # A data set that is named by its file has its title from there, also beside what is refused.
    return possible, [Refusal(one.model, possible[0].data, one.reason) for one in refused]


def _check_titles(arena: ArenaFile, cells: list[Cell], refused: list[Refusal]) -> None:
    """Refuse two models, or two data sets, that tables and folders would not tell apart."""
    pairs = [(cell.model, cell.data) for cell in cells if cell.seed == arena.seeds[0]]
    pairs += [(one.model, one.data) for one in refused]
    folders = [cell.folder_name for cell in cells]
    if len(set(pairs)) < len(pairs) or len(set(folders)) < len(folders):
        raise ConfigError(
            f"{arena.path}: two models or two data sets have the same name; give one of them "
            "another: {name: NAME, title: OTHER}"
        )


def _check_shared_keys(cells: list[Cell]) -> None:
    """Refuse models of a data set that would be tested on other things, or by other metrics."""
    errors = []
    first: dict[str, tuple[str, dict[str, Any]]] = {}  # data set -> its first model, and its keys
    for cell in {(cell.data, cell.model): cell for cell in cells}.values():
        keys = _shared_keys(cell.resolved)
        other, other_keys = first.setdefault(cell.data, (cell.model, keys))
        differences = [
            f"{key} is {inline(other_keys.get(key))} and {inline(keys.get(key))}"
            for key in {**other_keys, **keys}
            if other_keys.get(key) != keys.get(key)
        ]
        if differences:
            errors.append(
                f"{cell.data}: figures of {other} and {cell.model} could not be compared: "
                f"{', '.join(differences)}; set this once, under `keys` or with the data set, or "
                "make two arenas"
            )
    if errors:
        raise ConfigError(errors)


def _shared_keys(resolved: Resolved) -> dict[str, Any]:
    """The keys that must be the same for all models of a data set."""
    keys = flat(read(config_room.dump(resolved.config), "")[0])
    return {key: value for key, value in keys.items() if key.startswith(SHARED)}


def _check_published(arena: ArenaFile, cells: list[Cell]) -> None:
    """Refuse figures of others for data or metrics that the arena does not have."""
    errors = []
    metrics = {cell.data: _metric_names(cell) for cell in cells}
    for row in arena.published:
        if row.data not in metrics:
            hint = did_you_mean(row.data, metrics)
            errors.append(
                f"{arena.path}: published: no data set {row.data}; there is "
                f"{', '.join(metrics)}{hint}"
            )
            continue
        for name in row.metrics:
            if name not in metrics[row.data]:
                hint = did_you_mean(name, metrics[row.data])
                errors.append(
                    f"{arena.path}: published: {row.data} is not tested by {name}; its metrics: "
                    f"{', '.join(metrics[row.data])}{hint}"
                )
    if errors:
        raise ConfigError(errors)


def _metric_names(cell: Cell) -> list[str]:
    """The metrics of a cell by the names that results have: ndcg@10, auc."""
    section, classes = cell.resolved.config.eval, metric_classes()
    names = []
    for name in section.metric_names:
        has_topk = name in classes and classes[name].has_topk
        names += [f"{name}@{k}".lower() for k in section.topk] if has_topk else [name.lower()]
    return names


def _in_order(cells: list[Cell], arena: ArenaFile) -> list[Cell]:
    """Cells by data set and seed, so that a seed of all models is there before the next begins."""
    data = list(dict.fromkeys(cell.data for cell in cells))
    return sorted(cells, key=lambda cell: (data.index(cell.data), arena.seeds.index(cell.seed)))
