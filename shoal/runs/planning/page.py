"""A plan as one page: the ranking, a step's timeline, a roofline, scaling, what would change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.config.row_rules import show_size
from shoal.config.yaml_io import inline
from shoal.pages.look import Html, Numeral, escape, facts, grid, page, section, table
from shoal.pages.plots import INK, LINE, SERIES, SOFT, figure
from shoal.runs.planning.choosing import advice, keys
from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.links import Reach
from shoal.runs.planning.planned import Planned
from shoal.runs.planning.prediction import PARTS, Prediction
from shoal.runs.planning.scaling import Curves, scaling
from shoal.runs.planning.showing import NAMES, TimePlan, duration
from shoal.runs.planning.simulated import Simulated
from shoal.runs.planning.work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOWN = 16  # layouts of a ranking, and tables
# A part's colour in a timeline: what is alike is alike.
COLOURS = {
    "input": 4,
    "rows_read": 0,
    "exchange_inside": 1,
    "exchange_between": 6,
    "dense_forward": 2,
    "dense_backward": 5,
    "all_reduce": 3,
    "rows_updated": 0,
    "optimizer": 7,
    "idle": 4,
}


@dataclass(frozen=True)
class PlanPage:
    """What a page shows."""

    plan: TimePlan
    scaling: Mapping[str, Curves]
    simulated: Simulated | None = None

    @property
    def work(self) -> Work:
        return self.plan.work

    @property
    def cluster(self) -> Cluster:
        return self.plan.cluster

    @property
    def best(self) -> Prediction:
        return self.plan.best

    def text(self) -> str:
        """The whole page."""
        where = f"{self.cluster.hosts:,} × {self.cluster.host.name}"
        return page(
            f"Plan: {self.work.name} on {where}",
            Html(f"<p>{escape(self._outcome())}</p>"),
            self._facts(),
            self._ranking(),
            grid(self._timeline(), self._roofline()),
            self._scaling(),
            grid(self._changes(), self._simulated()),
            grid(self._keys(), self._memory()),
            self._assumptions(),
        )

    def _outcome(self) -> str:
        best = self.best
        return (
            f"{_sentence(best.layout.title)} takes {_bars(best)} a step of {best.batch:,} samples. "
            f"It is bound by {best.binds}; what would help: {advice(best, self.cluster)}."
        )

    def _facts(self) -> Html:
        best = self.best
        shown: dict[str, Any] = {
            "samples a second": _count(best.samples_per_second),
            "an epoch": duration(best.epoch_seconds),
        }
        if best.epoch_cost:
            shown["cost of an epoch"] = f"{best.epoch_cost:,.2f}"
        shown["parameters in rows"] = _count(sum(t.rows * t.dim for t in self.work.tables))
        shown["dense parameters"] = _count(self.work.parameters)
        shown["processes"] = f"{best.layout.processes:,}"
        return facts(shown)

    def _ranking(self) -> Html:
        shown = self.plan.ranking[:MOST_SHOWN]
        fastest = min(one.epoch_seconds for one in shown)

        def draw(axes: Axes) -> None:
            for k, one in enumerate(shown):
                share = one.epoch_seconds / one.step.value
                low, high = share * one.step.low, share * one.step.high
                colour = SERIES[0] if one is self.best else SERIES[5] if one.fits else SOFT
                axes.barh(k, one.epoch_seconds, color=colour, alpha=0.85 if one.fits else 0.35)
                axes.plot([low, high], [k, k], color=INK, linewidth=1.2)
                axes.plot([low, high], [k, k], "|", color=INK, markersize=6)
            names = [_name(one) + ("" if one.fits else " (does not fit)") for one in shown]
            axes.set_yticks(range(len(shown)), names)
            axes.invert_yaxis()
            axes.grid(axis="x", color=LINE)
            axes.grid(visible=False, axis="y")
            slowest = max(one.epoch_seconds for one in shown)
            if slowest > 20 * fastest:
                _logarithmic(axes, "x")
            axes.set_xlabel("seconds of an epoch; lines: what they may be")

        rows = [
            (
                Html(f"<b>{escape(_name(one))}</b>") if one is self.best else _name(one),
                Numeral(escape(_bars(one))),
                Numeral(_count(one.samples_per_second)),
                Numeral(duration(one.epoch_seconds)),
                Numeral(f"{one.epoch_cost:,.2f}") if one.epoch_cost else None,
                _size(one.device_bytes),
                _size(one.host_bytes),
                _size(one.link_bytes["inside"]),
                _size(one.link_bytes["between"]),
                "yes" if one.fits else "no",
                one.binds,
            )
            for one in shown
        ]
        heads = ["layout", "a step", "samples a second", "an epoch", "cost", "memory of a device"]
        heads += ["of a host", "sent inside hosts", "between", "fits", "bound by"]
        text = (
            "Fastest first, those that do not fit last. The range holds what the step may be where "
            "each assumption is at its better or worse end, alone. Sent: by a device in a step."
        )
        plot = _drawn(draw, "seconds of an epoch by layout", 7.5, 0.6 + 0.3 * len(shown))
        return section("Ranking", text, plot, table(heads, rows))

    def _timeline(self) -> Html:
        best = self.best
        total = best.step.value

        def draw(axes: Axes) -> None:
            start = 0.0
            named = [(name, best.parts[name]) for name in PARTS if best.parts.get(name, 0.0) > 0]
            for k, (name, ms) in enumerate(named):
                axes.barh(k, ms, left=start, color=SERIES[COLOURS[name]], height=0.7)
                hidden = best.hidden.get(name, 0.0)
                if hidden:
                    axes.barh(k, hidden, left=start + ms, color=SOFT, alpha=0.3, height=0.7)
                start += ms
            labels = [f"{NAMES.get(name, name)}, {_ms(ms)}" for name, ms in named]
            axes.set_yticks(range(len(named)), labels)
            axes.invert_yaxis()
            axes.set_xlim(0, 1.02 * max(total, 1e-9))
            axes.grid(axis="x", color=LINE)
            axes.grid(visible=False, axis="y")
            axes.set_xlabel("milliseconds")

        text = "Parts add up to the step; grey: what runs beside others and costs nothing."
        return section("One step", text, _drawn(draw, "parts of a step over time", height=3.4))

    def _roofline(self) -> Html:
        points = roofline_points(self.work, self.cluster, self.best)
        device = self.cluster.host.device
        rate, reach = self.cluster.efficiency, Reach.of(self.work, self.cluster, self.best.layout)
        speed = reach.stream / rate.stream.value
        cores = reach.products / rate.gemm.value / peak_of(self.work, self.cluster)

        def draw(axes: Axes) -> None:
            edges = [x for x, _ in points.values()] or [1.0]
            peaks = {name: cores * value for name, value in device.flops.items()}
            used = self.work.precision if self.work.precision in peaks else "float32"
            right = 10.0 * max(max(peaks.values()) / speed, *edges)
            left = min(0.05, 0.3 * min(edges))
            xs = [left * (right / left) ** (k / 100) for k in range(101)]
            for name in sorted({used, "float32"}, key=lambda name: peaks[name]):
                roof = [min(peaks[name], speed * x) for x in xs]
                main = name == used
                axes.plot(xs, roof, color=SERIES[0] if main else SOFT, linewidth=1.6 if main else 1)
                axes.text(right, 1.15 * peaks[name], name, ha="right", fontsize=8, color=SOFT)
            for k, (name, (x, y)) in enumerate(points.items()):
                axes.plot([x], [y], "o", color=SERIES[1 + k], label=name)
            _logarithmic(axes, "x")
            _logarithmic(axes, "y")
            axes.set_ylim(top=4.0 * max(peaks.values()))
            axes.set_xlabel("operations for a byte of memory")
            axes.set_ylabel("operations a second")
            axes.legend(fontsize=8, loc="lower right")

        text = (
            f"Of one {'device' if self.cluster.host.on_gpu else 'process'}. The line is what its "
            "memory and its peak allow: points on the slope are bound by memory, under the flat "
            "part by operations; what is far below waits for something else."
        )
        return section("Roofline", text, _drawn(draw, "roofline of a device", height=3.4))

    def _scaling(self) -> Html:
        plots = []
        for title, curves in self.scaling.items():
            if max((len(one) for one in curves.values()), default=0) < 2:
                continue

            def draw(axes: Axes, curves: Mapping[str, Any] = curves) -> None:
                first = max(one[0] for one in curves.values() if one)
                for k, (name, points) in enumerate(curves.items()):
                    hosts, speeds = zip(*points)
                    axes.plot(hosts, speeds, color=SERIES[k % 8], label=name, linewidth=1.5)
                most = max(points[-1][0] for points in curves.values())
                ideal = [first[1], first[1] * most / first[0]]
                axes.plot([first[0], most], ideal, color=SOFT, linestyle=":", label="ideal")
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
                _logarithmic(axes, "y")
                axes.set_xlabel("hosts")
                axes.set_ylabel("samples a second")
                axes.legend(fontsize=7, loc="upper left")

            plots.append(section(title, "", _drawn(draw, f"samples a second by hosts: {title}")))
        if not plots:
            return section("Scaling", "There is no link between hosts in the cluster's file.")
        text = "Samples a second on more hosts of the same kind; a curve begins where it fits."
        return Html(section("Scaling", text) + grid(*plots))

    def _changes(self) -> Html:
        rows = [
            (name, Numeral(_ms(ms)), Numeral(f"{factor:.2f} ×"))
            for name, ms, factor in self.plan.changes
        ]
        text = f"One thing changed at a time, for {self.best.layout.title}."
        return section("What if", text, table(["change", "a step", "samples a second"], rows))

    def _simulated(self) -> Html:
        found = self.simulated
        if found is None:
            return Html("")
        job = found.job
        text = (
            f"{found.title}. Each of {job.hosts:,} hosts fails every "
            f"{job.hours_between_failures:,.0f} hours on average, and all processes start again "
            "from the last checkpoint."
        )
        return section("Simulated", text, table(["", ""], found.rows()))

    def _keys(self) -> Html:
        chosen = keys(self.best)
        if self.simulated is not None:
            chosen |= self.simulated.keys
        lines = "\n".join(f"--{key}={inline(value)}" for key, value in chosen.items())
        return section("The plan as keys", "", Html(f"<pre>{escape(lines)}</pre>"))

    def _memory(self) -> Html:
        every = sorted(self.work.tables, key=lambda one: -one.bytes)
        rows = [
            (one.name, one.rows, one.dim, _size(one.bytes), Numeral(f"{one.ids:,.3g}"))
            for one in every[:MOST_SHOWN]
        ]
        text = f"{show_size(int(self.work.table_bytes))} with the optimizer's state."
        if len(every) > MOST_SHOWN:
            text += f" The largest {MOST_SHOWN} of {len(every):,}."
        return section(
            "Tables", text, table(["table", "rows", "dim", "size", "ids a sample"], rows)
        )

    def _assumptions(self) -> Html:
        rows = [
            (
                one.name,
                Numeral(_figure(one.value)),
                Numeral(f"{_figure(one.low)} – {_figure(one.high)}"),
                Numeral(f"+{_ms(one.effect_ms)}"),
                one.source,
            )
            for one in self.best.assumptions
        ]
        text = (
            "Shares of a peak, or seconds. Effect: how much longer the step is where the figure is "
            f"at its worse end. Work: {'; '.join(self.work.sources) or 'given'}."
        )
        heads = ["assumption", "value", "range", "effect", "from"]
        return section("Assumptions", text, table(heads, rows))


def peak_of(work: Work, cluster: Cluster) -> float:
    """Operations a second of a device's data sheet, at the precision of the work."""
    flops = cluster.host.device.flops
    return flops.get(work.precision) or flops["float32"]


