"""The page of one run."""

from collections.abc import Callable
from typing import Any

from shoal.config.keys import KEYS
from shoal.config.sizes import show_size
from shoal.config.yaml_io import inline
from shoal.experiments.report import figures
from shoal.experiments.report.examples import lists_of_users, most_recommended
from shoal.experiments.report.plan_section import planned_and_measured
from shoal.experiments.report.quality import by_activity, by_popularity, catalogue
from shoal.experiments.report.statistics import MeanInterval, mean_interval
from shoal.pages.html import Html, Numeral, escape, facts, grid, join, page, section, table
from shoal.runs.results import base_name
from shoal.runs.run_files import mapping, number, numbers
from shoal.runs.run_record import RunRecord, short

MOST_METRICS = 60  # that a page shows
OTHER_CURVES = 8  # small plots, after the loss and the deciding metric


def run_page(record: RunRecord) -> str:
    """The page of a run, as one file that needs nothing else."""
    return page(short(record.name), *(section_of(record) for section_of in SECTIONS))


def _outcome(record: RunRecord) -> Html:
    return Html(f"<p>{escape(outcome(record, test_intervals(record)))}</p>")


def _notes(record: RunRecord) -> Html:
    return notes([record])


def _test_and_seconds(record: RunRecord) -> Html:
    return grid(_test_table(record, test_intervals(record)), _seconds(record))


def _plan_and_ranks(record: RunRecord) -> Html:
    return grid(planned_and_measured(record), _loss_by_rank(record))


def outcome(record: RunRecord, intervals: dict[str, MeanInterval]) -> str:
    """The outcome of a run, in a sentence."""
    summary, metric = record.summary, record.metric
    subject = f"{short(summary['model'], 60)} on {short(summary['data'], 60)}"
    value = record.test.get(metric)
    if value is None:
        reason = f": {short(summary['reason'], 300)}" if summary["reason"] else ""
        return f"{subject} {_state(summary['state'])} after {len(record.epochs)} epochs{reason}."
    text = f"{subject} reaches {metric} {value:.4f} on the test split"
    if metric in intervals and intervals[metric].low == intervals[metric].low:
        text += f" (95 % interval over users: {interval_text(intervals[metric])})"
    if record.best_epoch is not None:
        text += f", with epoch {record.best_epoch} as the best of {len(record.epochs)}"
    return text + "."


def _state(state: str) -> str:
    phrases = {"finished": "finished without a test", "not finished": "ended without a result"}
    return {**phrases, "running": "is in training, and has no result"}.get(state, state)


def test_intervals(record: RunRecord) -> dict[str, MeanInterval]:
    """Intervals of the test metrics that were computed from the users' values in the run."""
    names = [name for name in record.user_metrics if name in record.test]
    if record.users is None or not names:
        return {}
    interval = mean_interval(record.users.select(names).to_numpy())
    kept = {name: MeanInterval(*(part[k] for part in interval)) for k, name in enumerate(names)}
    foreign = [name for name, one in kept.items() if not _belongs(record, name, float(one.mean))]
    if foreign:
        record.missing.append(
            f"evaluation/users.parquet is of another evaluation than result.json: the means of "
            f"{short(', '.join(foreign))} differ, so no intervals of these are shown"
        )
    return {name: one for name, one in kept.items() if name not in foreign}


def _belongs(record: RunRecord, name: str, mean: float) -> bool:
    """Whether users' values can be what the test metric is the mean of; a sample may differ."""
    return record.is_sample or abs(mean - record.test[name]) <= 1e-4 * max(1.0, abs(mean))


def interval_text(interval: MeanInterval) -> str:
    """0.2311 – 0.2502; a dash alone where there is none."""
    return "–" if interval.low != interval.low else f"{interval.low:.4f} – {interval.high:.4f}"


def _facts(record: RunRecord) -> Html:
    result, shown = record.result, {}
    if record.metric in record.test:
        shown[f"{record.metric}, test"] = f"{record.test[record.metric]:.4f}"
    if record.metric in record.best_valid:
        shown[f"{record.metric}, best valid"] = f"{record.best_valid[record.metric]:.4f}"
    if record.epochs:
        shown["epochs"] = f"{len(record.epochs):,}"
    if record.evaluated:
        shown["users tested"] = f"{record.evaluated:,}"
    if seconds := number(mapping(result, "seconds").get("total")):
        shown["time"] = time_text(seconds)
    if memory := memory_peak(record):
        shown["memory, all processes"] = show_size(memory)
    if isinstance(result.get("world_size"), int):
        shown["processes"] = f"{result['world_size']:,}"
    return facts({short(name, 40): value for name, value in shown.items()})


def notes(records: list[RunRecord]) -> Html:
    """What is not shown, and why; a line each."""
    many = len(records) > 1
    lines = [
        f"{record.name}: {text}" if many else text for record in records for text in record.missing
    ]
    lines += [
        f"{record.name + ': ' if many else ''}figures over users are of a fixed sample of "
        f"{len(record.users):,} of {record.evaluated:,} users"
        for record in records
        if record.users is not None and record.is_sample
    ]
    return join(Html(f'<p class="soft">{escape(short(line, 400))}</p>') for line in lines[:100])


