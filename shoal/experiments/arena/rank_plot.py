"""The plot of critical differences: models by average rank, and lines that join those alike."""

from typing import TYPE_CHECKING, Any

from shoal.pages.html import Html
from shoal.pages.plots import INK, SERIES, SOFT, figure
from shoal.runs.run_record import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 0.26  # height of a line of text, in inches
MOST_MODELS = 40  # more do not fit a plot


def rank_plot(ranks: dict[str, Any]) -> Html:
    """The plot of `ranks` as arena.json has them; ValueError where none can be drawn.

    1        2        3        4
    |--------|--------|--------|
       |  |           |      |
    A -+  |           |      +- D
    B ----+  =======  +-------- C      ===: no difference between them
    """
    models, average, groups = ranks["models"], ranks["average"], ranks["groups"]
    if len(models) > MOST_MODELS:
        raise ValueError(f"{len(models)} models do not fit a plot of at most {MOST_MODELS}")
    half = (len(models) + 1) // 2  # the better half is named on the left
    first_name = 0.5 + 0.45 * len(groups)
    depth = first_name + half + 0.4
    span = len(models) - 1
    place_of = dict(zip(models, average))

    def draw(axes: "Axes") -> None:
        axes.set_xlim(1 - 0.42 * span, len(models) + 0.42 * span)
        axes.set_ylim(depth, -2.4)
        axes.axis("off")
        axes.grid(False)
        # The scale, and the length of the critical difference above it.
        axes.plot([1, len(models)], [0, 0], color=INK, linewidth=1)
        for rank in range(1, len(models) + 1):
            axes.plot([rank, rank], [0, -0.2], color=INK, linewidth=1)
            axes.text(rank, -0.35, f"{rank}", ha="center", va="bottom", color=SOFT)
        length = min(ranks["critical_difference"], 1.2 * span)
        is_cut = length < ranks["critical_difference"]
        axes.plot([1, 1 + length], [-1.35, -1.35], color=SERIES[1], linewidth=2)
        label = f"critical difference {ranks['critical_difference']:.2f}"
        axes.text(1, -1.5, label + (" (cut)" if is_cut else ""), va="bottom", color=SOFT)
        # Lines under the scale join models that do not differ.
        for number, group in enumerate(groups):
            places = [place_of[model] for model in group]
            margin = 0.02 * span
            height = 0.4 + 0.45 * number
            axes.plot(
                [min(places) - margin, max(places) + margin],
                [height, height],
                color=SERIES[0],
                linewidth=4,
                solid_capstyle="butt",
            )
        for number, model in enumerate(models):
            is_left = number < half
            row = first_name + (number if is_left else len(models) - 1 - number) + 0.3
            edge = 1 - 0.06 * span if is_left else len(models) + 0.06 * span
            place = place_of[model]
            axes.plot([place, place, edge], [0, row, row], color=SOFT, linewidth=0.9)
            text = (
                f"{short(model, 30)}  {place:.2f}"
                if is_left
                else f"{place:.2f}  {short(model, 30)}"
            )
            axes.text(
                edge - 0.015 * span if is_left else edge + 0.015 * span,
                row,
                text,
                ha="right" if is_left else "left",
                va="center",
                color=INK,
            )

    label = "average ranks: " + ", ".join(f"{m} {a:.2f}" for m, a in zip(models, average))
    return figure(draw, label, width=7.6, height=0.4 + ROW * (depth + 2.4))