def plan_page(planned: Planned) -> str:
    """The page of what `shoal plan` computed of a model with steps."""
    assert planned.time is not None
    plan = planned.time
    return PlanPage(plan, scaling(plan.work, plan.cluster), planned.simulated).text()


def roofline_points(
    work: Work, cluster: Cluster, best: Prediction
) -> dict[str, tuple[float, float]]:
    """Of one process: operations for a byte, and operations a second, of dense work, rows, all.

    Bytes of rows are those that their time stands for; an addition is counted for two numbers that
    are moved.
    """
    layout, reach = best.layout, Reach.of(work, cluster, best.layout)
    slices = 1 if layout.strategy == "ps" and layout.mode == "async" else layout.processes
    local = work.batch / slices
    todo = (work.forward + work.backward).times(local) + work.forward_step + work.backward_step
    operations = todo.products + todo.attention
    moved = todo.elementwise + 3.0 * 4 * work.parameters
    seconds = 1e-3 * (best.parts["dense_forward"] + best.parts["dense_backward"])
    row_seconds = 1e-3 * (best.parts["rows_read"] + best.parts["rows_updated"])
    row_bytes = row_seconds * reach.gather
    row_operations = row_bytes / 8
    points = {}
    if operations and seconds and moved:
        points["dense"] = (operations / moved, operations / seconds)
    if row_bytes:
        points["rows"] = (1 / 8, row_operations / row_seconds)
    whole, every = operations + row_operations, moved + row_bytes
    if whole and every and best.step.value:
        points["the whole step"] = (whole / every, whole / (1e-3 * best.step.value))
    return points


