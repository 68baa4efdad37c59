"""A search from its beginning to its end: trials, finalists, the best config."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from shoal import config as config_room
from shoal.config import ConfigError, Resolved
from shoal.config.errors import did_you_mean
from shoal.config.output import flat
from shoal.config.schema import DataSection
from shoal.config.trust import OwnValues, own_values
from shoal.config.yaml_io import inline, read, read_file
from shoal.data.loading.location import named_data
from shoal.experiments.tuning.default_space import default_space
from shoal.experiments.tuning.space import (
    Parameter,
    checked,
    grid,
    read_space,
    space_text,
    value_in,
)
from shoal.experiments.tuning.study import PRUNERS, SAMPLERS, Study, reporting_database
from shoal.experiments.tuning.study_folder import PlannedRun, StudyFolder, StudyLimits
from shoal.experiments.tuning.study_page import study_page
from shoal.experiments.tuning.trial_files import drop_model, run_folders, why_failed
from shoal.experiments.tuning.worker import OUTPUT
from shoal.files.durable import replace_durably
from shoal.files.folders import inner_folder
from shoal.models import find
from shoal.models.own import check_launchable
from shoal.runs.run import label, resolve
from shoal.runs.run_files import metrics_of, read_object, whole
from shoal.training.run_folder import RunFolder

JUDGE = ("eval.", "run.", "data.split", "data.filter")  # keys that all trials must share
RUNS_OF = ("trials", "finalists")  # folders of a search that hold runs
TOO_MANY = 3  # trials that fail before one ends well: the config is to blame


class TrialsFailed(ValueError):
    """The first trials of a search have all failed."""


@dataclass(frozen=True)
class SearchLimits(StudyLimits):
    """What one call of a search may use, and how many runs it trains."""

    trials: int | None = None  # None: as many as before; of a new search 30
    finalists: int = 3
    seeds: int = 1


def search(
    resolved: Resolved,
    space: str | Path | dict[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    sampler: str | None = None,
    prune: str | None = None,
    limits: SearchLimits | None = None,
    report: Callable[[str], None] = print,
    trust: bool = False,
) -> dict[str, Any]:
    """Search for the best hyper-parameters; what study.json holds.

    space: a file, a mapping, or None for the default space of the model. sampler, prune: None for
    those that the search began with. report: gets the lines that people read. trust: run code that
    a search which is continued names in its space or in its trials.
    """
    config = resolved.config
    _check_options(sampler, prune)
    _check_searchable(config.model.name, config.data, config.train.eval_every, config.run.output)
    folder = Path(output or RunFolder.new_name("studies", label(config.model, config.data)))
    is_begun = (folder / "space.yaml").is_file()
    if space is None and is_begun:
        space = folder / "space.yaml"
    text = config_room.dump(resolved.with_values({"run.output": None}, "shoal tune").config)
    parameters = _read_parameters(config.model.name, space, text, trust)
    if sampler == "grid":
        grid(parameters)  # refuse what has no end before anything is made
    if is_begun and not resume:
        raise ValueError(
            f"{folder} already holds a search; continue it with --resume, or name another folder "
            "with --output"
        )
    for name in RUNS_OF:
        inner_folder(folder, name)
    limits = limits or SearchLimits()
    with StudyFolder(folder, limits, report, trust) as study_folder:
        _keep_inputs(folder, text, parameters, is_begun)
        agreed_values = _agreed_values(own_values(config), parameters)
        for run in (run for name in RUNS_OF for run in run_folders(folder, name)):
            study_folder.check_code(run, agreed_values)
        study_folder.start_processes()
        with reporting_database(folder):
            study = Study(
                folder=folder,
                metric=config.eval.valid_metric.lower(),
                seed=config.run.seed,
                sampler=sampler,
                prune=prune,
                space=parameters,
                eval_every=config.train.eval_every,
            )
            return Search(study, study_folder, resolved, limits).run()


def _check_options(sampler: str | None, prune: str | None) -> None:
    """Refuse samplers and pruners that do not exist."""
    for name, choice, choices in (("sampler", sampler, SAMPLERS), ("prune", prune, PRUNERS)):
        if choice is not None and choice not in choices:
            allowed = f"{', '.join(choices)}{did_you_mean(choice, choices)}"
            raise ValueError(f"--{name} {choice}: allowed: {allowed}")


def _check_searchable(model: str, data: DataSection, eval_every: int, output: str | None) -> None:
    """Refuse a config that no search can use."""
    if not eval_every:
        raise ValueError("train.eval_every is 0: a search needs evaluations to choose by")
    if output is not None:
        raise ValueError("run.output is the folder of a run; name that of a search with --output")
    check_launchable(model)
    named_data(data, find(model).kind == "clicks")


def _read_parameters(
    model: str, space: str | Path | dict[str, Any] | None, config_text: str, trust: bool
) -> list[Parameter]:
    """What is searched, checked against the config; without a space the default of the model."""
    parameters = default_space(model) if space is None else read_space(space)
    source = "the space" if isinstance(space, dict) else str(space)
    return _check(parameters, config_text, source, trust)


def _keep_inputs(
    folder: Path, config_text: str, parameters: list[Parameter], is_begun: bool
) -> None:
    """Write the config and the space of the search; those of a search that continues are equal.

    They are written again where it continues: trials take their keys from exactly these texts.
    """
    if is_begun:
        _check_same(folder / "config.yaml", config_text)
        _check_same(folder / "space.yaml", space_text(parameters))
    replace_durably(folder / "config.yaml", config_text.encode())
    replace_durably(folder / "space.yaml", space_text(parameters).encode())


def _agreed_values(config_values: OwnValues, parameters: list[Parameter]) -> OwnValues:
    """Values that name code in the config or in the space: runs may name no other code."""
    values = dict(config_values)
    for parameter in parameters:
        values[parameter.key] = [*values.get(parameter.key, ()), *parameter.choices]
    return values


class Search:
    """One call of a search, in the folder of its study."""

    def __init__(self, study: Study, folder: StudyFolder, resolved: Resolved, limits: SearchLimits):
        self.study = study
        self.folder = folder
        self.resolved = resolved
        self.limits = limits
        self.report = folder.report
        self.file = study.folder / "config.yaml"
        self.metric = study.metric

    def run(self) -> dict[str, Any]:
        """Train trials and finalists, and write what came of them."""
        limits, study = self.limits, self.study
        number = int(min(study.decide_num_trials(limits.trials), study.count))
        if (remaining := number - len(study.trials) + len(study.unfinished)) > 0:
            self.report(f"{study.folder}: {remaining} of {number} trials to train")
        is_done = self.folder.train(self._trials(number), self._trial_ended, self._is_hopeless)
        if is_done:
            is_done = self.folder.train_planned(self._finalists(), self._finalist_ended)
        return self._conclude(is_done)

    # ---- trials ---------------------------------------------------------------------------------

    def _trials(self, number: int) -> Iterator[Path]:
        """Folders to train in: of trials that were interrupted, then of new ones."""
        first = {one.key: value_in(self.resolved, one.key) for one in self.study.space}
        for trial in self.study.unfinished:
            yield from self._begin(trial)
        while len(self.study.trials) < number:
            yield from self._begin(self.study.propose(first))

    def _begin(self, number: int) -> Iterator[Path]:
        """The folder of a trial, with its config; none where nothing is left to train."""
        folder = self.study.path(number)
        run = RunFolder(folder)
        values = self.study.values(self.study.trials[number])
        try:
            if not run.is_run:
                resolved = self._resolve(values, f"trial {number}")
                self.folder.write_config(folder, resolved)
        except ConfigError as error:
            return self._record(number, error.errors[0])
        if run.is_finished or self.study.is_hopeless(number):
            return self._record(number)
        yield folder

    def _resolve(self, values: dict[str, Any], source: str) -> Resolved:
        """The config of the search with the values of a trial."""
        return resolve([self.file], (), values, source, trust=True)  # it was checked

    def _is_hopeless(self, folder: Path) -> bool:
        return self.study.is_hopeless(int(folder.name))

    def _trial_ended(self, folder: Path, status: int) -> None:
        self._record(int(folder.name), why_failed(folder, status))

    def _record(self, number: int, problem: str = "") -> None:
        """Record the outcome of a trial, and report it in a line."""
        study = self.study
        result = read_object(study.path(number) / "result.json")
        before = study.best
        trial = study.conclude(number, result, problem)
        best = study.best
        if trial.state == TrialState.COMPLETE:
            outcome = f"{self.metric} {trial.value:.4f} after {whole(result.get('epochs'))} epochs"
        elif trial.state == TrialState.PRUNED:
            epoch = max(trial.intermediate_values)
            outcome = f"stopped after epoch {epoch}, {self.metric} {trial.value:.4f}"
        else:
            outcome = f"failed: {trial.user_attrs['problem']}"
        if best is not None:
            outcome += f"; best {best.value:.4f} (trial {best.number})"
        words = " ".join(f"{key}={inline(value)}" for key, value in study.values(trial).items())
        self.report(f"trial {number:>3}  {words}: {outcome}")
        if best is not None and best is not before:
            self._write_best(best, f"{self.metric} {best.value:.6f} on validation")
        for past_trial in study.trials:
            if past_trial.state.is_finished() and (
                best is None or past_trial.number != best.number
            ):
                drop_model(study.folder, "trials", study.path(past_trial.number).name)
        failed = [past_trial for past_trial in study.trials if past_trial.state == TrialState.FAIL]
        if len(failed) >= TOO_MANY and all(
            past_trial.state == TrialState.FAIL for past_trial in study.trials
        ):
            raise TrialsFailed(
                f"all of the first {len(failed)} trials failed, the last one with: "
                f"{failed[-1].user_attrs['problem']} (see {study.path(number) / OUTPUT})"
            )

    # ---- finalists ------------------------------------------------------------------------------

    def _seeded(self, trial: FrozenTrial) -> list[Path]:
        """The folders of a finalist's further seeds."""
        first = self.study.seed
        seeds = range(first + 1, first + self.limits.seeds)
        return [self.study.folder / "finalists" / f"{trial.number:04d}-{seed}" for seed in seeds]

    def _finalists(self) -> Iterator[PlannedRun]:
        """The best trials, each with further seeds and the same split."""
        split = {"data.split.seed": self.resolved.config.data.split.seed}
        if split["data.split.seed"] is None:
            split = {"data.split.seed": self.study.seed}
        for trial in self.study.ranking[: self.limits.finalists]:
            for folder in self._seeded(trial):
                seed = int(folder.name.split("-")[1])
                values = {**self.study.values(trial), **split, "run.seed": seed}
                yield PlannedRun(
                    folder=folder,
                    title=f"trial {trial.number:>3}  with seed {seed}",
                    resolved=self._resolve(values, f"finalist {folder.name}"),
                )

    def _finalist_ended(self, run: PlannedRun, problem: str) -> None:
        drop_model(self.study.folder, "finalists", run.folder.name)

    def _chosen(self) -> tuple[FrozenTrial, list[dict[str, Any]]] | None:
        """The best trial and its results: by the mean over seeds, where finalists have them all."""
        ranked = []
        for trial in self.study.ranking[: max(1, self.limits.finalists)]:
            folders = [self.study.path(trial.number), *self._seeded(trial)]
            results = [read_object(folder / "result.json") for folder in folders]
            scored = all(self.metric in metrics_of(result, "best_valid") for result in results)
            if self.limits.finalists and self.limits.seeds > 1 and scored:
                ranked.append((trial, results))
        sign = 1.0 if self.study.is_maximized else -1.0
        if ranked:
            return max(ranked, key=lambda pair: sign * _mean(pair[1], "best_valid")[self.metric])
        best = self.study.best
        if best is None:
            return None
        result = read_object(self.study.path(best.number) / "result.json")
        if self.metric not in metrics_of(result, "best_valid"):
            raise ValueError(
                f"{self.study.path(best.number) / 'result.json'} is damaged: it has no "
                f"best_valid.{self.metric}; remove the search's folder, or name another one with "
                "--output"
            )
        return best, [result]

    # ---- the end --------------------------------------------------------------------------------

    def _conclude(self, is_done: bool) -> dict[str, Any]:
        """Write best.yaml and study.json, and return what they hold."""
        study, config = self.study, self.resolved.config
        report: dict[str, Any] = {
            "model": config.model.title,
            "dataset": config.data.title,
            "metric": self.metric,
            "maximized": study.is_maximized,
            "importance": study.importance(),
            "finished": is_done,  # False: the time was over before
            "trials": [self._row(one) for one in study.trials],
            "best": None,
        }
        chosen = self._chosen()
        if chosen is not None:
            trial, results = chosen
            valid, test = _mean(results, "best_valid"), _mean(results, "test")
            best = {"trial": trial.number, "params": study.values(trial)}
            report["best"] = {**best, "seeds": len(results), "valid": valid, "test": test}
            seeds = f", the mean of {len(results)} seeds" * (len(results) > 1)
            self._write_best(trial, f"{self.metric} {valid[self.metric]:.6f} on validation{seeds}")
        replace_durably(study.folder / "report.html", study_page(report).encode())
        return self.folder.write_report("study.json", report)

    def _row(self, trial: FrozenTrial) -> dict[str, Any]:
        done = (
            trial.state == TrialState.COMPLETE
        )  # one that was stopped may have a result, too late
        result = read_object(self.study.path(trial.number) / "result.json") if done else {}
        states = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped"}
        states |= {TrialState.FAIL: "failed"}
        return {
            "trial": trial.number,
            "state": states.get(trial.state, "not finished"),
            "params": self.study.values(trial),
            "value": trial.value,
            "curve": sorted(trial.intermediate_values.items()),
            "epochs": whole(result.get("epochs")),
            "problem": trial.user_attrs.get("problem"),
        }

    def _write_best(self, trial: FrozenTrial, reason: str) -> None:
        values = self.study.values(trial)
        resolved = self._resolve(values, f"trial {trial.number}")
        head = f"# Trial {trial.number} of {self.study.folder.name}: {reason}.\n"
        head += "".join(f"#   {key}: {inline(value)}\n" for key, value in values.items())
        text = head + config_room.dump(resolved.config)
        replace_durably(self.study.folder / "best.yaml", text.encode())


