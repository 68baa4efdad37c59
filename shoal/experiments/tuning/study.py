"""Study: the trials of a search and what came of them, in a folder.

study.db       parameters, state and value of every trial, in Optuna's storage
config.yaml    the config that trials change
space.yaml     the keys that they change
trials/NNNN/   each trial, an ordinary run
finalists/     the best trials with other seeds
best.yaml      the config of the best one, for `shoal train`
study.json     the outcome
report.html    the search as a page

The parameters of a trial are a pure function of the seed, its number and the outcomes before it;
its outcome is one of its validation curve and the curves before it. So a search that was killed
and continued finds what it would have found.
"""

import errno
import hashlib
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from shoal.config.yaml_io import inline
from shoal.experiments.tuning.pruner import PacePruner
from shoal.experiments.tuning.space import Parameter, grid
from shoal.experiments.tuning.trial_files import Curve, read_curve
from shoal.files.durable import open_regular
from shoal.runs.run_files import metrics_of, whole
from shoal.training.metrics import higher_is_better

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("pace", "halving", "none")
UNHALVED = 5  # evaluations of a trial before successive halving compares it
ENOUGH = 10  # trials, before the importance of keys is computed
DATABASE = "study.db"
MOST_TRIALS = 1_000_000
ATTEMPTS = 20  # to propose what was not tried before


