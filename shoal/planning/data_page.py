"""A look at a data set as one page: people, items and interactions, in figures and plots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.dataset import Dataset, Split
from shoal.data.features import Feature
from shoal.data.statistics import (
    Leakage,
    are_dates,
    left_out,
    per_item,
    per_user,
    spread,
    time_span,
    times_of,
)
from shoal.pages.html import Html, Numeral, escape, facts, grid, join, section, table
from shoal.pages.html import page as whole_page
from shoal.pages.plots import SERIES, SOFT, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELLS = (24, 48)  # of the map of users × items, at most
BARS = 48  # over time


def page(
    dataset: Dataset, features: Sequence[Feature], leaks: Leakage, doubts: Sequence[str]
) -> str:
    """The whole page; leaks and doubts: as `shoal data describe` prints them."""
    users, items = per_user(dataset), per_item(dataset)
    return whole_page(
        dataset.name,
        Html(f"<p>{escape(_sentence(dataset, users, items))}</p>"),
        facts(_facts(dataset, users, items)),
        join(Html(f'<p class="bad">{escape(doubt)}</p>') for doubt in doubts),
        grid(
            section("Popularity", "Interactions of items, the most popular first.", _ranked(items)),
            section("Activity", "Users by how many interactions they have.", _lengths(users)),
            _over_time(dataset),
            section(
                "Sparsity",
                "Users (down) and items (across), busiest first: the darker, the more "
                "interactions.",
                _map(dataset),
            ),
        ),
        _spreads(users, items),
        _parts(dataset, leaks),
        _features(dataset, features),
    )


def _sentence(dataset: Dataset, users: np.ndarray, items: np.ndarray) -> str:
    text = f"{dataset.num_inter:,} interactions of {len(users):,} users with {len(items):,} items"
    if (span := time_span(dataset)) is not None:
        text += f", from {span[0]} to {span[1]}"
    for key, count, rows in left_out(dataset):
        text += f"; {count:,} of {rows:,} are left out by {key}"
    return text + "."


def _facts(dataset: Dataset, users: np.ndarray, items: np.ndarray) -> dict[str, str]:
    density = dataset.num_inter / (len(users) * len(items))
    figures = {
        "users": f"{len(users):,}",
        "items": f"{len(items):,}",
        "interactions": f"{dataset.num_inter:,}",
        "of all pairs known": f"{100 * density:.3g} %",
        "of a user, median": f"{np.median(users):,.0f}",
        "of an item, median": f"{np.median(items):,.0f}",
    }
    for name, number in (
        ("users without any", dataset.num_users - 1 - len(users)),
        ("items without any", dataset.num_items - 1 - len(items)),
    ):
        if number:
            figures[name] = f"{number:,}"
    return figures


# ---- tables --------------------------------------------------------------------------------------


def _spreads(users: np.ndarray, items: np.ndarray) -> Html:
    rows = [
        (name, *(Numeral(f"{value:,.5g}") for value in spread(counts).values()))
        for name, counts in (("of a user", users), ("of an item", items))
    ]
    return section("Interactions", "", table(["", *spread(users)], rows))


def _parts(dataset: Dataset, leaks: Leakage) -> Html:
    rows = []
    splits: tuple[Split, ...] = ("train", "valid", "test")
    for split in splits:
        users, items = dataset.user_ids(split), dataset.item_ids(split)
        rows.append((split, len(users), len(np.unique(users)), len(np.unique(items))))
    text = (
        f"Of {leaks.rows:,} interactions to test on, {leaks.repeated:,} are pairs that are trained "
        f"on too, {leaks.earlier:,} came before one of the same user that is trained on, "
        f"{leaks.new_users:,} are of new users and {leaks.new_items:,} of new items."
    )
    return section("Parts", text, table(["part", "interactions", "users", "items"], rows))


def _features(dataset: Dataset, features: Sequence[Feature]) -> Html:
    rows = []
    for feature in features:
        missing = dataset.missing.get(feature.side if feature.side != "context" else "inter", {})
        size = Numeral("grows") if feature.rows is None else feature.rows
        of_table = (feature.table, size) if feature.is_sparse else (None, None)
        rows.append(
            (feature.name, feature.kind, feature.side, *of_table, missing.get(feature.column, 0))
        )
    text = (
        "What the columns are taken for; describe with --write FILE writes them as a config to "
        "edit. Rows of a table count the padding."
    )
    heads = ["feature", "kind", "side", "table", "rows", "missing"]
    return section("Features", text, table(heads, rows))


# ---- plots ---------------------------------------------------------------------------------------


def _ranked(counts: np.ndarray) -> Html:
    ranks = np.unique(np.geomspace(1, len(counts), 200).astype(int))
    heights = np.sort(counts)[::-1][ranks - 1]

    def draw(axes: Axes) -> None:
        axes.plot(ranks, heights, color=SERIES[0], marker="o" if len(ranks) == 1 else None)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rank of the item")
        axes.set_ylabel("interactions")
        _plain_numbers(axes, "xy")

    return figure(draw, "interactions of items by rank")


def _lengths(counts: np.ndarray) -> Html:
    """A histogram: users by their number of interactions, in steps that double."""
    edges = np.asarray([1 << power for power in range(int(counts.max()).bit_length() + 1)])
    user_counts = np.histogram(counts, edges)[0]
    labels = [f"{a:,}" if b == a + 1 else f"{a:,}–{b - 1:,}" for a, b in pairwise(edges)]

    def draw(axes: Axes) -> None:
        axes.set_axisbelow(True)
        axes.bar(range(len(user_counts)), user_counts, color=SERIES[0], width=0.85)
        axes.set_xticks(range(len(labels)), labels)
        for label in axes.get_xticklabels() if len(labels) > 7 else ():
            label.set(rotation=30, horizontalalignment="right")
        axes.set_xlabel("interactions")
        axes.set_ylabel("users")
        _plain_numbers(axes, "y")

    return figure(draw, "users by number of interactions")


def _over_time(dataset: Dataset) -> Html:
    title = "Over time"
    times = times_of(dataset)
    if times is None:
        return section(title, "The interactions have no time.")
    if times.min() == times.max():
        return section(title, "All interactions have the same time.")
    dates = are_dates(times)
    bar_counts, edges = np.histogram(times, BARS)
    middles = (edges[:-1] + edges[1:]) / 2
    width = (edges[1] - edges[0]) * 0.9

    def draw(axes: Axes) -> None:
        axes.set_axisbelow(True)
        if dates:
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            day = 86_400.0
            axes.bar(middles / day, bar_counts, width / day, color=SERIES[0])
            date_locator = AutoDateLocator(maxticks=7)
            axes.xaxis.set_major_locator(date_locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(date_locator))
        else:
            axes.bar(middles, bar_counts, width, color=SERIES[0])
            _plain_numbers(axes, "x")
        axes.set_ylabel("interactions")
        _plain_numbers(axes, "y")

    text = "Interactions from the first to the last."
    return section(title, text, figure(draw, "interactions over time"))


def _map(dataset: Dataset) -> Html:
    """A grid of groups of users × groups of items, each busiest first."""
    ids = [np.asarray(dataset.inter[f]) for f in (dataset.user_field, dataset.item_field)]
    sizes = (dataset.num_users, dataset.num_items)
    cells = [min(most, size - 1) for most, size in zip(CELLS, sizes)]
    places = []
    for entity_ids, size, number in zip(ids, sizes, cells):
        rank = np.empty(size, np.int64)
        rank[np.argsort(-np.bincount(entity_ids, minlength=size), kind="stable")] = np.arange(size)
        places.append(np.minimum(rank[entity_ids] * number // (size - 1), number - 1))
    counts = np.bincount(places[0] * cells[1] + places[1], minlength=cells[0] * cells[1])
    shades = np.log1p(counts) / max(np.log1p(counts.max()), 1e-9)

    def draw(axes: Axes) -> None:
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import to_rgb

        filled_cells = np.flatnonzero(shades)
        down, across = filled_cells // cells[1], filled_cells % cells[1]
        corners = np.asarray([(0, 0), (1, 0), (1, 1), (0, 1)])
        squares = np.stack([across, down], axis=1)[:, None, :] + corners
        colours = [(*to_rgb(SERIES[0]), round(float(shades[k]), 2)) for k in filled_cells]
        axes.add_collection(PolyCollection(squares, facecolors=colours, edgecolors="none"))
        axes.set_xlim(0, cells[1])
        axes.set_ylim(cells[0], 0)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{sizes[1] - 1:,} items")
        axes.set_ylabel(f"{sizes[0] - 1:,} users", color=SOFT)
        axes.grid(False)

    return figure(draw, "interactions of users and items, busiest first")


def _plain_numbers(axes: Axes, which: str) -> None:
    """Ticks such as 10,000; on scales that double or multiply too."""
    from matplotlib.ticker import FuncFormatter

    for name in which:
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
