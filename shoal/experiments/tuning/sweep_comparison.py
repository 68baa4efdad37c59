"""The comparison of a sweep's runs: means, intervals and paired tests for every data set.

Runs are compared user by user where they keep values of users, and seed by seed otherwise. Where
config files of models name different protocols, means are shown and nothing is tested.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.experiments.report.comparison import protocol_difference
from shoal.experiments.report.statistics import holm, mean_interval, paired
from shoal.runs.run_record import RunRecord
from shoal.training.metrics import higher_is_better


@dataclass(frozen=True)
class Result:
    """A run that has ended well, with what it left behind."""

    model: str
    seed: int
    metric: str  # the one that decides
    record: RunRecord


def compare(results: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """For every data set and metric: mean and interval of each model, and p against the best.

    The best is chosen by the validation metric; p-values of one metric are corrected by Holm. Runs
    of different protocols have separate means and intervals: no best, no difference, no test.
    """
    comparisons: list[dict[str, Any]] = []
    for data, runs in results.items():
        names = list(dict.fromkeys(one.model for one in runs))
        by_model = {name: [one for one in runs if one.model == name] for name in names}
        if not names:
            comparisons.append({"data": data, "best": None, "metrics": {}})
            continue
        metric = runs[0].metric
        sign = 1.0 if higher_is_better(metric) else -1.0
        difference = _protocol_difference(runs)
        best = None
        if difference is None:
            best = max(names, key=lambda name: sign * _mean_valid(by_model[name], metric))
        shared = [name for name in runs[0].record.test if all(name in r.record.test for r in runs)]
        compared = {name: _compared(by_model, name, best) for name in shared}
        protocols = {name: by_model[name][0].record.summary["protocol"] for name in names}
        row = {"data": data, "decided_by": metric, "best": best, "protocols": protocols}
        comparisons.append({**row, "no_test": difference, "metrics": compared})
    return comparisons


def _protocol_difference(runs: list[Result]) -> str | None:
    """How the protocols of runs differ, of one seed each; None where they do not."""
    first: dict[int, Result] = {}
    for run in runs:
        first_run = first.setdefault(run.seed, run)
        if (difference := protocol_difference(first_run.record, run.record)) is not None:
            return difference
    return None


def _compared(
    by_model: dict[str, list[Result]], metric: str, best: str | None
) -> dict[str, dict[str, Any]]:
    """Model -> mean over seeds, interval; difference from the best one and p, if there is one."""
    values, unit = comparable_values(by_model, metric)
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in by_model.items():
        _, low, high = mean_interval(values[name])
        row: dict[str, Any] = {"mean": _mean_test(runs, metric), "seeds": len(runs)}
        rows[name] = {**row, "low": _number(low), "high": _number(high), "over": unit}
    if best is None:
        return rows
    others = [name for name in by_model if name != best]
    differences = [
        paired(values[best], values[name])
        if len(values[best]) == len(values[name])
        else None  # a run failed, and users or seeds cannot be paired
        for name in others
    ]
    ps = holm([float("nan") if one is None else float(one.p) for one in differences])
    for name, difference, p in zip(others, differences, ps):
        if difference is not None:
            rows[name] |= {"difference": _number(difference.difference), "p": _number(p)}
    return rows


def comparable_values(
    by_model: dict[str, list[Result]], metric: str
) -> tuple[dict[str, np.ndarray], str]:
    """What is compared: each user's mean over seeds where all runs keep them, else the seeds."""
    users = {name: [_by_user(run, metric) for run in runs] for name, runs in by_model.items()}
    tables = [table for runs in users.values() for table in runs]
    if all(tables) and len({tuple(table) for table in tables}) == 1:
        means = {
            name: np.mean([list(table.values()) for table in runs], axis=0)
            for name, runs in users.items()
        }
        return means, "users"
    seeds = {
        name: np.array([run.record.test[metric] for run in runs]) for name, runs in by_model.items()
    }
    return seeds, "seeds"


def _by_user(run: Result, metric: str) -> dict[str, float]:
    """User -> value of a metric, by name; empty where the run keeps none."""
    users = run.record.users
    if users is None or metric not in users.columns:
        return {}
    return dict(sorted(zip(users["user"].to_list(), users[metric].to_list())))


def _mean_test(runs: list[Result], metric: str) -> float:
    return float(np.mean([run.record.test[metric] for run in runs]))


def _mean_valid(runs: list[Result], metric: str) -> float:
    return float(np.mean([run.record.best_valid[metric] for run in runs]))


def _number(value: Any) -> float | None:
    """A number for JSON: NaN, the deviation of a single seed, becomes None."""
    return float(value) if np.isfinite(value) else None
