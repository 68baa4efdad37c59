"""Plots: drawn by matplotlib, shown as SVG whose colours follow the page, light or dark."""

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal import how_to_install
from shoal.pages.html import Html, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What a plot may be drawn with: each stands for a colour of the page (see html.py).
INK, SOFT, LINE = "#010101", "#020202", "#030303"
SERIES = [f"#0404{k:02x}" for k in range(8)]
_ON_PAGE = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)"} | {
    colour: f"var(--c{k})" for k, colour in enumerate(SERIES)
}


def figure(
    draw: "Callable[[Axes], None]", label: str, width: float = 5.6, height: float = 2.8
) -> Html:
    """What `draw` puts on a pair of axes, as SVG. label: what a reader who sees nothing hears."""
    return figures([(draw, label)], width, height)[0]


def figures(
    plots: "Sequence[tuple[Callable[[Axes], None], str]]", width: float, height: float
) -> list[Html]:
    """Plots of one size and one scale: the first is laid out, which takes as long as drawing it,
    and the axes of the others stand where its axes stand.
    """
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"plots need matplotlib: {how_to_install('report')}") from error
    rules: Any = {
        "axes.edgecolor": LINE,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.labelcolor": SOFT,
        "axes.prop_cycle": cycler(color=SERIES),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 9,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "path.simplify": True,
        "svg.fonttype": "none",  # text stays text: it can be read, searched and copied
        "svg.hashsalt": "shoal",
        "text.color": INK,
        "text.parse_math": False,  # names are text, whatever signs they have
        "xtick.color": SOFT,
        "ytick.color": SOFT,
    }
    drawings: list[Html] = []
    place = (0.0, 0.0, 1.0, 1.0)
    with matplotlib.rc_context(rules):
        for draw, label in plots:
            drawing = Figure(figsize=(width, height), layout=None if drawings else "constrained")
            axes = drawing.add_axes(place) if drawings else drawing.add_subplot()
            draw(axes)
            written = io.StringIO()
            drawing.savefig(written, format="svg", transparent=True, metadata={"Date": None})
            drawings.append(_on_page(written.getvalue(), label))
            place = axes.get_position().bounds
    return drawings


def _on_page(text: str, label: str) -> Html:
    """SVG of matplotlib as a page has it: in its colours, as wide as there is room."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, name in _ON_PAGE.items():
        text = text.replace(colour, name)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" ([^>]*?)height="[^"]*"', r"<svg \1\2", text)
    return Html(text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))
