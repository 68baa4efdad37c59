"""Sweep: a study of a grid of models × data × seeds, and the comparison of what came of its runs.

runs/MODEL-DATA-SEED/   the runs
sweep.json              what came of them: means, intervals, p-values
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.config.trust import own_values
from shoal.experiments.tuning.study_folder import PlannedRun, StudyFolder, StudyLimits
from shoal.experiments.tuning.sweep_comparison import Result, compare
from shoal.experiments.tuning.sweep_grid import Cell, decide_protocol
from shoal.runs.run_record import read_record


def sweep(
    folder: Path,
    cells: list[Cell],
    limits: StudyLimits,
    report: Callable[[str], None] = print,
    trust: bool = False,
) -> dict[str, Any]:
    """Train the runs of a grid that are not finished, and compare; what sweep.json holds.

    trust: run the copies of custom models that runs in the folder keep.
    """
    check_names(cells)
    cells = decide_protocol(cells)
    runs = [plan_run(folder, cell) for cell in cells]
    with StudyFolder(folder, limits, report, trust) as study:
        for run in runs:
            study.check_code(run.folder, own_values(run.resolved.config))
        is_done = study.train_planned(runs)
        comparison = compare(_results(cells, runs))
        return study.write_report("sweep.json", {"finished": is_done, "data": comparison})


def check_names(cells: list[Cell]) -> None:
    """Refuse a grid of which two runs would have one folder."""
    if len({cell.folder_name for cell in cells}) < len(cells):
        raise ValueError("two models or data sets have the same name; rename one of the files")


def plan_run(folder: Path, cell: Cell) -> PlannedRun:
    """The run of a cell, in the folder of the sweep."""
    return PlannedRun(
        folder=folder / "runs" / cell.folder_name,
        title=f"{cell.model} on {cell.data}, seed {cell.seed}",
        resolved=cell.resolved,
        keep_users=True,
    )


def _results(cells: list[Cell], runs: list[PlannedRun]) -> dict[str, list[Result]]:
    """Data set -> its runs that have ended well."""
    results_by_data: dict[str, list[Result]] = {}
    for cell, run in zip(cells, runs):
        results = results_by_data.setdefault(cell.data, [])
        if (run.folder / "result.json").is_file():
            record = read_record(run.folder, cell.model)
            if run.metric in record.best_valid and record.test:
                results.append(Result(cell.model, cell.seed, run.metric, record))
    return results_by_data
