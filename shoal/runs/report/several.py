"""The page of several runs: the first is what the others are compared with."""

from collections import Counter
from typing import Any

from shoal.config.row_rules import show_size
from shoal.config.yaml_io import inline
from shoal.pages.look import Html, Numeral, escape, grid, join, page, section, table
from shoal.runs.report import figures
from shoal.runs.report.comparison import (
    FEW_USERS,
    SIGNIFICANT,
    Difference,
    compare,
    overlap,
    same_data,
    why_not,
)
from shoal.runs.report.quality import ActivityGroup, by_activity, catalogue
from shoal.runs.report.reading import RunRecord, number, short
from shoal.runs.report.single import memory_peak, notes, phase_seconds, test_intervals, time_text
from shoal.runs.report.statistics import MeanInterval

MOST_METRICS = 10  # that are compared
MOST_LINES = 8  # of one plot: as many as there are colours
# Keys that may differ, and say nothing of the outcome.
SILENT = ("run.output", "run.root", "run.log", "run.log_level", "run.progress")


def compare_page(records: list[RunRecord]) -> str:
    """One self-contained page."""
    intervals = [test_intervals(record) for record in records]
    metric = deciding(records)
    first, others = records[0], records[1:]
    reasons = {other.name: why for other in others if (why := why_not(first, other)) is not None}
    comparable = [other for other in others if other.name not in reasons]
    metrics = _metrics(records, metric)
    found = compare(first, comparable, metrics)
    return page(
        f"{len(records)} runs compared",
        Html(f"<p>{escape(_outcome(records, metric, found))}</p>"),
        notes(records),
        _test_table(records, intervals, metrics),
        _differences(first, metric, found, reasons),
        _curves(records, metric),
        _config(records),
        _recommended(records, comparable),
        _costs(records),
    )


def deciding(records: list[RunRecord]) -> str:
    """The metric that decides in the first run that tested it; it is compared first."""
    return next((one.metric for one in records if one.metric in one.test), records[0].metric)


def _metrics(records: list[RunRecord], metric: str) -> list[str]:
    """Those that are compared: the deciding one, then those that most runs have."""
    found = Counter(name for record in records for name in record.test if name != metric)
    return [metric, *(name for name, _ in found.most_common(MOST_METRICS - 1))]


def _sign(record: RunRecord) -> int:
    return -1 if record.result.get("higher_is_better") is False else 1


def _outcome(records: list[RunRecord], metric: str, found: dict[str, list[Difference]]) -> str:
    """Which run validation chooses, what it reaches in the test, and whether that is chance."""
    tested = [one for one in records if metric in one.test]
    if not tested:
        return "None of these runs has a test result yet."
    first, sign = records[0], _sign(tested[0])
    rivals = [one for one in tested if metric in one.best_valid and same_data(tested[0], one)]
    if not rivals:
        return f"None of these runs was validated by {metric}, so none is chosen."
    best = max(rivals, key=lambda one: sign * one.best_valid[metric])
    name, left = short(best.name, 60), len(records) - len(rivals)
    text = (
        f"{name} is best by {metric} on the valid part, {best.best_valid[metric]:.4f}; on the test "
        f"part it reaches {best.test[metric]:.4f}. "
    )
    if left:
        text += (
            f"{left} of the {len(records)} runs cannot be chosen: other data, or not validated and "
            f"tested by {metric}. "
        )
    known = {name: row for name, row in found.items() if row[0].metric == metric}
    if best is first:
        return text + _beside_the_others([_verdict(row[0], sign) for row in known.values()])
    if best.name not in known:
        return text + f"It cannot be compared with {short(first.name, 60)} user by user."
    one = found[best.name][0]
    verdict = "more than chance" if one.is_significant else "not more than chance may make"
    return text + (
        f"That is {one.difference:+.4f} beside {short(first.name, 60)} (95 % interval "
        f"{one.low:+.4f} to {one.high:+.4f}), {verdict} ({p_text(one.p)})."
    )


def _beside_the_others(verdicts: list[str]) -> str:
    """How many runs differ from the first, which is the best, in the test."""
    if not verdicts:
        return "No other run can be compared with it user by user."
    number = len(verdicts)
    compared = "The run" if number == 1 else f"Of the {number} runs"
    text = f"{compared} that can be compared with it user by user"
    if number == 1:
        said = {"worse": "is worse", "better": "is better", "equal": "is neither better nor worse"}
        return f"{text} {said[verdicts[0]]} on the test part, beyond chance."
    counts = [(verdicts.count(kind), kind) for kind in ("worse", "better")]
    some = [f"{n} {'is' if n == 1 else 'are'} {kind}" for n, kind in counts if n]
    return f"{text}, {' and '.join(some) or 'none is better or worse'} on the test part, " + (
        "beyond chance."
    )


def _verdict(one: Difference, sign: int) -> str:
    if not one.is_significant:
        return "equal"
    return "better" if sign * one.difference > 0 else "worse"


