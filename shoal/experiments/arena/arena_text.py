"""The sentences and cells that the page of an arena, its Markdown and its command share."""

from typing import Any

from shoal.config.sizes import show_size
from shoal.experiments.report.comparison import FEW_USERS
from shoal.experiments.report.comparison_page import p_text
from shoal.experiments.report.run_page import time_text
from shoal.runs.run_record import short
from shoal.training.metrics import higher_is_better

INTERVALS = (
    "A figure is the mean over seeds on the test split. Behind ± is half of its 95 % interval: "
    "over seeds, how far other seeds of training would move it; over users, how far other users "
    "would. p: the paired test against the model that validation chose (*), corrected by Holm."
)
PROBLEM_HEADS = ("model", "data", "seed", "state", "reason")
ONE_SEED = "One seed alone: there is no interval over seeds."


def title(report: dict[str, Any]) -> str:
    """The headline: how much was compared."""
    numbers = [len(report["models"]), len(report["data"]), len(report["seeds"])]
    names = [
        f"{number} {name}{'s' * (number != 1)}"
        for number, name in zip(numbers, ("model", "data set", "seed"))
    ]
    return f"Arena: {', '.join(names)}"


def notes(report: dict[str, Any]) -> list[str]:
    """What a reader must know before the figures."""
    lines = []
    if report["finished_runs"] < report["runs"]:
        lines.append(
            f"{report['finished_runs']} of {report['runs']} runs have figures; why the others have "
            "none is listed."
        )
    if len(report["seeds"]) == 1:
        lines.append(ONE_SEED)
    return [*lines, INTERVALS] if report["finished_runs"] else lines


def outcome_of_data(row: dict[str, Any]) -> str:
    """Which model validation chose on a data set, and what it reaches in the test."""
    if not row["metrics"]:
        return f"No run on {row['data']} has figures."
    protocols = {text for text in row["protocols"].values() if text}
    tested = f" Tested: {protocols.pop()}." if len(protocols) == 1 else ""
    if row["no_test"] is not None:
        return f"No test, since the runs are not comparable: {row['no_test']}.{tested}"
    best, metric = row["best"], row["decided_by"]
    text = f"{best} is best by {metric} on validation"
    figure = row["metrics"].get(metric, {}).get(best)
    if figure is not None:
        text += f", and reaches {figure['mean']:.4f} on the test split"
    users = row["ranks"].get("users", FEW_USERS)
    if users < FEW_USERS:
        text += f"; {users} user{'s are' if users > 1 else ' is'} too few to tell models apart"
    return f"{text}.{tested}"


def names_of_models(report: dict[str, Any], row: dict[str, Any]) -> dict[str, str]:
    """The models with figures on a data set -> their names: BPR *, LightGCN (2 of 3 seeds)."""
    names = {}
    for model in report["models"]:
        if model in row["costs"]:
            seeds, in_all = row["costs"][model]["runs"], len(report["seeds"])
            name = short(model, 60) + " *" * (model == row["best"])
            names[model] = name + (f" ({seeds} of {in_all} seeds)" if seeds < in_all else "")
    return names


def figure_lines(figure: dict[str, Any] | None) -> list[str]:
    """A figure, its intervals and its p, a line each; empty where there is none."""
    if figure is None:
        return []
    lines = [f"{figure['mean']:.4f}"]
    for name in ("seeds", "users"):
        interval = figure[f"over_{name}"]
        if interval is not None:
            lines.append(f"± {(interval[1] - interval[0]) / 2:.4f} {name}")
    if figure.get("p") is not None:
        lines.append(p_text(figure["p"]))
    return lines


def ranks_text(ranks: dict[str, Any]) -> str:
    """What Friedman's and Nemenyi's tests say."""
    if "missing" in ranks:
        return f"There are no ranks to show: {ranks['missing']}."
    better = "highest" if higher_is_better(ranks["metric"]) else "lowest"
    text = (
        f"Average ranks by {ranks['metric']} over {ranks['blocks']:,} {ranks['over']}; 1 has the "
        f"{better} value. "
    )
    if ranks["p"] is not None:
        chance = "the models differ" if ranks["p"] < 0.05 else "chance may make such ranks"
        text += f"Friedman's test: {p_text(ranks['p'])}, {chance}. "
    elif len(ranks["models"]) < 3:
        text += "Friedman's test needs three models. "
    else:
        text += "Friedman's test: all ranks are tied. "
    text += (
        f"Ranks that are more than {ranks['critical_difference']:.2f} apart differ by more than "
        "chance (Nemenyi, 5 %); lines join models that do not."
    )
    if ranks.get("left_out"):
        text += f" Without {', '.join(ranks['left_out'])}: not on all data sets."
    return text + (f" {ranks['note']}." if ranks.get("note") else "")


def cost_heads(report: dict[str, Any]) -> list[str]:
    """The columns of seconds, memory and cost."""
    costs = [cost for row in report["data"] for cost in row["costs"].values()]
    heads = ["model", "epochs", "a run takes", "host memory", "GPU memory"]
    heads += ["search"] * any(cost["search_seconds"] for cost in costs)
    return heads + ["cost of all its runs"] * (report["price_per_hour"] is not None)


def cost_cells(heads: list[str], cost: dict[str, Any]) -> list[str]:
    """The cells of these columns, without the model."""
    taken = time_text(cost["seconds"])
    if cost["seconds_interval"] is not None:
        low, high = cost["seconds_interval"]
        taken += f" ± {time_text((high - low) / 2)}"
    cells = {
        "epochs": f"{cost['epochs']:.1f}".removesuffix(".0"),
        "a run takes": taken,
        "host memory": show_size(cost["host_bytes"]) if cost["host_bytes"] else "–",
        "GPU memory": show_size(cost["gpu_bytes"]) if cost["gpu_bytes"] else "–",
        "search": time_text(cost["search_seconds"]),
        "cost of all its runs": f"{cost.get('cost', 0.0):.4g}",
    }
    return [cells[head] for head in heads[1:]]


def problem_rows(report: dict[str, Any]) -> list[list[str]]:
    """Cells without figures: model, data set, seed, what happened."""
    return [
        [
            short(problem["model"], 60),
            short(problem["data"], 60),
            "all" if problem["seed"] is None else str(problem["seed"]),
            problem["state"],
            short(problem["reason"], 300),
        ]
        for problem in report["problems"]
    ]


def total_seconds(report: dict[str, Any]) -> float:
    """Seconds of all runs that have figures, and of searches."""
    return sum(
        cost["seconds"] * cost["runs"] + cost["search_seconds"]
        for row in report["data"]
        for cost in row["costs"].values()
    )


def total_cost(report: dict[str, Any]) -> float | None:
    """What all runs that have figures and the searches cost; None where no price is named."""
    if report["price_per_hour"] is None:
        return None
    return sum(cost["cost"] for row in report["data"] for cost in row["costs"].values())
