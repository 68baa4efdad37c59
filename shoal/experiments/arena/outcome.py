"""What came of the runs of an arena: figures with their intervals, seconds, memory and cost.

A figure is the mean over seeds. Its interval over seeds says how far another seed would move it,
the one over users how far other users would. Tests are those of a sweep.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.experiments.arena.arena_file import ArenaFile
from shoal.experiments.arena.cells import Refusal
from shoal.experiments.arena.ranks import FEW_BLOCKS, rank_models
from shoal.experiments.report.run_page import gpu_memory_peak, memory_peak
from shoal.experiments.report.statistics import mean_interval
from shoal.experiments.tuning.sweep_comparison import Result, comparable_values, compare
from shoal.experiments.tuning.sweep_grid import Cell
from shoal.runs.run_files import mapping, number
from shoal.runs.run_record import RunRecord, one_line, read_record
from shoal.training.metrics import higher_is_better

WAITING = "not trained yet"


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    cell: Cell
    record: RunRecord | None  # None: it has no figures
    problem: str = ""  # why not, in a line

    @property
    def metric(self) -> str:
        """The validation metric that decides."""
        return self.cell.resolved.config.eval.valid_metric.lower()


def read_outcome(cell: Cell, folder: Path, problem: str) -> Outcome:
    """What came of the run of a cell; problem: why this call of the arena could not train it."""
    if not (folder / "result.json").is_file():
        return Outcome(cell, None, one_line(problem or WAITING, 500))
    outcome = Outcome(cell, read_record(folder, cell.model))
    assert outcome.record is not None
    for part in ("best_valid", "test"):
        if outcome.metric not in getattr(outcome.record, part):
            problem = f"it has no {outcome.metric} ({part}): training diverged, or had no epoch"
            return Outcome(cell, None, problem)
    return outcome


def conclude(
    arena: ArenaFile,
    outcomes: list[Outcome],
    refused: list[Refusal],
    search_seconds: dict[tuple[str, str], float],
    runs_at_once: int,
    best_values: dict[tuple[str, str], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """What arena.json holds.

    search_seconds, best_values: (model, data set) -> of its search, where there was one.
    runs_at_once: runs that share what has a price.
    """
    models = [one.cell.model for one in outcomes] + [one.model for one in refused]
    titles = [one.cell.data for one in outcomes] + [one.data for one in refused]
    report: dict[str, Any] = {
        "models": list(dict.fromkeys(models)),
        "seeds": arena.seeds,
        "price_per_hour": arena.price_per_hour,
        "runs": len(outcomes) + len(refused) * len(arena.seeds),
        "finished_runs": sum(one.record is not None for one in outcomes),
        "problems": _problems(outcomes, refused),
        "best_values": [
            {"model": model, "data": data, "values": values}
            for (model, data), values in (best_values or {}).items()
        ],
        "data": [],
    }
    price = None if arena.price_per_hour is None else arena.price_per_hour / runs_at_once
    for title in dict.fromkeys(titles):
        results = [
            Result(outcome.cell.model, outcome.cell.seed, outcome.metric, outcome.record)
            for outcome in outcomes
            if outcome.cell.data == title and outcome.record is not None
        ]
        report["data"].append(_conclude_data(title, results, search_seconds, price))
        report["data"][-1]["published"] = [
            asdict(row) for row in arena.published if row.data == title
        ]
    report["ranks"] = _ranks_over_data(report["models"], report["data"])
    return report


def _problems(outcomes: list[Outcome], refused: list[Refusal]) -> list[dict[str, Any]]:
    """Cells without figures, each with its reason."""
    failed = [
        {
            "model": outcome.cell.model,
            "data": outcome.cell.data,
            "seed": outcome.cell.seed,
            "state": "waiting" if outcome.problem == WAITING else "failed",
            "reason": outcome.problem,
        }
        for outcome in outcomes
        if outcome.record is None
    ]
    never_planned = [
        {
            "model": refusal.model,
            "data": refusal.data,
            "seed": None,
            "state": "refused",
            "reason": one_line(refusal.reason, 500),
        }
        for refusal in refused
    ]
    return failed + never_planned


def _conclude_data(
    title: str,
    results: list[Result],
    search_seconds: dict[tuple[str, str], float],
    price: float | None,
) -> dict[str, Any]:
    """The figures of one data set."""
    comparison = compare({title: results})[0]
    by_model: dict[str, list[Result]] = {}
    for result in results:
        by_model.setdefault(result.model, []).append(result)
    figures = {
        metric: {model: _figure(row, by_model[model], metric) for model, row in rows.items()}
        for metric, rows in comparison["metrics"].items()
    }
    return {
        **comparison,
        "metrics": figures,
        "costs": {
            model: _cost(runs, search_seconds.get((model, title), 0.0), price)
            for model, runs in by_model.items()
        },
        "ranks": _ranks_over_users(comparison, by_model),
    }


def _figure(row: dict[str, Any], runs: list[Result], metric: str) -> dict[str, Any]:
    """A figure of a sweep's comparison, with both intervals."""
    figure: dict[str, Any] = {
        "mean": row["mean"],
        "seeds": row["seeds"],
        "over_seeds": _interval([run.record.test[metric] for run in runs]),
        "over_users": [row["low"], row["high"]] if row["over"] == "users" else None,
    }
    if figure["over_users"] == [None, None]:
        figure["over_users"] = None
    return figure | {key: row[key] for key in ("difference", "p") if key in row}


