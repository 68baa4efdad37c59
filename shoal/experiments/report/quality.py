"""How good a run is for whom, and what it recommends, from the lists of its users."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from shoal.experiments.report.statistics import mean_interval
from shoal.runs.run_record import RunRecord

GROUPS = 5  # of users, and of items


@dataclass(frozen=True)
class ActivityGroup:
    """Users with a similar number of training interactions, and the metric over them."""

    fewest: int
    most: int
    users: int
    mean: float
    low: float
    high: float

    @property
    def label(self) -> str:
        return _range(self.fewest, self.most)


@dataclass(frozen=True)
class PopularityGroup:
    """Items with a similar number of training interactions, and how they are recommended."""

    fewest: int
    most: int
    items: int
    trained: float  # share of the training interactions that they have
    recommended: float  # share of the places in lists
    hits: float | None  # share of these places that are hits; None: they are never recommended
    tested: int | None  # test interactions with these items; None: not known
    recall: float | None  # share of these that are in the list of their user; None: there are none
    value: float | None  # the metric of one such interaction, on average; None: it has none

    @property
    def label(self) -> str:
        return _range(self.fewest, self.most)


@dataclass(frozen=True)
class RecommendedItems:
    """What is recommended, over all lists."""

    items: int
    coverage: float  # share of the items that are in some list
    gini: float  # 0: all items alike, 1: always the same ones
    popularity: float  # mean training interactions of a recommended item
    top_tenth: float  # share of places that the tenth of items with the most training has


def by_activity(record: RunRecord, metric: str) -> list[ActivityGroup]:
    """Groups of users by how much the model knew of them; they are of like size."""
    assert record.users is not None
    train, values = record.users["train"].to_numpy(), record.users[metric].to_numpy()
    bounds = _bounds(train)
    inside = np.searchsorted(bounds, train, side="left")[:, None] == np.arange(len(bounds))
    means = mean_interval(np.where(inside, values[:, None], np.nan))
    return [
        ActivityGroup(
            fewest=int(train[members].min()),
            most=int(train[members].max()),
            users=int(members.sum()),
            mean=float(means.mean[k]),
            low=float(means.low[k]),
            high=float(means.high[k]),
        )
        for k, members in enumerate(inside.T)
    ]


def by_popularity(record: RunRecord, metric: str) -> list[PopularityGroup]:
    """Groups of items by their training interactions, the least popular first.

    A test interaction is found where the list of its user has the item. Its value by the metric is
    what the place in the list gives when nothing else is to be found.
    """
    assert record.users is not None and record.items is not None
    lists = record.users.select("items", "hits", pl.int_ranges(1, pl.col("hits").list.len() + 1))
    places = lists.rename({"literal": "place"}).explode("items", "hits", "place")
    gain = _gain(metric, int(places["place"].to_numpy().max(initial=0)))
    value = pl.lit(None, pl.Float64) if gain is None else pl.col("hits") * gain
    columns = {"n": pl.len(), "found": pl.col("hits").sum(), "value": value.sum()}
    sums = places.group_by("items").agg(**columns)
    items = record.items.join(sums, left_on="item", right_on="items", how="left")
    train = items["train"].to_numpy()
    shown, hits, values = (items[name].fill_null(0).to_numpy() for name in columns)
    has_positives = "positives" in items.columns
    bounds, groups = _bounds(train), []
    place = np.searchsorted(bounds, train, side="left")
    for k in range(len(bounds)):
        inside = place == k  # a bound is the count of some item, so that no group is empty
        number = int(shown[inside].sum())
        tested = int(items["positives"].to_numpy()[inside].sum()) if has_positives else None
        groups.append(
            PopularityGroup(
                fewest=int(train[inside].min()),
                most=int(train[inside].max()),
                items=int(inside.sum()),
                trained=float(train[inside].sum() / max(1, train.sum())),
                recommended=number / max(1, int(shown.sum())),
                hits=float(hits[inside].sum()) / number if number else None,
                tested=tested,
                recall=float(hits[inside].sum()) / tested if tested else None,
                value=float(values[inside].sum()) / tested if tested and gain is not None else None,
            )
        )
    return groups


def _gain(metric: str, longest: int) -> "pl.Expr | None":
    """What a place in a list gives, where one item alone is to be found; None: not known."""
    name, _, cut = metric.partition("@")
    place = pl.col("place")
    gains = {"recall": pl.lit(1.0), "hit": pl.lit(1.0), "ndcg": 1 / (place + 1).log(2)}
    gains |= {"mrr": 1 / place, "map": 1 / place}
    if name not in gains or not cut.isdecimal() or int(cut) > longest:
        return None
    return pl.when(place <= int(cut)).then(gains[name]).otherwise(0.0)


def catalogue(record: RunRecord) -> RecommendedItems | None:
    """Coverage, concentration and popularity; None where nothing is recommended."""
    if record.items is None or not record.items["recommended"].sum():
        return None
    train = record.items["train"].to_numpy().astype(np.float64)
    shown = record.items["recommended"].to_numpy().astype(np.float64)
    number, total = len(shown), shown.sum()
    ranked = np.sort(shown)
    gini = ((2 * np.arange(1, number + 1) - number - 1) * ranked).sum() / (number * total)
    busiest = np.argsort(-train, kind="stable")[: max(1, number // 10)]
    return RecommendedItems(
        items=number,
        coverage=float((shown > 0).mean()),
        gini=float(gini),
        popularity=float((shown * train).sum() / total),
        top_tenth=float(shown[busiest].sum() / total),
    )


def concentration(record: RunRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items by training interactions, the most popular first, as shares (0 to 1): how many of them
    have which share of the training interactions, and of the places in lists.
    """
    assert record.items is not None
    items = record.items.sort("train", descending=True)
    train, shown = (items[name].to_numpy().cumsum() for name in ("train", "recommended"))
    steps = np.unique(np.linspace(0, len(items) - 1, 100).astype(int))
    return (
        np.append(0.0, (steps + 1) / len(items)),
        np.append(0.0, train[steps] / max(1, train[-1])),
        np.append(0.0, shown[steps] / max(1, shown[-1])),
    )


def _bounds(counts: np.ndarray) -> np.ndarray:
    """The largest count of each of at most GROUPS groups of like size."""
    shares = np.arange(1, GROUPS + 1) / GROUPS
    return np.unique(np.quantile(counts, shares, method="inverted_cdf"))


def _range(fewest: int, most: int) -> str:
    return f"{fewest:,}" if fewest == most else f"{fewest:,}–{most:,}"
