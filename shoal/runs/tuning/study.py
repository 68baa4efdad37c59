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

import hashlib
import math
import sqlite3
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

from shoal.config.yaml_io import inline
from shoal.runs.tuning.files import Curve, read_curve
from shoal.runs.tuning.pace import PacePruner
from shoal.runs.tuning.space import Parameter, grid
from shoal.training.metrics import higher_is_better

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("pace", "halving", "none")
UNHALVED = 5  # evaluations of a trial before successive halving compares it
ENOUGH = 10  # trials, to say which key matters
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
        every: int = 1,
    ):
        """sampler, prune: None as the study began. every: epochs between evaluations."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.metric, self.seed, self.space = folder, metric, seed, space
        self._distributions = {one.key: _distribution(one) for one in space}
        self._storage = optuna.storages.RDBStorage(
            "sqlite:///study.db",  # by the function below: the folder's name may have any signs
            {"creator": partial(sqlite3.connect, folder / "study.db")},
        )
        direction = StudyDirection.MAXIMIZE if self.is_maximized else StudyDirection.MINIMIZE
        self._kept = optuna.create_study(
            storage=self._storage, study_name="shoal", direction=direction, load_if_exists=True
        )
        self.sampler = self._as_begun("sampler", sampler, SAMPLERS)
        prune = self._as_begun("prune", prune, PRUNERS)
        self.grid = grid(space) if self.sampler == "grid" else None
        # The same trials in memory, with their curves, for samplers and pruners.
        self._memory = optuna.storages.InMemoryStorage()
        pruner = _pruner(prune, every)
        self._study = optuna.create_study(storage=self._memory, direction=direction, pruner=pruner)
        self._seen: dict[int, int] = {}  # trial -> how much of its curve the pruner has seen
        self._stops: dict[int, int] = {}  # trial -> where in its curve the pruner stopped it
        self._sizes: dict[int, int] = {}
        for one in self._kept.get_trials(deepcopy=False):
            curve = self.curve(one.number)[: one.user_attrs.get("evaluations")]
            self._study.add_trial(_copy(one, dict(curve) if one.state.is_finished() else {}))

    def _as_begun(self, name: str, given: str | None, known: tuple[str, ...]) -> str:
        """What the study began with; the first of those known where nothing is given."""
        began = self._kept.user_attrs.get(name)
        if began is None:
            began = given or known[0]
            self._kept.set_user_attr(name, began)
        if given not in (None, began):
            raise ValueError(
                f"{self.folder} was begun with {name} {began}; leave --{name} out, or name another "
                "folder with --output"
            )
        return began

    def wanted(self, given: int | None) -> int:
        """How many trials the search shall have: those given now, or at the last call."""
        number = given or self._kept.user_attrs.get("trials", 30)
        self._kept.set_user_attr("trials", number)
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
        done = [one for one in self.trials if one.state == TrialState.COMPLETE]
        return sorted(done, key=lambda one: (sign * (one.value or 0.0), one.number))

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
        """Key -> its share in what tells good trials from others; empty where too few are done."""
        if len(self.ranking) < ENOUGH:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {key: round(share, 4) for key, share in found.items() if math.isfinite(share)}

    @property
    def count(self) -> float:
        """How many different trials the space has."""
        try:
            return math.prod(len(one.steps) for one in self.space)
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
        self._kept.add_trial(running)
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
            study.enqueue_trial({k: _encode(v) for k, v in first.items() if self._has(k, v)})
        tried = [self.values(one) for one in self.trials]
        for _ in range(ATTEMPTS):
            trial = study.ask(self._distributions)
            if self._decoded(trial.params) not in tried:
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
        curve, score = self.curve(number), result.get("best_valid", {}).get(self.metric)
        stopped = self._stopped_at(number, curve)
        attributes: dict[str, Any] = {}
        values: list[float] | None = None
        if stopped is not None:
            state, values = TrialState.PRUNED, [curve[stopped][1]]
            attributes["evaluations"] = stopped + 1
        elif isinstance(score, float) and math.isfinite(score):
            state, values = TrialState.COMPLETE, [score]
        else:
            state, attributes["problem"] = TrialState.FAIL, problem
        rungs = {  # what successive halving compares
            key: value
            for key, value in self.trials[number].system_attrs.items()
            if key.startswith("completed_rung")
        }
        for storage, study in ((self._memory, self._study), (self._storage, self._kept)):
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

    def _has(self, key: str, value: Any) -> bool:
        """Whether the space has this value."""
        one = next(one for one in self.space if one.key == key)
        if one.choices:
            return _encode(value) in map(_encode, one.choices)
        if type(value) not in (int, float) or (one.is_whole and not isinstance(value, int)):
            return False
        return self._distributions[key]._contains(value)


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


def _pruner(name: str, every: int) -> BasePruner:
    """every: epochs between evaluations."""
    if name == "pace":
        return PacePruner()
    return (
        SuccessiveHalvingPruner(min_resource=UNHALVED * every) if name == "halving" else NopPruner()
    )


def _distribution(one: Parameter) -> BaseDistribution:
    if one.choices:
        return CategoricalDistribution([_encode(value) for value in one.choices])
    if one.is_whole:
        step = 1 if one.step is None else int(one.step)
        return IntDistribution(int(one.low), int(one.high), log=one.log, step=step)
    return FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def _encode(value: Any) -> Any:
    """A choice as Optuna keeps it: lists and mappings as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else inline(value)


def _decode(one: Parameter, value: Any) -> Any:
    """A value as a config takes it; of a range, with as many digits as matter."""
    for choice in one.choices:
        if _encode(choice) == value and type(_encode(choice)) is type(value):
            return choice
    return float(f"{value:.6g}") if isinstance(value, float) else value
