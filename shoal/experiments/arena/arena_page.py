"""The page of an arena: who is best on what, how sure that is, and what it took."""

from typing import Any

from shoal.experiments.arena import arena_text
from shoal.experiments.arena.rank_plot import rank_plot
from shoal.experiments.report.run_page import time_text
from shoal.pages.html import Html, Numeral, escape, facts, join, page, section, table
from shoal.runs.run_record import short


def arena_page(report: dict[str, Any], file_text: str) -> str:
    """The page of what arena.json holds; file_text: of the arena's file."""
    parts: list[Any] = [_facts(report), *map(_paragraph, arena_text.notes(report))]
    if report["problems"]:
        rows = arena_text.problem_rows(report)
        parts.append(section("Problems", "", table(arena_text.PROBLEM_HEADS, rows)))
    if len(report["data"]) > 1:
        parts.append(_ranks("Ranks over data sets", report["ranks"]))
    parts += [_data_section(report, row) for row in report["data"]]
    parts.append(_seconds(report))
    if report["best_values"]:
        parts.append(_best_values(report))
    parts.append(section("The file", "", Html(f"<pre>{escape(file_text)}</pre>")))
    return page(arena_text.title(report), *parts)


def _facts(report: dict[str, Any]) -> Html:
    figures: dict[str, Any] = {
        "runs with figures": f"{report['finished_runs']} of {report['runs']}",
        "time of all runs": time_text(arena_text.total_seconds(report)),
    }
    cost = arena_text.total_cost(report)
    if cost is not None:
        figures["cost"] = f"{cost:.4g}"
    for row in report["data"]:
        if row["best"] is not None:
            figures[f"best on {short(row['data'], 40)}"] = short(row["best"], 40)
    return facts(figures)


def _paragraph(text: str) -> Html:
    return Html(f"<p>{escape(text)}</p>")


def _ranks(headline: str, ranks: dict[str, Any]) -> Html:
    """The plot of critical differences, or a table of ranks where it cannot be drawn."""
    text = arena_text.ranks_text(ranks)
    if "missing" in ranks:
        return section(headline, text)
    try:
        drawing = Html(f'<div style="max-width: 46rem">{rank_plot(ranks)}</div>')
    except ValueError as error:
        rows = [(short(model, 60), rank) for model, rank in zip(ranks["models"], ranks["average"])]
        drawing = join([_paragraph(f"No plot: {error}."), table(("model", "average rank"), rows)])
    return section(headline, text, drawing)


def _data_section(report: dict[str, Any], row: dict[str, Any]) -> Html:
    """The figures of a data set, beside those of others, and the ranks over its users."""
    text = arena_text.outcome_of_data(row)
    if not row["metrics"]:
        return section(row["data"], text)
    metrics = list(row["metrics"])
    names = arena_text.names_of_models(report, row)
    rows: list[list[Any]] = []
    for model, name in names.items():
        label = Html(f"<b>{escape(name)}</b>") if model == row["best"] else name
        cells = [_cell(row["metrics"][metric].get(model)) for metric in metrics]
        rows.append([label, *cells])
    for figures in row["published"]:
        source = f'<br><span class="soft">{escape(short(figures["source"], 120))}</span>'
        name = Html(f"{escape(short(figures['model'], 60))}, published{source}")
        values = [figures["metrics"].get(metric) for metric in metrics]
        rows.append([name, *(None if x is None else Numeral(f"{x:.4f}") for x in values)])
    heads = ["model", *metrics]
    return Html(
        section(row["data"], text, table(heads, rows))
        + _ranks(f"Ranks over the users of {row['data']}", row["ranks"])
    )


def _cell(figure: dict[str, Any] | None) -> Numeral | None:
    """A figure above its intervals."""
    lines = arena_text.figure_lines(figure)
    if not lines:
        return None
    below = "".join(f'<br><span class="soft">{escape(line)}</span>' for line in lines[1:])
    return Numeral(lines[0] + below)


def _seconds(report: dict[str, Any]) -> Html:
    """What runs took, a table for all data sets."""
    heads = arena_text.cost_heads(report)
    rows = [
        [
            short(row["data"], 60),
            short(model, 60),
            *map(_right, arena_text.cost_cells(heads, row["costs"][model])),
        ]
        for row in report["data"]
        for model in report["models"]
        if model in row["costs"]
    ]
    if not rows:
        return Html("")
    text = "Means over seeds, behind ± half of the interval over them; memory is the largest."
    if report["price_per_hour"] is not None:
        text += f" Cost: at {report['price_per_hour']:g} an hour."
    return section("Seconds and memory", text, table(["data", *heads], rows))


def _right(text: str) -> Numeral:
    return Numeral(escape(text))


def _best_values(report: dict[str, Any]) -> Html:
    """What searches found."""
    rows = [
        (short(searched["model"], 60), short(searched["data"], 60), key, str(value))
        for searched in report["best_values"]
        for key, value in searched["values"].items()
    ]
    text = "The best values of each search, by validation of the first seed; all seeds have them."
    return section("Searched", text, table(("model", "data", "key", "value"), rows))