def _interval(values: list[float]) -> list[float] | None:
    """The 95 % interval of the mean; None with one value."""
    _, low, high = mean_interval(values)
    return [float(low), float(high)] if np.isfinite(low) and np.isfinite(high) else None


def _cost(runs: list[Result], searched: float, price: float | None) -> dict[str, Any]:
    """Seconds of a run, memory, and what the runs of a model on a data set cost in all."""
    seconds = [run_seconds(run.record) for run in runs]
    cost: dict[str, Any] = {
        "runs": len(runs),
        "seconds": sum(seconds) / len(seconds),
        "seconds_interval": _interval(seconds),
        "epochs": sum(len(run.record.epochs) for run in runs) / len(runs),
        "host_bytes": max(memory_peak(run.record) for run in runs),
        "gpu_bytes": max(gpu_memory_peak(run.record) for run in runs),
        "search_seconds": searched,
    }
    if price is not None:
        cost["cost"] = (sum(seconds) + searched) / 3600 * price
    return cost


def run_seconds(record: RunRecord) -> float:
    """Seconds of a run, with those before it was killed and resumed."""
    seconds = mapping(record.result, "seconds")
    epochs = sum(part or 0.0 for line in record.epochs for part in line.seconds)
    start_and_test = sum(number(seconds.get(key)) or 0.0 for key in ("startup", "test"))
    return max(number(seconds.get("total")) or 0.0, start_and_test + epochs)


def _ranks_over_users(
    comparison: dict[str, Any], by_model: dict[str, list[Result]]
) -> dict[str, Any]:
    """Ranks of the models of one data set for each of its users, or why there are none.

    They are those of one seed: a mean over seeds has other ties than a model without chance.
    """
    if len(by_model) < 2:
        return {"missing": "fewer than two models have figures"}
    if comparison["no_test"] is not None:
        return {"missing": comparison["no_test"]}
    seeds = [{run.seed for run in runs} for runs in by_model.values()]
    if not (shared := set.intersection(*seeds)):
        return {"missing": "no seed has figures of all models"}
    seed, metric = min(shared), comparison["decided_by"]
    of_seed = {model: [run for run in runs if run.seed == seed] for model, runs in by_model.items()}
    values, unit = comparable_values(of_seed, metric)
    if unit != "users":
        return {"missing": f"the runs keep no {metric} of each user"}
    matrix = np.stack([values[model] for model in of_seed], axis=1)
    ranks = _ranked(list(of_seed), matrix, metric, f"users with seed {seed}")
    return {"users": len(matrix), **ranks}


def _ranks_over_data(models: list[str], data: list[dict[str, Any]]) -> dict[str, Any]:
    """Ranks of the models that have figures on all data sets, or why there are none."""
    if len(data) < 2:
        return {"missing": "one data set alone: the ranks over its users stand with it"}
    without = [row["data"] for row in data if not row["metrics"]]
    if without:
        return {"missing": f"there are no figures for {', '.join(without)}"}
    for row in data:
        if row["no_test"] is not None:
            return {"missing": f"{row['data']}: {row['no_test']}"}
    metrics = list(dict.fromkeys(row["decided_by"] for row in data))
    if len(metrics) > 1:
        return {"missing": f"data sets are judged by different metrics: {', '.join(metrics)}"}
    figures = [row["metrics"][metrics[0]] for row in data]
    ranked = [model for model in models if all(model in rows for rows in figures)]
    if len(ranked) < 2:
        return {"missing": "fewer than two models have figures on all data sets"}
    values = np.array([[rows[model]["mean"] for model in ranked] for rows in figures])
    ranks = _ranked(ranked, values, metrics[0], "data sets")
    ranks["left_out"] = [model for model in models if model not in ranked]
    if len(data) < FEW_BLOCKS:
        ranks["note"] = f"{len(data)} data sets are few: only large differences would show"
    return ranks


def _ranked(models: list[str], values: np.ndarray, metric: str, blocks: str) -> dict[str, Any]:
    """Ranks as arena.json has them."""
    if np.isfinite(values).all(axis=1).sum() < 2:
        return {"missing": f"fewer than two {blocks} have a {metric} of all models"}
    ranks = asdict(rank_models(models, values, higher_is_better(metric)))
    assert math.isfinite(ranks["critical_difference"])
    return {"metric": metric, "over": blocks, **ranks}
