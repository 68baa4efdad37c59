"""The plan of a run compared with what it measured, part by part."""

from shoal.config.sizes import show_size
from shoal.pages.html import Html, Numeral, section, table
from shoal.runs.run_files import mapping, number
from shoal.runs.run_record import RunRecord, short

MOST_TABLES = 200
PHASES = {
    "forward_backward": "rows read, forward and backward",
    "update": "exchange, rows updated, optimizer",
    "rest": "input and the rest",
}

Row = tuple[str, Numeral | None, Numeral | None]  # part, planned, measured


def planned_and_measured(record: RunRecord) -> Html:
    """A line for each part; a planner of something else adds its lines here."""
    rows, times = _memory(record), _times(record)
    if not rows:
        return times
    plan = mapping(record.result, "plan")
    holder = str(plan.get("holder", "process"))
    text = f"Of the fullest {short(holder, 20)}. Planned: as the command shoal plan computes it."
    if holder == "server":
        text += " Servers do not report what they measured."
    heads = ["part", "planned", "measured"]
    return Html(section("Planned and measured", text, table(heads, rows)) + times)


def _times(record: RunRecord) -> Html:
    """What `shoal plan --compare` left in the run's folder."""
    plan, phases = record.plan, mapping(record.plan, "phases")
    planned, measured = number(plan.get("predicted_ms")), number(plan.get("measured_ms"))
    if planned is None or not measured:
        return Html("")
    low, high = number(plan.get("low_ms")), number(plan.get("high_ms"))
    rows: list[Row] = []
    for name, text in PHASES.items():
        times = mapping(phases, name)
        rows.append((text, _ms(times.get("predicted_ms")), _ms(times.get("measured_ms"))))
    rows.append(("a whole step", _ms(planned), _ms(measured)))
    text = f"Milliseconds of a step; predicted {planned / measured - 1:+.0%} of what was measured."
    if low is not None and high is not None:
        text += f" It was to lie between {low:.3g} and {high:.3g}."
    return section("Predicted and measured", text, table(["part", "predicted", "measured"], rows))


def _memory(record: RunRecord) -> list[Row]:
    plan = mapping(record.result, "plan")
    ranks = record.result.get("memory")
    rank_memories = (
        [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    )
    planned = mapping(plan, "tables")
    table_sizes = [mapping(one, "tables") for one in rank_memories]
    names = list({name: None for one in (planned, *table_sizes) for name in one})
    if not names:
        return []
    rows: list[Row] = []
    for name in names[:MOST_TABLES]:
        sizes = [size for one in table_sizes if (size := number(one.get(name))) is not None]
        grows = name in planned and planned[name] is None
        first = Numeral("grows") if grows else _size(number(planned.get(name)))
        rows.append((f"rows of {short(name, 60)}", first, _size(max(sizes, default=None))))
    totals = [sum(number(size) or 0.0 for size in one.values()) for one in table_sizes]
    whole = [number(plan.get(place)) for place in ("host", "gpu")]
    all_planned = (
        sum(one or 0.0 for one in whole) if any(one is not None for one in whole) else None
    )
    rows.append(("rows of all tables", _size(all_planned), _size(max(totals, default=None))))
    for key, name in (("host_peak", "host"), ("gpu_peak", "GPU")):
        peaks = [size for one in rank_memories if (size := number(one.get(key))) is not None]
        if peaks:
            label = f"{name} memory at its peak: rows, model, data and program"
            rows.append((label, None, _size(max(peaks))))
    return rows


def _ms(value: object) -> Numeral | None:
    milliseconds = number(value)
    return None if milliseconds is None else Numeral(f"{milliseconds:.3g}")


def _size(size: float | None) -> Numeral | None:
    return None if size is None else Numeral(show_size(int(size)))
