"""The tables of an arena's page as Markdown, and each figure in a line of csv."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.experiments.arena import arena_text

COLUMNS = (
    "data",
    "model",
    "metric",
    "state",
    "mean",
    "seeds",
    "low_over_seeds",
    "high_over_seeds",
    "low_over_users",
    "high_over_users",
    "p",
    "seconds",
    "host_bytes",
    "gpu_bytes",
    "search_seconds",
    "cost",
    "source",
    "reason",
)


def tables_markdown(report: dict[str, Any]) -> str:
    """The tables of the page, to be pasted into a README or an issue."""
    lines = [f"# {arena_text.title(report)}", ""]
    for note in arena_text.notes(report):
        lines += [note, ""]
    if report["problems"]:
        rows = arena_text.problem_rows(report)
        lines += ["## Problems", "", *_table(arena_text.PROBLEM_HEADS, rows), ""]
    if len(report["data"]) > 1:
        lines += ["## Ranks over data sets", "", *_ranks(report["ranks"]), ""]
    for row in report["data"]:
        lines += [f"## {_text(row['data'])}", "", arena_text.outcome_of_data(row), ""]
        if row["metrics"]:
            lines += [*_figures(report, row), ""]
            lines += [f"### Ranks over the users of {_text(row['data'])}", ""]
            lines += [*_ranks(row["ranks"]), ""]
    heads = arena_text.cost_heads(report)
    rows = [
        [row["data"], model, *arena_text.cost_cells(heads, row["costs"][model])]
        for row in report["data"]
        for model in report["models"]
        if model in row["costs"]
    ]
    if rows:
        lines += ["## Seconds and memory", "", *_table(["data", *heads], rows), ""]
    return "\n".join(lines)


def _figures(report: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """The table of one data set; figures of others stand below."""
    metrics = list(row["metrics"])
    rows = []
    for model, name in arena_text.names_of_models(report, row).items():
        label = f"**{_text(name)}**" if model == row["best"] else _text(name)
        cells = ["<br>".join(_lines(row["metrics"][metric].get(model))) for metric in metrics]
        rows.append([label, *cells])
    for figures in row["published"]:
        values = [figures["metrics"].get(metric) for metric in metrics]
        name = f"{_text(figures['model'])}, published: {_text(figures['source'])}"
        rows.append([name, *("–" if x is None else f"{x:.4f}" for x in values)])
    return _table(["model", *metrics], rows, escaped=True)


def _lines(figure: dict[str, Any] | None) -> list[str]:
    return arena_text.figure_lines(figure) or ["–"]


def _ranks(ranks: dict[str, Any]) -> list[str]:
    """What the tests say, and the average ranks."""
    text = [arena_text.ranks_text(ranks)]
    if "missing" in ranks:
        return text
    rows = [[model, f"{rank:.2f}"] for model, rank in zip(ranks["models"], ranks["average"])]
    return [*text, "", *_table(("model", "average rank"), rows)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], escaped: bool = False) -> list[str]:
    """The lines of a table; escaped: its cells are Markdown already."""
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        cells = row if escaped else map(_text, row)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(text: str) -> str:
    """Text that ends no cell and begins no markup."""
    for sign in "\\|*_`<[":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def figures_csv(report: dict[str, Any]) -> str:
    """A line for each figure of each model on each data set, and for each cell without one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in report["data"]:
        writer.writerows(_figure_lines(row))
    for problem in report["problems"]:
        line = {name: problem[name] for name in ("data", "model", "state", "reason")}
        writer.writerow(line | {"seeds": "" if problem["seed"] is None else problem["seed"]})
    return text.getvalue()


def _figure_lines(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for metric, figures in row["metrics"].items():
        for model, figure in figures.items():
            cost = row["costs"][model]
            yield {
                "data": row["data"],
                "model": model,
                "metric": metric,
                "state": "trained",
                "mean": figure["mean"],
                "seeds": figure["seeds"],
                "p": figure.get("p", ""),
                **_ends(figure["over_seeds"], "seeds"),
                **_ends(figure["over_users"], "users"),
                **{k: cost[k] for k in ("seconds", "host_bytes", "gpu_bytes", "search_seconds")},
                "cost": cost.get("cost", ""),
            }
    for published in row["published"]:
        for metric, value in published["metrics"].items():
            yield {
                "data": row["data"],
                "model": published["model"],
                "metric": metric,
                "state": "published",
                "mean": value,
                "source": published["source"],
            }


def _ends(interval: list[float] | None, name: str) -> dict[str, Any]:
    """The two ends of an interval, in their columns."""
    low, high = interval or ("", "")
    return {f"low_over_{name}": low, f"high_over_{name}": high}
