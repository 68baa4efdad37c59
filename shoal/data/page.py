"""A look at a data set as one HTML page: plots as inline SVG, nothing loaded from anywhere."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.statistics import per_item, per_user

SIZE = (440, 200)  # of the box of a plot
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em;
  color: #1c2b36; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 1.6em 0 .3em }
p { margin: .2em 0 .6em; color: #4a5a66 }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(500px, 1fr)); gap: 0 2em }
pre { white-space: pre-wrap; font-size: 13px }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #4a5a66 }
"""


def page(dataset: Dataset, text: str) -> str:
    """The whole page; text: what `shoal data describe` prints."""
    heat = "Users (down) and items (across), busiest first: the darker, the more interactions."
    plots = [
        _section("Popularity", "Interactions of items, by rank.", _ranked(per_item(dataset))),
        _section("Lengths", "Users by their interactions.", _histogram(per_user(dataset))),
        _activity(dataset),
        _section("Sparsity", heat, _heat(dataset)),
    ]
    title = html.escape(dataset.name)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1><pre>{html.escape(text)}</pre>"
        f'<div class="two">{"".join(plots)}</div></html>\n'
    )


def _section(title: str, text: str, body: str) -> str:
    return f"<section><h2>{title}</h2><p>{text}</p>{body}</section>"


# ---- plots: a box of SIZE, bars or squares in it -------------------------------------------------


def _plot(shapes: Iterable[str], across: Sequence[tuple[float, str]], up: str) -> str:
    """Shapes in a box, labels at shares (0 to 1) of its width, and what its height stands for."""
    wide, high = SIZE
    labels = "".join(
        f'<text x="{share * wide:.1f}" y="{high + 16}" text-anchor="middle">{text}</text>'
        for share, text in across
    )
    return (
        f'<svg viewBox="-30 -20 {wide + 60} {high + 44}" role="img"><text y="-6">{up}</text>'
        f"{labels}{''.join(shapes)}</svg>"
    )


def _bars(heights: np.ndarray, labels: list[str]) -> str:
    top, number = max(1, int(heights.max(initial=0))), len(heights)
    wide, high = SIZE[0] / number, SIZE[1]
    bars = (
        f'<rect x="{k * wide + 1:.1f}" y="{high - h / top * high:.1f}" '
        f'width="{max(wide - 2, 0.5):.1f}" height="{h / top * high:.1f}" fill="#1f6f9f">'
        f"<title>{label}: {h:,}</title></rect>"
        for k, (h, label) in enumerate(zip(heights.tolist(), labels))
    )
    every = max(1, number // 8)
    across = [((k + 0.5) / number, labels[k]) for k in range(0, number, every)]
    return _plot(bars, across, f"up to {top:,}")


def _ranked(counts: np.ndarray) -> str:
    """Counts at ranks that grow by steps."""
    ranks = np.unique(np.geomspace(1, len(counts), 48).astype(int))
    return _bars(np.sort(counts)[::-1][ranks - 1], [f"{rank:,}" for rank in ranks])


def _histogram(counts: np.ndarray) -> str:
    """How many have how many, in steps that double."""
    edges = [1 << power for power in range(int(counts.max()).bit_length() + 1)]
    return _bars(np.histogram(counts, edges)[0], [f"{low:,}" for low in edges[:-1]])


def _activity(dataset: Dataset) -> str:
    title, text = "Activity over time", "Interactions by time, from the first to the last."
    if dataset.time_field is None:
        return _section(title, "The interactions have no time.", "")
    times = np.asarray(dataset.inter[dataset.time_field], dtype=np.float64)
    low, high = float(times.min()), float(times.max())
    if low == high:
        return _section(title, "All interactions have the same time.", "")
    found, edges = np.histogram(times, 48)
    return _section(title, text, _bars(found, [_date(edge) for edge in edges[:-1].tolist()]))


def _date(seconds: float) -> str:
    """A day where that is what it looks like, else the number."""
    if 1e8 < seconds < 1e10:
        return time.strftime("%Y-%m-%d", time.gmtime(seconds))
    return f"{seconds:,.0f}"


def _heat(dataset: Dataset) -> str:
    """A grid of blocks of users × blocks of items, each busiest first."""
    ids = [np.asarray(dataset.inter[f]) for f in (dataset.user_field, dataset.item_field)]
    sizes = (dataset.num_users, dataset.num_items)
    cells = [min(24, sizes[0] - 1), min(48, sizes[1] - 1)]
    places = []
    for one, size, number in zip(ids, sizes, cells):
        rank = np.empty(size, np.int64)
        rank[np.argsort(-np.bincount(one, minlength=size), kind="stable")] = np.arange(size)
        places.append(np.minimum(rank[one] * number // (size - 1), number - 1))
    grid = np.bincount(places[0] * cells[1] + places[1], minlength=cells[0] * cells[1])
    shades = np.log1p(grid) / max(np.log1p(grid.max()), 1e-9)
    wide, high = SIZE[0] / cells[1], SIZE[1] / cells[0]
    squares = (
        f'<rect x="{k % cells[1] * wide:.1f}" y="{k // cells[1] * high:.1f}" '
        f'width="{wide + 0.3:.1f}" height="{high + 0.3:.1f}" fill="#1f6f9f" '
        f'fill-opacity="{shade:.2f}"/>'
        for k, shade in enumerate(shades.tolist())
        if shade > 0
    )
    return _plot(squares, [(0.5, "items")], "users")
