"""The page of several runs: the first is what the others are compared with."""

from collections import Counter
from typing import Any

from shoal.config.sizes import show_size
from shoal.config.yaml_io import inline
from shoal.experiments.report import figures
from shoal.experiments.report.comparison import (
    FEW_USERS,
    SIGNIFICANT,
    Difference,
    compare,
    overlap,
    same_data,
    why_not,
)
from shoal.experiments.report.quality import ActivityGroup, by_activity, catalogue
from shoal.experiments.report.run_page import (
    memory_peak,
    notes,
    seconds_by_part,
    test_intervals,
    time_text,
)
from shoal.experiments.report.statistics import MeanInterval
from shoal.pages.html import Html, Numeral, escape, grid, join, page, section, table
from shoal.runs.run_files import mapping, number
from shoal.runs.run_record import RunRecord, short

MOST_METRICS = 10  # that are compared
MOST_LINES = 8  # of one plot: as many as there are colours
# Keys that may differ without an effect on the outcome.
SILENT = ("run.output", "run.root", "run.log", "run.log_level", "run.progress")


def compare_page(records: list[RunRecord]) -> str:
    """The page that compares several runs, as one file that needs nothing else."""
    intervals = [test_intervals(record) for record in records]
    metric = deciding(records)
    first, others = records[0], records[1:]
    reasons = {
        other.name: reason for other in others if (reason := why_not(first, other)) is not None
    }
    comparable = [other for other in others if other.name not in reasons]
    metrics = _metrics(records, metric)
    differences = compare(first, comparable, metrics)
    return page(
        f"{len(records)} runs compared",
        Html(f"<p>{escape(_outcome(records, metric, differences))}</p>"),
        notes(records),
        _test_table(records, intervals, metrics),
        _differences(first, metric, differences, reasons),
        _curves(records, metric),
        _config(records),
        _recommended(records, comparable),
        _costs(records),
    )


def deciding(records: list[RunRecord]) -> str:
    """The metric that decides in the first run that tested it; it is compared first."""
    return next((one.metric for one in records if one.metric in one.test), records[0].metric)


def _metrics(records: list[RunRecord], metric: str) -> list[str]:
    """Metrics that are compared: the deciding one, then those that most runs have."""
    counts = Counter(name for record in records for name in record.test if name != metric)
    return [metric, *(name for name, _ in counts.most_common(MOST_METRICS - 1))]


def _sign(record: RunRecord) -> int:
    return -1 if record.result.get("higher_is_better") is False else 1


def _outcome(
    records: list[RunRecord], metric: str, differences: dict[str, list[Difference]]
) -> str:
    """Which run validation chooses, what it reaches in the test, and whether that is chance."""
    tested = [record for record in records if metric in record.test]
    if not tested:
        return "None of these runs has a test result yet."
    first, sign = records[0], _sign(tested[0])
    rivals = [
        record for record in tested if metric in record.best_valid and same_data(tested[0], record)
    ]
    if not rivals:
        return f"None of these runs was validated by {metric}, so none is chosen."
    best = max(rivals, key=lambda record: sign * record.best_valid[metric])
    name, num_others = short(best.name, 60), len(records) - len(rivals)
    text = (
        f"{name} is best by {metric} on the valid split, {best.best_valid[metric]:.4f}; on the "
        f"test split it reaches {best.test[metric]:.4f}. "
    )
    if num_others:
        text += (
            f"{num_others} of the {len(records)} runs cannot be chosen: other data, or not "
            f"validated and tested by {metric}. "
        )
    rows_by_run = {name: row for name, row in differences.items() if row[0].metric == metric}
    if best is first:
        return text + _summarize_verdicts([_verdict(row[0], sign) for row in rows_by_run.values()])
    if best.name not in rows_by_run:
        return text + f"It cannot be compared with {short(first.name, 60)} user by user."
    difference = differences[best.name][0]
    verdict = "more than chance" if difference.is_significant else "not more than chance may make"
    return text + (
        f"That is {difference.difference:+.4f} beside {short(first.name, 60)} (95 % interval "
        f"{difference.low:+.4f} to {difference.high:+.4f}), {verdict} ({p_text(difference.p)})."
    )


