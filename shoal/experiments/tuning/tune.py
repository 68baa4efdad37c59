"""Searches from Python: the same as `shoal tune`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal import how_to_install
from shoal.config.plugins import refuse_while_running
from shoal.runs.results import StudyResult
from shoal.runs.run import resolve


def tune(
    model: str | None = None,
    dataset: str | None = None,
    config_file_list: Sequence[str | Path] | None = None,
    config_dict: dict[str, Any] | None = None,
    *,
    space: str | Path | dict[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    sampler: str | None = None,
    prune: str | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    jobs: int = 1,
    finalists: int = 3,
    seeds: int = 1,
    launch: str | None = None,
    trust: bool = False,
    **values: Any,
) -> StudyResult:
    """Search for the best hyper-parameters; what study.json holds. Other keywords: config keys.

    space: a file, a mapping, or None for the default space of the model (docs/reference/tune.md).
    trust: run code that a search which is continued names in its space or in its trials.

    >>> import shoal
    >>> small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}, "epochs": 1}
    >>> space = {"learning_rate": [0.01, 0.1]}
    >>> study = shoal.tune("BPR", "synthetic", space=space, trials=2, output="runs/study", **small)
    ... # doctest: +ELLIPSIS
    runs/study: 2 of 2 trials to train
    ...
    >>> study["best"]["params"]["train.optimizer.lr"] in (0.01, 0.1), study["folder"]
    (True, 'runs/study')
    """
    refuse_while_running("shoal.tune")
    need_optuna()
    from shoal.experiments.tuning.search import SearchLimits, search

    config_values = {**(config_dict or {}), **values}
    config_values |= {
        key: v for key, v in (("model", model), ("dataset", dataset)) if v is not None
    }
    resolved = resolve(config_file_list or (), (), config_values, trust=trust)
    limits = SearchLimits(
        trials=trials,
        minutes=minutes,
        jobs=jobs,
        finalists=finalists,
        seeds=seeds,
        launch=launch,
    )
    study = search(
        resolved,
        space=space,
        output=output,
        resume=resume,
        sampler=sampler,
        prune=prune,
        limits=limits,
        trust=trust,
    )
    return StudyResult(study)


def need_optuna() -> None:
    """Refuse to search without Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ValueError(f"a search needs Optuna: {how_to_install('tune')}") from None