def _curves(record: RunRecord) -> Html:
    loss, metric = figures.losses(record), record.metric
    if not record.epochs:
        return Html("")
    large = [("Training loss", loss), (f"{metric}, valid", figures.validated(record, metric))]
    plots = [
        section(short(name), "", figures.curve(points, name, record.best_epoch))
        for name, points in large
        if len(points) > 1  # a model that is solved in one pass has no course
    ]
    names = {name: None for line in record.epochs for name in line.valid if name != metric}
    others = {name: figures.validated(record, name) for name in list(names)[:OTHER_CURVES]}
    small = [
        figures.curve(points, name, record.best_epoch, small=True)
        for name, points in others.items()
        if len(points) > 1
    ]
    rows = Html(f'<div class="small-grid">{join(small)}</div>') if small else ""
    return join([grid(*plots), rows])


def _test_table(record: RunRecord, intervals: dict[str, MeanInterval]) -> Html:
    test, valid = record.test, record.best_valid
    if not test and not valid:
        return Html("")
    base = numbers(record.result.get("base"))
    rows = []
    for name in list({**test, **valid})[:MOST_METRICS]:
        interval = interval_text(intervals[name]) if name in intervals else None
        row: list[Any] = [short(name, 60), test.get(name), interval, valid.get(name)]
        rows.append([*row, base.get(name)] if base else row)
    text = ""
    if intervals:
        assert record.users is not None
        text = (
            f"The interval is that of Student's t over {len(record.users):,} users, at 95 %: how "
            "far another set of such users would move the figure."
        )
    heads = ["metric", "test", "95 % interval", "best valid", *([base_name(base)] if base else [])]
    return section("Test", text, table(heads, rows))


def _single_features(record: RunRecord) -> Html:
    """AUC of each feature alone (click models), with a warning for those that may leak."""
    features = mapping(record.result, "single_features")
    rows, warned = [], []
    for name in list(features)[:MOST_METRICS]:
        auc = number(mapping(features, name).get("auc"))
        if auc is not None:
            rows.append((short(name, 60), auc))
            warned += [name] if mapping(features, name).get("warned") is True else []
    if not rows:
        return Html("")
    text = (
        "AUC of one feature alone, on a sample of the rows to validate on: half of them tell the "
        "share of clicks of each value, which ranks the other half. Users and items are left out."
    )
    warnings = [
        Html(
            f'<p class="bad">{escape(short(name, 60))} alone predicts suspiciously well, or about '
            "as well as the model. If it is known only after what is predicted, the metrics mean "
            "nothing: leave its column out (data.unload).</p>"
        )
        for name in warned
    ]
    return section("Features alone", text, join(warnings), table(["feature", "AUC alone"], rows))


def _seconds(record: RunRecord) -> Html:
    seconds = seconds_by_part(record)
    memory = _memory(record)
    if not seconds and not memory:
        return Html("")
    named = {f"{name}, {time_text(value)}": value for name, value in seconds.items()}
    picture = figures.seconds_bar(named) if named else ""
    return section("Seconds and memory", "", picture, memory)


def seconds_by_part(record: RunRecord) -> dict[str, float]:
    """Seconds of the run by what they were spent on; what is left is the rest."""
    recorded = mapping(record.result, "seconds")
    seconds = {
        "start": number(recorded.get("startup")) or 0.0,
        "training": sum(line.seconds[0] or 0.0 for line in record.epochs),
        "validation": sum(line.seconds[1] or 0.0 for line in record.epochs),
        "test": number(recorded.get("test")) or 0.0,
    }
    total = number(recorded.get("total")) or 0.0
    seconds["checkpoints and the rest"] = total - sum(seconds.values())
    return {name: value for name, value in seconds.items() if value > 0}


def _memory(record: RunRecord) -> Html | str:
    ranks = _ranks(record)
    if not ranks:
        return ""
    columns = {
        key: name for key, name in MEMORY.items() if any(rank_memory[key] for rank_memory in ranks)
    }
    rows = [
        (k, *(Numeral(show_size(int(n))) if (n := rank_memory[key]) else None for key in columns))
        for k, rank_memory in enumerate(ranks[:64])
    ]
    return table(["rank", *columns.values()], rows)


# Key of a rank's memory in bytes -> its title.
MEMORY = {"host_peak": "host memory, peak", "gpu_peak": "GPU memory, peak"}


def _ranks(record: RunRecord) -> list[dict[str, float | None]]:
    memories = record.result.get("memory")
    ranks = memories if isinstance(memories, list) else []
    return [{k: number(one.get(k)) for k in MEMORY} for one in ranks if isinstance(one, dict)]


def memory_peak(record: RunRecord) -> int:
    """Bytes of host memory that all processes had at their peaks."""
    return int(sum(one["host_peak"] or 0 for one in _ranks(record)))


def gpu_memory_peak(record: RunRecord) -> int:
    """Bytes of GPU memory that all processes had at their peaks; 0 without a GPU."""
    return int(sum(one["gpu_peak"] or 0 for one in _ranks(record)))