def _summarize_verdicts(verdicts: list[str]) -> str:
    """How many runs differ from the first, which is the best, in the test."""
    if not verdicts:
        return "No other run can be compared with it user by user."
    number = len(verdicts)
    compared = "The run" if number == 1 else f"Of the {number} runs"
    text = f"{compared} that can be compared with it user by user"
    if number == 1:
        verdict_texts = {
            "worse": "is worse",
            "better": "is better",
            "equal": "is neither better nor worse",
        }
        return f"{text} {verdict_texts[verdicts[0]]} on the test split, beyond chance."
    counts = [(verdicts.count(kind), kind) for kind in ("worse", "better")]
    phrases = [f"{n} {'is' if n == 1 else 'are'} {kind}" for n, kind in counts if n]
    return f"{text}, {' and '.join(phrases) or 'none is better or worse'} on the test split, " + (
        "beyond chance."
    )


def _verdict(difference: Difference, sign: int) -> str:
    if not difference.is_significant:
        return "equal"
    return "better" if sign * difference.difference > 0 else "worse"


def p_text(p: float) -> str:
    """p = 0.031; small ones as a bound."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _test_table(
    records: list[RunRecord], intervals: list[dict[str, MeanInterval]], metrics: list[str]
) -> Html:
    heads = ["run", "model", "protocol", f"{short(metrics[0], 30)}, best valid"]
    heads += [short(name, 30) for name in metrics]
    rows: list[list[Any]] = []
    for record, run_intervals in zip(records, intervals):
        row: list[Any] = [short(record.name, 60), short(record.summary["model"], 30)]
        row.append(short(record.summary["protocol"] or "–", 60))
        row.append(record.best_valid.get(metrics[0]))
        for name in metrics:
            value = record.test.get(name)
            row.append(
                None
                if value is None
                else _two_lines(f"{value:.4f}", _half_width(run_intervals.get(name)))
            )
        rows.append(row)
    text = "With half of the 95 % interval over users, where their values are known."
    return section("Test", text, table(heads, rows))


def _half_width(interval: MeanInterval | None) -> str:
    return (
        ""
        if interval is None or interval.low != interval.low
        else f"± {(interval.high - interval.low) / 2:.4f}"
    )


def _two_lines(above: str, below: str) -> Numeral:
    return Numeral(f'{above}<br><span class="soft">{escape(below)}</span>' if below else above)


def _differences(
    first: RunRecord,
    metric: str,
    differences: dict[str, list[Difference]],
    reasons: dict[str, str],
) -> Html:
    parts: list[Any] = []
    sign = _sign(first)
    lines = [
        (name, row[0].difference, row[0].low, row[0].high, _verdict(row[0], sign))
        for name, row in differences.items()
        if row[0].metric == metric
    ]
    if lines:
        parts.append(figures.differences(lines, metric))
    if differences:
        metrics = list({one.metric: None for row in differences.values() for one in row})
        rows = []
        for name, row in differences.items():
            by_metric = {one.metric: one for one in row}
            shares = f"{100 * row[0].better:.0f} / {100 * row[0].worse:.0f}"
            cells = [_cell(by_metric.get(one)) for one in metrics]
            rows.append([short(name, 60), Numeral(shares), *cells])
        heads = ["run", "users better / worse, %", *(short(name, 30) for name in metrics)]
        parts.append(table(heads, rows))
    refusal_lines = [
        short(f"{name} is not tested against it: {reason}.", 400)
        for name, reason in reasons.items()
    ]
    refusals = [Html(f'<p class="soft">{escape(line)}</p>') for line in refusal_lines]
    tests = sum(map(len, differences.values()))
    users = min((row[0].users for row in differences.values()), default=0)
    text = f"How much each run is above {short(first.name, 60)}, user by user. "
    if differences:
        tests_text = f"{tests:,} comparisons" if tests > 1 else "one comparison"
        text += (
            f"Lines are 95 % intervals over {users:,} users drawn anew. A p below {SIGNIFICANT} is "
            f"more than chance; it is corrected for the {tests_text} of this page (Holm)."
        )
    if differences and users < FEW_USERS:
        text += f" {users} users are few for any test."
    return section(f"Differences from {short(first.name, 60)}", text, *parts, *refusals)


def _cell(difference: Difference | None) -> Any:
    if difference is None:
        return None
    text = f"{difference.difference:+.4f}"
    return _two_lines(f"<b>{text}</b>" if difference.is_significant else text, p_text(difference.p))


def _curves(records: list[RunRecord], metric: str) -> Html:
    small = figures.small_multiples(records, metric)
    if not small:
        return Html("")
    text = (
        f"{metric} on the valid split by epoch, the best epoch marked, before the other runs in "
        "grey. Dashed: the training loss, on a scale of each plot."
    )
    return section("Curves", text, Html(f'<div class="small-grid">{join(small)}</div>'))


def _config(records: list[RunRecord]) -> Html:
    keys = {key: None for record in records for key in record.config if key not in SILENT}
    rows = []
    for key in keys:
        shown = ["–" if key not in r.config else inline(r.config[key]) for r in records]
        if len(set(shown)) > 1:
            rows.append([short(key, 80), *(short(value, 60) for value in shown)])
    if not rows:
        return section("Config", "All keys are the same.")
    heads = ["key", *(short(record.name, 40) for record in records)]
    return section("Config", "Keys that differ.", table(heads, rows[:300]))


def _recommended(records: list[RunRecord], comparable: list[RunRecord]) -> Html:
    catalogues = {
        record.name: items for record in records if (items := catalogue(record)) is not None
    }
    if not catalogues:
        return Html("")
    first, comparable_by_name = records[0], {record.name: record for record in comparable}
    rows = [
        [
            short(name, 60),
            Numeral(f"{100 * items.coverage:.1f}"),
            Numeral(f"{100 * items.top_tenth:.1f}"),
            Numeral(f"{items.popularity:,.0f}"),
            Numeral(f"{items.gini:.3f}"),
            Numeral(f"{100 * overlap(first, comparable_by_name[name]):.0f}")
            if name in comparable_by_name
            else None,
        ]
        for name, items in catalogues.items()
    ]
    heads = [
        "run",
        "items in some list, %",
        "places of the most popular tenth, %",
        "mean popularity",
        "Gini index",
        f"of a list as in {short(first.name, 30)}, %",
    ]
    shown = [record for record in records if record.name in catalogues][:MOST_LINES]
    drawn_note = f" The first {MOST_LINES} are drawn." if len(catalogues) > MOST_LINES else ""
    text = (
        "Popularity is the number of training interactions. Gini index: 0 where all items are "
        f"recommended alike, 1 where always the same few are.{drawn_note}"
    )
    plots = [figures.concentrations(shown)]
    metric = deciding(records)
    plotted = [record for record in (first, *comparable) if metric in record.user_metrics]
    plotted = plotted[:MOST_LINES]
    groups = {record.name: by_activity(record, metric) for record in plotted}
    # Samples of users by other seeds have other groups.
    groups_by_run = {
        k: v for k, v in groups.items() if _labels(v) == _labels(groups[plotted[0].name])
    }
    if groups_by_run:
        plots.append(figures.activity(groups_by_run, metric))
    return section("What is recommended to whom", text, table(heads, rows), grid(*plots))


def _labels(groups: list[ActivityGroup]) -> list[str]:
    return [one.label for one in groups]


def _costs(records: list[RunRecord]) -> Html:
    names = {name: None for record in records for name in seconds_by_part(record)}
    rows = []
    for record in records:
        seconds = seconds_by_part(record)
        total = number(mapping(record.result, "seconds").get("total"))
        peak = memory_peak(record)
        parts = [Numeral(time_text(seconds[n])) if n in seconds else None for n in names]
        rows.append(
            [
                short(record.name, 60),
                len(record.epochs),
                *parts,
                None if total is None else Numeral(time_text(total)),
                Numeral(show_size(peak)) if peak else None,
            ]
        )
    heads = ["run", "epochs", *names, "in all", "host memory, peak"]
    return section("Seconds and memory", "", table(heads, rows))
