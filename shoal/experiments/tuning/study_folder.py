"""StudyFolder: the runs of a study, trained in one folder by a pool of processes.

`shoal tune` and `shoal sweep` are studies. They differ in the runs that they plan and in what they
conclude from the results; everything between is here. A run is a folder with its config.yaml, so a
study that was killed finds there which runs are finished and which are to be resumed.

    with StudyFolder(folder, limits, report, trust) as study:   # locked, for this process alone
        study.train_planned(runs)                               # those that are not finished
        study.write_report("sweep.json", conclusion)
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shoal import config as config_room
from shoal.config import Resolved
from shoal.config.trust import OwnValues, check_kept_code
from shoal.config.yaml_io import read
from shoal.experiments.tuning.trial_files import why_failed
from shoal.experiments.tuning.worker_pool import WorkerPool
from shoal.files.durable import replace_durably, sole_holder
from shoal.files.folders import inner_folder
from shoal.runs.listing import read_config
from shoal.runs.run import resolve_run
from shoal.runs.run_files import mapping, metrics_of, read_object, same_settings
from shoal.runs.user_code import own_code
from shoal.training.run_folder import RunFolder


@dataclass(frozen=True)
class StudyLimits:
    """What one call of a study may use: processes and time."""

    jobs: int = 1
    minutes: float | None = None
    launch: str | None = None  # the words before `shoal train`, of a cluster's command


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study trains, known before any other has ended."""

    folder: Path
    title: str  # what lines of progress call it
    resolved: Resolved
    keep_users: bool = False  # keep the values of each user, to compare runs by them

    @property
    def metric(self) -> str:
        """The validation metric that its result is judged by."""
        return self.resolved.config.eval.valid_metric.lower()


class StudyFolder:
    """The folder of a study while one process works in it."""

    def __init__(
        self, path: Path, limits: StudyLimits, report: Callable[[str], None], trust: bool = False
    ):
        """report: gets lines of progress. trust: resume runs whose configs name other code."""
        self.path = path
        self.limits = limits
        self.report = report
        self.trust = trust
        self._open = ExitStack()
        self._pool: WorkerPool | None = None

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._open.enter_context(_locked(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def start_processes(self) -> WorkerPool:
        """Start the processes that train, which import torch while this one prepares the runs."""
        if self._pool is None:
            limits = self.limits
            self._pool = self._open.enter_context(
                WorkerPool(limits.jobs, limits.launch, limits.minutes)
            )
        return self._pool

    def train(
        self,
        folders: Iterator[Path],
        ended: Callable[[Path, int], None],
        is_hopeless: Callable[[Path], bool] = lambda folder: False,
    ) -> bool:
        """Train the runs in these folders; False where the time was over before."""
        return self.start_processes().train(folders, ended, is_hopeless)

    def train_planned(
        self,
        runs: Iterable[PlannedRun],
        ended: Callable[[PlannedRun, str], None] = lambda run, problem: None,
    ) -> bool:
        """Train the planned runs that are not finished; False where the time was over before.

        ended: gets a run and why it has no result, which is empty where it has one.
        """
        running: dict[Path, PlannedRun] = {}

        def unfinished() -> Iterator[Path]:
            for run in runs:
                if self._prepare(run):
                    running[run.folder] = run
                    yield run.folder

        def report_end(folder: Path, status: int) -> None:
            run = running.pop(folder)
            result = read_object(folder / "result.json")
            score = metrics_of(result, "best_valid").get(run.metric)
            problem = why_failed(folder, status) if score is None else ""
            outcome = problem if score is None else f"valid {run.metric} {score:.4f}"
            self.report(f"{run.title}: {outcome}")
            ended(run, problem)

        return self.train(unfinished(), report_end)

    def _prepare(self, run: PlannedRun) -> bool:
        """Write the config of a planned run; False where the run is finished.

        A run that was begun must have been begun with this config.
        """
        folder = RunFolder(run.folder)
        if folder.is_run:
            resolved = _in_folder(run.resolved, run.folder, run.keep_users)
            kept = _without_place(read_config(run.folder))
            planned = _without_place(read(config_room.dump(resolved.config), "")[0])
            if not same_settings(kept, planned):
                raise ValueError(
                    f"{run.folder} was trained with another config; name another folder with "
                    "--output"
                )
        if folder.is_finished:
            return False
        self.write_config(run.folder, run.resolved, run.keep_users)
        return True

    def write_config(self, folder: Path, resolved: Resolved, keep_users: bool = False) -> None:
        """Write the config of a run in a folder of this study."""
        inner_folder(self.path, *folder.relative_to(self.path).parts)
        resolved = _in_folder(resolved, folder, keep_users)
        RunFolder(folder).write_config(config_room.dump(resolved.config))

    def check_code(self, folder: Path, agreed_values: OwnValues) -> None:
        """Refuse to resume a run whose folder names code that the user has not agreed to.

        A study checks every run that was begun before it trains any.
        agreed_values: values that the user has agreed to by naming the config of the study.
        """
        inner_folder(self.path, *folder.relative_to(self.path).parts, make=False)  # no links
        run = RunFolder(folder)
        run.check_inner_folders()
        if self.trust or not run.is_run or run.is_finished:
            return
        values = {"run.output": str(folder)}
        resolved = resolve_run(folder, values=values, trusted_values=agreed_values)
        for name, text in own_code(
            resolved.config.model.name, resolved.config.eval.metrics
        ).items():
            check_kept_code(folder / "model" / name, "model.name", text)

    def write_report(self, name: str, report: dict[str, Any]) -> dict[str, Any]:
        """Write what the study has concluded as JSON; return it with the study's folder."""
        replace_durably(self.path / name, (json.dumps(report, indent=2) + "\n").encode())
        return {**report, "folder": str(self.path)}


def _in_folder(resolved: Resolved, folder: Path, keep_users: bool) -> Resolved:
    """The config of a run in a folder, without progress bar and tensorboard: nobody watches it."""
    trackers = [name for name in resolved.config.run.trackers if name != "tensorboard"]
    values: dict[str, Any] = {"run.output": str(folder), "run.trackers": trackers}
    values |= {"run.progress": False, "eval.per_user": keep_users and resolved.config.eval.per_user}
    return resolved.with_values(values, "the study")


def _without_place(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a config without the run's folder, since that of the study may be moved."""
    run = {key: value for key, value in mapping(values, "run").items() if key != "output"}
    return {**values, "run": run}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from working in this folder."""
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_holder(folder / ".lock", wait=False))
        except BlockingIOError:
            raise ValueError(
                f"another process works in {folder}; wait for it, stop it, or name another folder "
                "with --output"
            ) from None
        yield
