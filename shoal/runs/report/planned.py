"""What was planned of a run beside what it measured, part by part."""

from shoal.config.row_rules import show_size
from shoal.pages.look import Html, Numeral, section, table
from shoal.runs.report.reading import RunRecord, inner, number, short

MOST_TABLES = 200

Row = tuple[str, Numeral | None, Numeral | None]  # part, planned, measured


def planned_and_measured(record: RunRecord) -> Html:
    """A line for each part; a planner of something else adds its lines here."""
    rows = _memory(record)
    if not rows:
        return Html("")
    plan = inner(record.result, "plan")
    holder = str(plan.get("holder", "process"))
    text = f"Of the fullest {short(holder, 20)}. Planned: as the command shoal plan computes it."
    if holder == "server":
        text += " Servers do not report what they measured."
    heads = ["part", "planned", "measured"]
    return section("Planned and measured", text, table(heads, rows))


def _memory(record: RunRecord) -> list[Row]:
    plan = inner(record.result, "plan")
    ranks = record.result.get("memory")
    every = [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    planned = inner(plan, "tables")
    held = [inner(one, "tables") for one in every]
    names = list({name: None for one in (planned, *held) for name in one})
    if not names:
        return []
    rows: list[Row] = []
    for name in names[:MOST_TABLES]:
        found = [size for one in held if (size := number(one.get(name))) is not None]
        grows = name in planned and planned[name] is None
        first = Numeral("grows") if grows else _size(number(planned.get(name)))
        rows.append((f"rows of {short(name, 60)}", first, _size(max(found, default=None))))
    totals = [sum(number(size) or 0.0 for size in one.values()) for one in held]
    whole = [number(plan.get(place)) for place in ("host", "gpu")]
    all_planned = (
        sum(one or 0.0 for one in whole) if any(one is not None for one in whole) else None
    )
    rows.append(("rows of all tables", _size(all_planned), _size(max(totals, default=None))))
    for key, name in (("host_peak", "host"), ("gpu_peak", "GPU")):
        peaks = [size for one in every if (size := number(one.get(key))) is not None]
        if peaks:
            what = f"{name} memory at its peak: rows, model, data and program"
            rows.append((what, None, _size(max(peaks))))
    return rows


def _size(size: float | None) -> Numeral | None:
    return None if size is None else Numeral(show_size(int(size)))