def p_text(p: float) -> str:
    """p = 0.031; small ones as a bound."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _test_table(
    records: list[RunRecord], intervals: list[dict[str, MeanInterval]], metrics: list[str]
) -> Html:
    heads = ["run", "model", f"{short(metrics[0], 30)}, best valid"]
    heads += [short(name, 30) for name in metrics]
    rows: list[list[Any]] = []
    for record, known in zip(records, intervals):
        row: list[Any] = [short(record.name, 60), short(record.summary["model"], 30)]
        row.append(record.best_valid.get(metrics[0]))
        for name in metrics:
            value = record.test.get(name)
            row.append(
                None if value is None else _two_lines(f"{value:.4f}", _half(known.get(name)))
            )
        rows.append(row)
    text = "With half of the 95 % interval over users, where their values are known."
    return section("Test", text, table(heads, rows))


def _half(one: MeanInterval | None) -> str:
    return "" if one is None or one.low != one.low else f"± {(one.high - one.low) / 2:.4f}"


def _two_lines(above: str, below: str) -> Numeral:
    return Numeral(f'{above}<br><span class="soft">{escape(below)}</span>' if below else above)


def _differences(
    first: RunRecord,
    metric: str,
    found: dict[str, list[Difference]],
    reasons: dict[str, str],
) -> Html:
    parts: list[Any] = []
    sign = _sign(first)
    lines = [
        (name, row[0].difference, row[0].low, row[0].high, _verdict(row[0], sign))
        for name, row in found.items()
        if row[0].metric == metric
    ]
    if lines:
        parts.append(figures.differences(lines, metric))
    if found:
        metrics = list({one.metric: None for row in found.values() for one in row})
        rows = []
        for name, row in found.items():
            by_metric = {one.metric: one for one in row}
            shares = f"{100 * row[0].better:.0f} / {100 * row[0].worse:.0f}"
            cells = [_cell(by_metric.get(one)) for one in metrics]
            rows.append([short(name, 60), Numeral(shares), *cells])
        heads = ["run", "users better / worse, %", *(short(name, 30) for name in metrics)]
        parts.append(table(heads, rows))
    said = [
        Html(
            f'<p class="soft">{escape(short(f"{name} is not tested against it: {why}.", 400))}</p>'
        )
        for name, why in reasons.items()
    ]
    tests = sum(map(len, found.values()))
    users = min((row[0].users for row in found.values()), default=0)
    text = f"How much each run is above {short(first.name, 60)}, user by user. "
    if found:
        made = f"{tests:,} comparisons" if tests > 1 else "one comparison"
        text += (
            f"Lines are 95 % intervals over {users:,} users drawn anew. A p below {SIGNIFICANT} is "
            f"more than chance; it is corrected for the {made} of this page (Holm)."
        )
    if found and users < FEW_USERS:
        text += f" {users} users are few for any test."
    return section(f"Differences from {short(first.name, 60)}", text, *parts, *said)


def _cell(one: Difference | None) -> Any:
    if one is None:
        return None
    text = f"{one.difference:+.4f}"
    return _two_lines(f"<b>{text}</b>" if one.is_significant else text, p_text(one.p))


def _curves(records: list[RunRecord], metric: str) -> Html:
    small = figures.small_multiples(records, metric)
    if not small:
        return Html("")
    text = (
        f"{metric} on the valid part by epoch, the best epoch marked, before the other runs in "
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
    found = {record.name: one for record in records if (one := catalogue(record)) is not None}
    if not found:
        return Html("")
    first, same = records[0], {record.name: record for record in comparable}
    rows = [
        [
            short(name, 60),
            Numeral(f"{100 * one.coverage:.1f}"),
            Numeral(f"{100 * one.top_tenth:.1f}"),
            Numeral(f"{one.popularity:,.0f}"),
            Numeral(f"{one.gini:.3f}"),
            Numeral(f"{100 * overlap(first, same[name]):.0f}") if name in same else None,
        ]
        for name, one in found.items()
    ]
    heads = [
        "run",
        "items in some list, %",
        "places of the most popular tenth, %",
        "mean popularity",
        "Gini index",
        f"of a list as in {short(first.name, 30)}, %",
    ]
    shown = [record for record in records if record.name in found][:MOST_LINES]
    more = f" The first {MOST_LINES} are drawn." if len(found) > MOST_LINES else ""
    text = (
        "Popularity is the number of training interactions. Gini index: 0 where all items are "
        f"recommended alike, 1 where always the same few are.{more}"
    )
    plots = [figures.concentrations(shown)]
    metric = deciding(records)
    drawn = [one for one in (first, *comparable) if metric in one.user_metrics][:MOST_LINES]
    groups = {one.name: by_activity(one, metric) for one in drawn}
    # Samples of users by other seeds have other groups.
    alike = {k: v for k, v in groups.items() if _labels(v) == _labels(groups[drawn[0].name])}
    if alike:
        plots.append(figures.activity(alike, metric))
    return section("What is recommended to whom", text, table(heads, rows), grid(*plots))


def _labels(groups: list[ActivityGroup]) -> list[str]:
    return [one.label for one in groups]


def _costs(records: list[RunRecord]) -> Html:
    names = {name: None for record in records for name in phase_seconds(record)}
    rows = []
    for record in records:
        seconds = phase_seconds(record)
        total = number((record.result.get("seconds") or {}).get("total"))
        peak = memory_peak(record)
        rows.append(
            [
                short(record.name, 60),
                len(record.epochs),
                *(Numeral(time_text(seconds[one])) if one in seconds else None for one in names),
                None if total is None else Numeral(time_text(total)),
                Numeral(show_size(peak)) if peak else None,
            ]
        )
    heads = ["run", "epochs", *names, "in all", "host memory, peak"]
    return section("Seconds and memory", "", table(heads, rows))