class Study:
    """Proposes trials, stops hopeless ones, and knows the best."""

    def __init__(
        self,
        folder: Path,
        metric: str,
        seed: int,
        sampler: str | None,
        prune: str | None,
        space: list[Parameter],
        eval_every: int = 1,
    ):
        """sampler, prune: None as the study began. eval_every: epochs between evaluations."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder = folder
        self.metric = metric
        self.seed = seed
        self.space = space
        self._distributions = {one.key: _distribution(one) for one in space}
        direction = StudyDirection.MAXIMIZE if self.is_maximized else StudyDirection.MINIMIZE
        _check_database(folder)
        with _reading_database(folder):
            self._storage = optuna.storages.RDBStorage(
                "sqlite:///study.db",  # by the function below: the folder's name may have any signs
                {"creator": partial(sqlite3.connect, folder / DATABASE)},
            )
            self._stored = optuna.create_study(
                storage=self._storage, study_name="shoal", direction=direction, load_if_exists=True
            )
            kept_trials = self._stored.get_trials(deepcopy=False)
            self._check_kept(kept_trials)
        self.sampler = self._decide_setting("sampler", sampler, SAMPLERS)
        prune = self._decide_setting("prune", prune, PRUNERS)
        self.grid = grid(space) if self.sampler == "grid" else None
        # A copy of all trials in memory, with their curves, for samplers and pruners.
        self._memory = optuna.storages.InMemoryStorage()
        pruner = _pruner(prune, eval_every)
        self._study = optuna.create_study(storage=self._memory, direction=direction, pruner=pruner)
        self._seen: dict[int, int] = {}  # trial -> how much of its curve the pruner has seen
        self._stops: dict[int, int] = {}  # trial -> where in its curve the pruner stopped it
        self._sizes: dict[int, int] = {}
        with _reading_database(folder):
            for trial in kept_trials:
                curve = self.curve(trial.number)[: trial.user_attrs.get("evaluations")]
                values = dict(curve) if trial.state.is_finished() else {}
                self._study.add_trial(_copy(trial, values))

    def _check_kept(self, trials: list[FrozenTrial]) -> None:
        """Refuse trials of the database that this search cannot have made.

        Their values become configs, so a value outside the space was not written by this search.
        """
        if self._stored.direction != (
            StudyDirection.MAXIMIZE if self.is_maximized else StudyDirection.MINIMIZE
        ):
            raise ValueError(f"it searches in the other direction of {self.metric}")
        if len(trials) > MOST_TRIALS:
            raise ValueError(f"it has more than {MOST_TRIALS} trials")
        for trial in trials:
            place = f"trial {trial.number}"
            if set(trial.params) != set(self._distributions):
                raise ValueError(f"{place} has other keys than space.yaml")
            for key, value in trial.params.items():
                if not self._is_in_space(key, value):
                    raise ValueError(
                        f"{place} has {key}={value!r:.200}, which is not in space.yaml"
                    )
            evaluations = trial.user_attrs.get("evaluations")
            if evaluations is not None and whole(evaluations) is None:
                raise ValueError(f"{place} has {evaluations!r:.200} evaluations")
            if not isinstance(trial.user_attrs.get("problem", ""), str):
                raise ValueError(f"{place} has a problem that is no text")
        num_trials = self._stored.user_attrs.get("trials")
        if num_trials is not None and not 1 <= (whole(num_trials) or 0) <= MOST_TRIALS:
            raise ValueError(f"it wants {num_trials!r:.200} trials")

    def _is_in_space(self, key: str, value: Any) -> bool:
        """Whether a value of a trial is in the space and has the exact type."""
        parameter = next(parameter for parameter in self.space if parameter.key == key)
        if parameter.choices:
            choices = map(_encode, parameter.choices)
            return any(type(value) is type(choice) and value == choice for choice in choices)
        if type(value) is not (int if parameter.is_whole else float):
            return False
        return self._distributions[key]._contains(value)

    def _decide_setting(self, name: str, choice: str | None, choices: tuple[str, ...]) -> str:
        """The sampler or pruner that the study began with, or of a new study `choice`."""
        began = self._stored.user_attrs.get(name)
        if began is None:
            began = choice or choices[0]
            self._stored.set_user_attr(name, began)
        if began not in choices:
            raise ValueError(_damaged(self.folder, f"it was begun with {name} {began!r:.200}"))
        if choice not in (None, began):
            raise ValueError(
                f"{self.folder} was begun with {name} {began}; leave --{name} out, or name another "
                "folder with --output"
            )
        return began

    def decide_num_trials(self, requested: int | None) -> int:
        """Store and return the number of trials: `requested`, else the stored number, else 30."""
        number = requested or self._stored.user_attrs.get("trials", 30)
        self._stored.set_user_attr("trials", number)
        return number

    # ---- trials ---------------------------------------------------------------------------------

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials by number, with their validation curves."""
        return self._study.get_trials(deepcopy=False)

    @property
    def unfinished(self) -> list[int]:
        """Trials that were begun, by number."""
        return [one.number for one in self.trials if not one.state.is_finished()]

    @property
    def best(self) -> FrozenTrial | None:
        """The best trial that trained to its end; of equal ones the first."""
        return next(iter(self.ranking), None)

    @property
    def ranking(self) -> list[FrozenTrial]:
        """Trials that trained to their end, the best first."""
        sign = -1.0 if self.is_maximized else 1.0
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def is_maximized(self) -> bool:
        return higher_is_better(self.metric)

    def path(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    def values(self, trial: FrozenTrial) -> dict[str, Any]:
        """Key -> value of a trial, as a config takes them."""
        return self._decoded(trial.params)

    def _decoded(self, params: dict[str, Any]) -> dict[str, Any]:
        by_key = {one.key: one for one in self.space}
        return {key: _decode(by_key[key], value) for key, value in params.items()}

    def curve(self, number: int) -> Curve:
        """The validation metric of a trial's epochs so far."""
        return read_curve(self.path(number), self.metric)

    def importance(self) -> dict[str, float]:
        """Key -> its share in the difference of good and bad trials; {} where too few are done."""
        if len(self.ranking) < ENOUGH:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {key: round(share, 4) for key, share in shares.items() if math.isfinite(share)}

    @property
    def count(self) -> float:
        """How many different trials the space has."""
        try:
            return math.prod(one.num_steps for one in self.space)
        except ValueError:  # a range without steps
            return math.inf

    def propose(self, first: dict[str, Any]) -> int:
        """A new trial: its number. first: values of the very first, where the space has them."""
        number = len(self.trials)
        params = self._draw(number, first) if self.grid is None else self._point(number)
        running = create_trial(
            state=TrialState.RUNNING, params=params, distributions=self._distributions
        )
        # In one transaction: a trial is there with all its parameters, or not at all.
        self._stored.add_trial(running)
        self._study.add_trial(running)
        return number

    def _point(self, number: int) -> dict[str, Any]:
        """Parameters of a grid."""
        assert self.grid is not None
        return {key: _encode(value) for key, value in self.grid[number].items()}

    def _draw(self, number: int, first: dict[str, Any]) -> dict[str, Any]:
        """Parameters that the sampler chooses; again where they were tried before."""
        seed = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        choose = optuna.samplers.TPESampler if self.sampler == "tpe" else RandomSampler
        sampler = choose(seed=int.from_bytes(seed[:4]))
        study = optuna.create_study(direction=self._study.direction, sampler=sampler)
        study.add_trials(self.trials)
        if number == 0:
            study.enqueue_trial(
                {k: _encode(v) for k, v in first.items() if self._contains_value(k, v)}
            )
        past_values = [self.values(one) for one in self.trials]
        for _ in range(ATTEMPTS):
            trial = study.ask(self._distributions)
            if self._decoded(trial.params) not in past_values:
                break
        return trial.params

    def is_hopeless(self, number: int) -> bool:
        """Whether the pruner stops a trial, by its curve up to now."""
        size = _size(self.path(number) / "metrics.jsonl")
        if size == self._sizes.get(number):
            return False
        self._sizes[number] = size
        return self._stopped_at(number, self.curve(number)) is not None

    def conclude(self, number: int, result: dict[str, Any], problem: str) -> FrozenTrial:
        """Record what came of a trial; result: of its result.json; problem: where it has none."""
        curve, score = self.curve(number), metrics_of(result, "best_valid").get(self.metric)
        stopped = self._stopped_at(number, curve)
        attributes: dict[str, Any] = {}
        values: list[float] | None = None
        if stopped is not None:
            state, values = TrialState.PRUNED, [curve[stopped][1]]
            attributes["evaluations"] = stopped + 1
        elif score is not None and math.isfinite(score):
            state, values = TrialState.COMPLETE, [score]
        else:
            state, attributes["problem"] = TrialState.FAIL, problem
        rungs = {  # what successive halving compares
            key: value
            for key, value in self.trials[number].system_attrs.items()
            if key.startswith("completed_rung")
        }
        for storage, study in ((self._memory, self._study), (self._storage, self._stored)):
            trial = study.get_trials(deepcopy=False)[number]._trial_id
            for key, value in attributes.items():
                storage.set_trial_user_attr(trial, key, value)
            for key, value in rungs.items():
                storage.set_trial_system_attr(trial, key, value)
            storage.set_trial_state_values(trial, state, values)
        return self.trials[number]

    def _stopped_at(self, number: int, curve: Curve) -> int | None:
        """The place in its curve at which the pruner stops a trial, however far it has trained."""
        trial = self.trials[number]._trial_id
        for place in range(self._seen.get(number, 0), len(curve)):
            if number in self._stops:
                break
            epoch, value = curve[place]
            self._memory.set_trial_intermediate_value(trial, epoch, value)
            self._seen[number] = place + 1
            if self._study.pruner.prune(self._study, self._memory.get_trial(trial)):
                self._stops[number] = place
        return self._stops.get(number)

    def _contains_value(self, key: str, value: Any) -> bool:
        """Whether the space has this value."""
        parameter = next(parameter for parameter in self.space if parameter.key == key)
        if parameter.choices:
            return _encode(value) in map(_encode, parameter.choices)
        if type(value) not in (int, float) or (parameter.is_whole and not isinstance(value, int)):
            return False
        return self._distributions[key]._contains(value)


@contextmanager
def reporting_database(folder: Path) -> Iterator[None]:
    """Turn any failure of the search's database inside the block into one clear error."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError) as error:
        raise _database_error(folder, error) from error


@contextmanager
def _reading_database(folder: Path) -> Iterator[None]:
    """Turn any failure while the database is read inside the block into an error that names it."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError) as error:
        raise _database_error(folder, error) from error
    except Exception as error:  # of many kinds: Optuna takes what it reads as its own
        raise ValueError(_damaged(folder, str(error) or type(error).__name__)) from error


def _database_error(folder: Path, error: Exception) -> Exception:
    """The error of a database that cannot be read or written, as users can mend it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = getattr(cause, "orig", None) or cause.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    number = {
        sqlite3.SQLITE_FULL: errno.ENOSPC,
        sqlite3.SQLITE_READONLY: errno.EROFS,
        sqlite3.SQLITE_CANTOPEN: errno.EACCES,
        sqlite3.SQLITE_IOERR: errno.EIO,
    }.get(-1 if code is None else code & 0xFF)
    if number == errno.EIO and _is_full(folder):
        number = errno.ENOSPC  # SQLite's journal had no room left
    if number is not None:
        return OSError(number, os.strerror(number), str(folder / DATABASE))
    return ValueError(_damaged(folder, str(cause or error)))


def _is_full(folder: Path) -> bool:
    """Whether the disk has no room for another page of a database."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize < 1 << 16


def _damaged(folder: Path, reason: str) -> str:
    first = next(iter(reason.splitlines()), "")[:300]
    return (
        f"cannot use {folder / DATABASE}: {first}; put back a copy of that file, or begin a new "
        "search with another --output"
    )


def _check_database(folder: Path) -> None:
    """Refuse a database that is a link: what it leads to would be written."""
    for name in (DATABASE, f"{DATABASE}-journal", f"{DATABASE}-wal", f"{DATABASE}-shm"):
        if os.path.lexists(folder / name):
            open_regular(folder / name, links=False).close()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _copy(trial: FrozenTrial, curve: dict[int, float]) -> FrozenTrial:
    """The trial with its curve, to be added to a study."""
    return create_trial(
        state=trial.state,
        values=trial.values,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs,
        system_attrs=trial.system_attrs,
        intermediate_values=curve,
    )


def _pruner(name: str, eval_every: int) -> BasePruner:
    """Make a pruner; eval_every: epochs between evaluations."""
    if name == "pace":
        return PacePruner()
    return (
        SuccessiveHalvingPruner(min_resource=UNHALVED * eval_every)
        if name == "halving"
        else NopPruner()
    )


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution([_encode(value) for value in parameter.choices])
    if parameter.is_whole:
        step = 1 if parameter.step is None else int(parameter.step)
        return IntDistribution(
            int(parameter.low), int(parameter.high), log=parameter.log, step=step
        )
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def _encode(value: Any) -> Any:
    """A choice as Optuna keeps it: lists and mappings as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else inline(value)


def _decode(parameter: Parameter, value: Any) -> Any:
    """A value as a config takes it; of a range, with as many digits as matter."""
    for choice in parameter.choices:
        if _encode(choice) == value and type(_encode(choice)) is type(value):
            return choice
    return float(f"{value:.6g}") if isinstance(value, float) else value