def _logarithmic(axes: Axes, which: str) -> None:
    """An axis of powers of ten, with plain words at its ticks."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: _count(value))
    axis.set_minor_formatter(lambda value, _: "")


def _drawn(
    draw: Callable[[Axes], None], label: str, width: float = 5.6, height: float = 2.8
) -> Html:
    """A plot; a line where the library for them is missing."""
    try:
        return figure(draw, label, width, height)
    except ValueError as error:
        return Html(f'<p class="soft">{escape(error)}</p>')


def _name(one: Prediction) -> str:
    return f"{one.layout.title} × {one.layout.processes:,}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bars(one: Prediction) -> str:
    """3.5 ms (3.1 – 4.2)"""
    low, high = (f"{x:,.3g}" if x < 1000 else f"{x:,.0f}" for x in (one.step.low, one.step.high))
    return f"{_ms(one.step.value)} ({low} – {high})"


def _ms(ms: float) -> str:
    return f"{ms:,.3g} ms" if ms < 1000 else f"{ms:,.0f} ms"


def _count(number: float) -> str:
    """15.7 M"""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:,.3g} {unit}"
    return f"{number:,.3g}"


def _size(size: float) -> Numeral | None:
    return Numeral(show_size(int(size))) if size else None


def _figure(value: float) -> str:
    """A share as it is, seconds with their unit."""
    if value >= 1e-3:
        return f"{value:.3g}"
    return f"{1e6 * value:.3g} µs" if value >= 1e-7 else f"{1e9 * value:.3g} ns"
