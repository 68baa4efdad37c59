"""The picture docs/pictures/zoo.svg: models beside RecBole 1.2.1, their figures and their seconds.

`python benchmarks/zoo.py page` draws it, from what the tables of docs/understand/zoo.md show.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo_settings import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = ROOT / "docs" / "pictures" / "zoo.svg"
FIGURES = ("ndcg@10", "auc")  # of a model, the first that it has
NAMES = {"ndcg@10": "NDCG@10", "auc": "AUC"}
COLOURS = {"ndcg@10": "#2f6db5", "auc": "#c2662d"}
TIMES = {"epoch": "an epoch", "eval": "an evaluation"}
SOFT = "#8a8f98"


def draw_zoo(
    quality: Mapping[str, Sequence[Mapping[str, Any]]],
    seconds: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    path: Path = PICTURE,
) -> None:
    """Write the picture; quality: runs of a model, seconds: of its sides, as the page has them."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "zoo", "svg.fonttype": "none", "axes.edgecolor": SOFT}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.9), width_ratios=(1, 1.25))
    _draw_quality(left, quality)
    _draw_seconds(right, seconds)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors="#444b55")
    figure.tight_layout(w_pad=3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_quality(axes: Axes, quality: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """A point for each model: RecBole's figure to the right, the one here upwards."""
    for metric in FIGURES:
        sides = [
            [[run[side]["test"][metric] for run in runs] for side in ("recbole", "shoal")]
            for runs in quality.values()
            if metric in runs[0]["shoal"]["test"]
        ]
        there, here = ([statistics.mean(side[k]) for side in sides] for k in (0, 1))
        errors = [[_error(side[k]) for side in sides] for k in (0, 1)]
        axes.errorbar(
            there,
            here,
            xerr=errors[0],
            yerr=errors[1],
            fmt="o",
            markersize=4,
            linewidth=0.8,
            color=COLOURS[metric],
            alpha=0.75,
            label=f"{NAMES[metric]} of {len(sides)} models",
        )
    top = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([0, top], [0, top], color=SOFT, linewidth=0.8, zorder=0)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_aspect("equal")
    axes.set_xlabel("RecBole 1.2.1")
    axes.set_ylabel("Shoal")
    axes.set_title("same split, settings and epochs", fontsize=9, loc="left")
    axes.legend(frameon=False, loc="upper left", fontsize=8)


def _draw_seconds(
    axes: Axes, seconds: Mapping[str, Mapping[str, Mapping[str, float | None]]]
) -> None:
    """A point for each model: how many times RecBole's CPU seconds are those here."""
    for row, what in enumerate(TIMES):
        pairs = [
            (sides["recbole"].get(what), sides["shoal"].get(what)) for sides in seconds.values()
        ]
        ratios = sorted(there / here for there, here in pairs if there and here)
        # Those next to each other in size stand on different heights, so that each is seen.
        heights = [1 - row + 0.09 * (number % 7 - 3) for number in range(len(ratios))]
        axes.scatter(ratios, heights, s=16, color="#3d8b5f", alpha=0.75, linewidths=0)
        mean = statistics.geometric_mean(ratios)
        axes.plot([mean, mean], [0.58 - row, 1.42 - row], color="#222", linewidth=1.4)
        axes.text(mean * 1.05, 1.43 - row, f"{mean:.1f} ×", va="bottom", fontsize=9)
    axes.axvline(1, color=SOFT, linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1 ×", "2 ×", "5 ×", "10 ×", "20 ×", "50 ×"])
    axes.minorticks_off()
    axes.set_yticks([1, 0], list(TIMES.values()))
    axes.set_ylim(-0.6, 1.7)
    axes.set_title(
        "RecBole's CPU seconds ÷ Shoal's, a point for each model", fontsize=9, loc="left"
    )


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean; of a single value 0."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