def _check(parameters: list[Parameter], text: str, source: str, trust: bool) -> list[Parameter]:
    """The space with the keys' own names, checked against a config."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "base.yaml"
        file.write_text(text)
        named = checked(parameters, lambda values: resolve([file], (), values, source, trust=trust))
    for parameter in named:
        if parameter.key.startswith(JUDGE):
            raise ConfigError(
                f"{source}: {parameter.key} decides how trials are judged, so that they could not "
                "be compared; set it for all of them: --KEY=VALUE"
            )
    return named


def _check_same(file: Path, text: str) -> None:
    """A search continues with the config and the space that it began with."""
    begun_keys, current_keys = flat(read_file(file)[0]), flat(read(text, "config")[0])
    changed = [
        key
        for key in {**begun_keys, **current_keys}
        if begun_keys.get(key) != current_keys.get(key)
    ]
    if changed:
        key = changed[0]
        raise ValueError(
            f"{file.parent} was begun with {key} {inline(begun_keys.get(key))}, now it is "
            f"{inline(current_keys.get(key))}; leave it out to continue (shoal tune --resume "
            f"{file.parent}), or name another folder with --output"
        )


def _mean(results: list[dict[str, Any]], part: str) -> dict[str, float]:
    """Metric -> mean over results, of metrics that all of them have."""
    metrics = [metrics_of(one, part) for one in results]
    names = [name for name in metrics[0] if all(name in one for one in metrics)]
    return {name: fmean(one[name] for one in metrics) for name in names}
