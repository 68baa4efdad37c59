"""The searches of an arena: `shoal tune` for each model and data set, before its seeds run.

A search is judged by validation of the first seed. Every seed then runs with the best that it
found, and with the same split.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.experiments.arena.cells import ArenaPlan, Refusal
from shoal.experiments.tuning.default_space import default_space
from shoal.experiments.tuning.study_folder import StudyLimits
from shoal.experiments.tuning.sweep_grid import Cell
from shoal.experiments.tuning.trial_files import run_folders
from shoal.experiments.tuning.tune import need_optuna
from shoal.files.folders import inner_folder
from shoal.runs.run import resolve
from shoal.runs.run_files import mapping
from shoal.runs.run_record import read_record

FOLDER = "searches"


@dataclass
class Searched:
    """The cells of an arena with what searches found for them."""

    plan: ArenaPlan
    limits: StudyLimits  # what is left of the time
    waiting: list[Cell] = field(default_factory=list)  # the time was over before their search
    best_values: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


def search_cells(
    plan: ArenaPlan,
    folder: Path,
    trials: int,
    limits: StudyLimits,
    report: Callable[[str], None],
    trust: bool = False,
) -> Searched:
    """Search for each model and data set; cells have what was found in place of their keys."""
    if not trials:
        return Searched(plan, limits)
    need_optuna()
    from shoal.experiments.tuning.search import TrialsFailed

    deadline = None if limits.minutes is None else time.monotonic() + 60 * limits.minutes
    searched = Searched(ArenaPlan([], list(plan.refused)), limits)
    for (model, data), cells in _by_pair(plan.cells).items():
        if not _has_space(cells[0]):
            report(f"{model} on {data}: nothing to search, it has no such option")
            searched.plan.cells.extend(cells)
            continue
        if deadline is not None and time.monotonic() >= deadline:
            searched.waiting.extend(cells)
            continue
        report(f"{model} on {data}: searching")
        place = _search_folder(folder, cells[0])
        limits = replace(limits, minutes=_minutes_left(deadline))
        try:
            study = _search(cells[0], place, trials, limits, report, trust)
        except TrialsFailed as error:
            searched.plan.refused.append(Refusal(model, data, f"its search ended: {error}"))
            continue
        if not study["finished"]:
            searched.waiting.extend(cells)
        elif study["best"] is None:
            searched.plan.refused.append(Refusal(model, data, "no trial of its search ended well"))
        else:
            searched.best_values[model, data] = study["best"]["params"]
            searched.plan.cells.extend(_with_best(cell, place, study) for cell in cells)
    searched.limits = replace(limits, minutes=_minutes_left(deadline))
    order = {(cell.model, cell.data, cell.seed): place for place, cell in enumerate(plan.cells)}
    searched.plan.cells.sort(key=lambda cell: order[cell.model, cell.data, cell.seed])
    return searched


def _search(
    cell: Cell,
    place: Path,
    trials: int,
    limits: StudyLimits,
    report: Callable[[str], None],
    trust: bool,
) -> dict[str, Any]:
    """Begin or continue the search of a cell's model and data set; what study.json holds."""
    from shoal.experiments.tuning.search import SearchLimits, search

    return search(
        cell.resolved,
        output=place,
        resume=True,
        limits=SearchLimits(
            trials=trials,
            minutes=limits.minutes,
            jobs=limits.jobs,
            launch=limits.launch,
            finalists=1,
        ),
        report=report,
        trust=trust,
    )


def search_seconds(folder: Path, cell: Cell) -> float:
    """Seconds that the trials of a cell's search trained and validated; 0 without a search."""
    seconds = 0.0
    place = _search_folder(folder, cell, make=False)
    for trial in run_folders(place, "trials") if place.is_dir() else ():
        for line in read_record(trial, trial.name).epochs:
            seconds += sum(part or 0.0 for part in line.seconds)
    return seconds


def _by_pair(cells: list[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """(model, data set) -> its cells, one for each seed."""
    pairs: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        pairs.setdefault((cell.model, cell.data), []).append(cell)
    return pairs


def _has_space(cell: Cell) -> bool:
    """Whether the model of a cell has options that a search would change."""
    try:
        return bool(default_space(cell.resolved.config.model.name))
    except ValueError:
        return False


def _search_folder(folder: Path, cell: Cell, make: bool = True) -> Path:
    """The folder of the search for a cell's model and data set."""
    name = cell.folder_name.rpartition("-")[0]
    return inner_folder(folder, FOLDER, name, make=make)


def _minutes_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, (deadline - time.monotonic()) / 60)


def _with_best(cell: Cell, place: Path, study: dict[str, Any]) -> Cell:
    """The cell with the best values of its search, and its own seed.

    The search has checked and written the config that its folder has.
    """
    values = {**mapping(study["best"], "params"), "run.seed": cell.seed}
    resolved = resolve([place / "config.yaml"], (), values, "shoal tune", trust=True)
    return replace(cell, resolved=resolved)
