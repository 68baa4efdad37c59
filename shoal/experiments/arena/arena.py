"""An arena from its beginning to its end, in one folder.

runs/MODEL-DATA-SEED/   the runs, as in the folder of a sweep
searches/MODEL-DATA/    searches, where the file asks for them
arena.json              what came of them; figures.csv: each figure in a line
report.html, report.md  the page, and its tables
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.config.trust import own_values
from shoal.experiments.arena.arena_file import ArenaFile
from shoal.experiments.arena.arena_page import arena_page
from shoal.experiments.arena.arena_tables import figures_csv, tables_markdown
from shoal.experiments.arena.cells import plan_arena
from shoal.experiments.arena.outcome import conclude, read_outcome
from shoal.experiments.arena.progress import ArenaProgress
from shoal.experiments.arena.searches import search_cells, search_seconds
from shoal.experiments.tuning.study_folder import PlannedRun, StudyFolder, StudyLimits
from shoal.experiments.tuning.sweep import plan_run
from shoal.files.durable import replace_durably
from shoal.training.run_folder import RunFolder


def run_arena(
    arena: ArenaFile,
    folder: Path,
    limits: StudyLimits,
    report: Callable[[str], None] = print,
    trust: bool = False,
) -> dict[str, Any]:
    """Train what is not finished, and write what came of all; what arena.json holds.

    report: gets lines of progress. trust: run the copies of custom models that runs in the folder
    keep.
    """
    plan = plan_arena(arena, trust)
    searched = search_cells(plan, folder, arena.trials, limits, report, trust)
    cells = searched.plan.cells
    runs = [plan_run(folder, cell) for cell in cells]
    problems: dict[Path, str] = {}
    num_finished = sum(RunFolder(run.folder).is_finished for run in runs)
    progress = ArenaProgress(planned=len(runs), finished=num_finished, report=report)

    def note_problem(run: PlannedRun, problem: str) -> None:
        problems[run.folder] = problem

    with StudyFolder(folder, searched.limits, progress.report_run, trust) as study:
        for run in runs:
            study.check_code(run.folder, own_values(run.resolved.config))
        progress.begin(str(folder), limits.jobs)
        is_done = study.train_planned(runs, note_problem) and not searched.waiting
        outcomes = [
            read_outcome(cell, run.folder, problems.get(run.folder, ""))
            for cell, run in zip(cells, runs)
        ]
        outcomes += [
            read_outcome(cell, folder / "runs" / cell.folder_name, "") for cell in searched.waiting
        ]
        seconds = {
            (cell.model, cell.data): search_seconds(folder, cell)
            for cell in cells
            if cell.seed == arena.seeds[0] and arena.trials
        }
        shared = 1 if limits.launch is not None else min(limits.jobs, max(1, len(runs)))
        conclusion = conclude(
            arena,
            outcomes,
            refused=searched.plan.refused,
            search_seconds=seconds,
            runs_at_once=shared,
            best_values=searched.best_values,
        )
        conclusion["finished"] = is_done
        replace_durably(folder / "report.html", arena_page(conclusion, arena.text).encode())
        replace_durably(folder / "report.md", tables_markdown(conclusion).encode())
        replace_durably(folder / "figures.csv", figures_csv(conclusion).encode())
        return study.write_report("arena.json", conclusion)