def _by_user_and_item(record: RunRecord) -> Html:
    parts = []
    metric = record.metric
    if metric in record.user_metrics:
        text = "Users by how much of them was trained on; lines are 95 % intervals."
        plot = figures.activity({record.name: by_activity(record, metric)}, metric)
        parts.append(section("Quality by activity of users", text, plot))
    if record.items is not None:
        parts.append(_by_popularity(record))
    return grid(*parts) if parts else Html("")


def _by_popularity(record: RunRecord) -> Html:
    groups, metric = by_popularity(record, record.metric), record.metric
    text = (
        "Items by how often they were trained on. Hits: the share of their places in lists that "
        "are right."
    )
    heads = ["training", "items", "hits, %"]
    rows: list[list[Any]] = [[group.label, group.items, _percent(group.hits)] for group in groups]
    if any(group.tested for group in groups):
        text += (
            " To find: their test interactions; found: how many of these are in the list of the "
            "user (recall)."
        )
        heads += ["to find", "found, %"]
        for row, group in zip(rows, groups):
            row += [group.tested, _percent(group.recall)]
    if any(group.value is not None for group in groups):
        text += f" {short(metric, 30)}: of one of these, as if it were the user's only one."
        heads.append(short(metric, 30))
        for row, group in zip(rows, groups):
            row.append(group.value)
    plot = figures.popularity(groups)
    return section("Quality by popularity of items", text, plot, table(heads, rows))


def _percent(share: float | None) -> Numeral | None:
    return None if share is None else Numeral(f"{100 * share:.1f}")


def _recommended(record: RunRecord) -> Html:
    items = catalogue(record)
    if items is None:
        return Html("")
    text = (
        f"{items.coverage:.0%} of {items.items:,} items are in the list of some user. The tenth "
        f"that was trained on most has {items.top_tenth:.0%} of all places; a recommended item has "
        f"{items.popularity:,.0f} training interactions on average. Gini index {items.gini:.3f} "
        "(0: all items alike, 1: always the same few)."
    )
    return grid(
        section("What is recommended", text, figures.concentrations([record])),
        most_recommended(record),
    )


def _tables(record: RunRecord) -> Html:
    tables, hits = mapping(record.result, "tables"), mapping(record.result, "hits")
    heads = ["table", "rows", "dim", "trained", "mean norm", "smallest", "largest"]
    heads += ["hits a row", "most hits", "without hits"] if hits else []
    rows = []
    for name, table_facts in list(tables.items())[:200]:
        if isinstance(table_facts, dict):
            counts = [_whole(table_facts, key) for key in ("rows", "dim", "trained")]
            norms = [
                number(mapping(table_facts, "norm").get(key)) for key in ("mean", "min", "max")
            ]
            table_hits, mean = mapping(hits, name), number(mapping(hits, name).get("mean"))
            hit_cells: list[Any] = [None if mean is None else Numeral(f"{mean:,.1f}")]
            hit_cells += [_whole(table_hits, "max"), _whole(table_hits, "none")]
            rows.append((short(name, 60), *counts, *norms, *hit_cells)[: len(heads)])
    if not rows:
        return Html("")
    sampled = any(
        isinstance(table_facts, dict) and table_facts.get("sampled")
        for table_facts in tables.values()
    )
    text = "Norms are lengths of rows. Trained: rows that are not as they began."
    text += " Of large tables a sample of rows was measured." if sampled else ""
    text += (
        " Hits: how often the row's user or item stands in the training split (negatives and "
        "repeats in histories come on top)."
        if hits
        else ""
    )
    return section("Rows", text, table(heads, rows))


def _whole(values: dict[str, Any], key: str) -> int | None:
    value = number(values.get(key))
    return None if value is None else int(value)


def _loss_by_rank(record: RunRecord) -> Html:
    if not any(line.ranks for line in record.epochs):
        return Html("")
    return section("Loss by rank", "", figures.loss_by_rank(record))


def _config(record: RunRecord) -> Html:
    if not record.config:
        return Html("")
    shown = {key: value for key, value in record.config.items() if not _is_default(key, value)}
    rows = [(short(key, 80), _value(value)) for key, value in shown.items()][:500]
    all_keys = "\n".join(f"{short(key)}: {_value(value)}" for key, value in record.config.items())
    whole = Html(f"<details><summary>Every key</summary><pre>{escape(all_keys)}</pre></details>")
    text = "Keys that are not at their defaults."
    return section("Config", text, table(["key", "value"], rows), whole)


def _is_default(key: str, value: Any) -> bool:
    return key in KEYS and inline(_plain(KEYS[key].default)) == inline(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _value(value: Any) -> str:
    return short(inline(value), 200)


def time_text(seconds: float) -> str:
    """12.3 s, 4 min 10 s, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
    )


# The parts of the page in their order. A part is empty where the run has no such thing.
SECTIONS: list[Callable[[RunRecord], Html]] = [
    _outcome,
    _facts,
    _notes,
    _curves,
    _test_and_seconds,
    _by_user_and_item,
    _single_features,
    _recommended,
    lists_of_users,
    _tables,
    _plan_and_ranks,
    _config,
]
