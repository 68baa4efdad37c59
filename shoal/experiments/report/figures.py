"""The plots of reports."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.experiments.report.quality import ActivityGroup, PopularityGroup, concentration
from shoal.pages import plots
from shoal.pages.html import Html
from shoal.pages.plots import INK, LINE, SERIES, SOFT, figure
from shoal.runs.run_record import RunRecord, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1000  # of a curve: more look the same
SMALL = (2.7, 1.7)  # of one of many plots, in inches

Points = list[tuple[int, float]]


def losses(record: RunRecord) -> Points:
    """The training loss of each epoch that has one."""
    return [(line.epoch, line.loss) for line in record.epochs if line.loss is not None]


def validated(record: RunRecord, metric: str) -> Points:
    """A validation metric of each epoch that was evaluated."""
    values = [(line.epoch, line.valid.get(metric)) for line in record.epochs]
    return [(epoch, value) for epoch, value in values if value is not None]


def curve(points: Points, name: str, best: int | None, small: bool = False) -> Html:
    """A figure over epochs, with the best epoch marked."""

    def draw(axes: "Axes") -> None:
        _line(axes, points, SERIES[0], best)
        _mark_best(axes, points, best, not small)
        _epochs(axes, not small)
        if small:
            axes.set_title(short(name, 40), fontsize=9, color=INK)

    size = SMALL if small else (5.6, 2.8)
    return figure(draw, f"{short(name)} by epoch", *size)


def loss_by_rank(record: RunRecord) -> Html:
    """The loss of each rank by epoch."""
    lines = [line for line in record.epochs if line.ranks]
    ranks = max(len(line.ranks) for line in lines)

    def draw(axes: "Axes") -> None:
        for rank in range(min(ranks, 64)):
            losses = [(line.epoch, line.ranks[rank]) for line in lines if rank < len(line.ranks)]
            points = [(epoch, loss) for epoch, loss in losses if loss is not None]
            _line(axes, points, SERIES[rank % len(SERIES)], label=f"rank {rank}")
        if ranks <= 8:
            axes.legend(fontsize=8)
        _epochs(axes)

    return figure(draw, "loss of each rank by epoch")


def small_multiples(records: Sequence[RunRecord], metric: str) -> list[Html]:
    """The validation curve of each run, before those of all runs in grey; its loss is dashed.

    None where no run was validated more than once.
    """
    curves = [validated(record, metric) for record in records]
    values = [value for points in curves for _, value in points]
    if max(map(len, curves)) < 2:
        return []
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    most_points = 1000 // len(records)  # of each curve, so that the page stays small
    backgrounds = [(points, most_points) for points in curves if points]
    drawings = [
        _small(record, metric, backgrounds, (low - room, high + room)) for record in records
    ]
    return plots.figures(drawings, *SMALL)


def _small(
    record: RunRecord,
    metric: str,
    others: Sequence[tuple[Points, int]],
    limits: tuple[float, float],
) -> tuple[Callable[["Axes"], None], str]:
    curve_points, loss = validated(record, metric), _between(losses(record), limits)

    def draw(axes: "Axes") -> None:
        for points, most in others:
            _line(axes, points, SOFT, width=0.8, alpha=0.35, most=max(10, min(50, most)))
        if len(loss) > 1:  # one epoch of a model that is solved has no course
            _line(axes, loss, SERIES[1], width=1.0, style=(0, (3, 2)))
        _line(axes, curve_points, SERIES[0], record.best_epoch)
        _mark_best(axes, curve_points, record.best_epoch, False)
        axes.set_ylim(*limits)
        _epochs(axes, False)
        axes.set_title(short(record.name, 38), fontsize=8, color=INK)

    return draw, f"validation of {short(record.name)} by epoch"


def activity(rows: dict[str, list[ActivityGroup]], metric: str) -> Html:
    """Quality of runs by the training interactions of users, with intervals; runs share groups."""

    def draw(axes: "Axes") -> None:
        groups = next(iter(rows.values()))
        for k, (name, run_groups) in enumerate(rows.items()):
            shift = (k - (len(rows) - 1) / 2) * 0.07
            places = [place + shift for place in range(len(run_groups))]
            lowest = [group.low for group in run_groups]
            highest = [group.high for group in run_groups]
            axes.vlines(places, lowest, highest, color=SERIES[k % 8], alpha=0.4, linewidth=2)
            means = [group.mean for group in run_groups]
            axes.plot(places, means, "o", color=SERIES[k % 8], label=short(name, 40), markersize=5)
        ticks = [f"{group.label}\n{group.users:,} users" for group in groups]
        axes.set_xticks(range(len(groups)), ticks)
        axes.set_xlabel("training interactions of a user")
        axes.set_ylabel(short(metric, 30))
        axes.set_ylim(bottom=0)
        if len(rows) > 1:  # above the plot, where it hides nothing
            axes.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))

    return figure(draw, f"{short(metric)} by training interactions of users")


def popularity(groups: Sequence[PopularityGroup]) -> Html:
    """Shares of training and of recommendations, by popularity of items."""

    def draw(axes: "Axes") -> None:
        places = range(len(groups))
        for shift, colour, name, shares in (
            (-0.2, LINE, "of training interactions", [100 * one.trained for one in groups]),
            (0.2, SERIES[0], "of recommendations", [100 * one.recommended for one in groups]),
        ):
            bars = axes.bar([k + shift for k in places], shares, 0.38, color=colour, label=name)
            axes.bar_label(bars, [f"{x:.0f}" if x >= 0.5 else "" for x in shares], fontsize=8)
        axes.set_axisbelow(True)
        axes.set_xticks(list(places), [f"{one.label}\n{one.items:,} items" for one in groups])
        axes.set_xlabel("training interactions of an item")
        axes.set_ylabel("share, %")
        axes.legend(fontsize=8)

    return figure(draw, "shares of training and of recommendations by popularity of items")


def concentrations(records: Sequence[RunRecord]) -> Html:
    """How many of the most popular items have which share of all places in lists."""

    def draw(axes: "Axes") -> None:
        for k, record in enumerate(records):
            share, trained, shown = concentration(record)
            if k == 0:
                axes.plot(100 * share, 100 * trained, color=SOFT, linewidth=1, label="training")
            label = "recommendations" if len(records) == 1 else short(record.name, 40)
            axes.plot(100 * share, 100 * shown, color=SERIES[k % 8], label=label)
        axes.set_xlabel("items, the most popular first, %")
        axes.set_ylabel("share, %")
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 102)
        axes.legend(fontsize=8, loc="lower right")

    return figure(draw, "share of recommendations over items, the most popular first")


def seconds_bar(seconds: dict[str, float]) -> Html:
    """One bar of the seconds of a run, cut by what they were spent on."""

    def draw(axes: "Axes") -> None:
        start = 0.0
        for k, (name, length) in enumerate(seconds.items()):
            axes.barh(0, length, left=start, color=SERIES[k % 8], height=0.5, label=name)
            start += length
        axes.set_yticks([])
        axes.grid(False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("seconds")
        axes.set_ylim(-0.4, 1.1)
        axes.legend(ncols=2, fontsize=8, loc="upper left", borderaxespad=0)

    return figure(draw, "seconds by part", 5.6, 1.7)


def differences(rows: Sequence[tuple[str, float, float, float, str]], metric: str) -> Html:
    """Differences with their intervals, one below the other: (name, middle, low, high, verdict);
    verdict: better, worse or equal.
    """
    colours = {"better": SERIES[2], "worse": SERIES[6], "equal": SOFT}

    def draw(axes: "Axes") -> None:
        for verdict, colour in colours.items():
            intervals = [(-k, *row[1:4]) for k, row in enumerate(rows) if row[4] == verdict]
            if intervals:
                places, middles, lows, highs = zip(*intervals)
                axes.hlines(places, lows, highs, color=colour, linewidth=2)
                axes.plot(middles, places, "o", color=colour, markersize=6)
        axes.axvline(0, color=SOFT, linewidth=1)
        axes.set_yticks([-k for k in range(len(rows))], [short(row[0], 40) for row in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.set_xlabel(f"difference in {short(metric, 30)}, test")

    return figure(draw, f"differences in {short(metric)}", 10.5, 0.8 + 0.28 * len(rows))


def _line(
    axes: "Axes",
    points: Points,
    colour: str,
    best: int | None = None,
    width: float = 1.6,
    style: str | tuple[int, tuple[int, ...]] = "-",
    label: str | None = None,
    alpha: float = 1.0,
    most: int = MOST_POINTS,
) -> None:
    stride = -(-len(points) // most)
    kept = [point for k, point in enumerate(points) if k % max(1, stride) == 0 or point[0] == best]
    marker = "o" if len(points) == 1 else None
    look = {"color": colour, "linewidth": width, "linestyle": style, "alpha": alpha}
    xs, ys = [point[0] for point in kept], [point[1] for point in kept]
    axes.plot(xs, ys, label=label, marker=marker, markersize=4, **look)  # type: ignore[arg-type]


def _between(points: Points, limits: tuple[float, float]) -> Points:
    """A curve, scaled so that it fills the limits."""
    values = [value for _, value in points]
    low, high = min(values, default=0.0), max(values, default=1.0)
    scale = (limits[1] - limits[0]) * 0.9 / ((high - low) or 1.0)
    start = limits[0] + 0.05 * (limits[1] - limits[0])
    return [(epoch, start + (value - low) * scale) for epoch, value in points]


def _mark_best(axes: "Axes", points: Points, best: int | None, labelled: bool) -> None:
    value = dict(points).get(best) if best is not None else None
    if value is None or best is None:
        return
    axes.axvline(best, color=SOFT, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.plot(best, value, "o", color=SERIES[0], markersize=6 if labelled else 4)
    if labelled:
        axes.set_title(f"best: epoch {best}, {value:.4g}", loc="right", fontsize=9, color=SOFT)


def _epochs(axes: "Axes", named: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    first, last = axes.get_xlim()
    if last - first < 1:  # one epoch: there is nothing between
        axes.set_xlim((first + last) / 2 - 0.5, (first + last) / 2 + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6 if named else 4, integer=True))
    if not named:
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.tick_params(labelsize=8)
    if named:
        axes.set_xlabel("epoch")
