"""Figures of a data set: the block that the log shows, and what `shoal data describe` prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.dates import shown_time
from shoal.data.reading import shown_readings


def describe(dataset: Dataset) -> str:
    """Sizes, averages and fields, of users and items that the data has: the padding is none."""
    inters, users, items = dataset.num_inter, dataset.num_users - 1, dataset.num_items - 1
    active_users, active_items = len(per_user(dataset)), len(per_item(dataset))
    sparsity = 1 - inters / users / items
    lines = [
        dataset.name,
        f"The number of users: {users}",
        f"Average actions of users: {inters / active_users}",
        f"The number of items: {items}",
        f"Average actions of items: {inters / active_items}",
        f"The number of inters: {inters}",
        f"The sparsity of the dataset: {sparsity * 100}%",
        f"Remain Fields: {list(dataset.types)}",
        *(f"Read {line}; data.cells says otherwise" for line in shown_readings(dataset.cells)),
        *(f"Left out by {k}: {n} of {rows} interactions" for k, n, rows in left_out(dataset)),
    ]
    return "\n".join(lines)


def left_out(dataset: Dataset) -> list[tuple[str, int, int]]:
    """(the key that decides it, rows that are left out, rows that the files have) of each."""
    total_rows = dataset.num_inter + sum(dataset.left_out.values())
    return [(key, count, total_rows) for key, count in dataset.left_out.items()]


def time_span(dataset: Dataset) -> tuple[str, str] | None:
    """The first and the last time, as dates where they look like seconds; None: there are none."""
    times = times_of(dataset)
    if times is None or not len(times):
        return None
    show = shown_time if are_dates(times) else "{:.10g}".format
    return show(times.min()), show(times.max())


def times_of(dataset: Dataset) -> np.ndarray | None:
    """float64, one for each interaction; None: they have no time."""
    if dataset.time_field is None:
        return None
    return np.asarray(dataset.inter[dataset.time_field], dtype=np.float64)


def are_dates(times: np.ndarray) -> bool:
    """Whether numbers look like seconds since 1970."""
    return times.min() > 1e8 and times.max() < 1e10


@dataclass(frozen=True)
class Leakage:
    """What the test split has in common with the training split, of its interactions each."""

    rows: int  # interactions to test on
    repeated: int  # whose (user, item) pair is trained on
    earlier: int  # that came before one of the same user that is trained on
    new_users: int  # whose user is not trained on
    new_items: int  # whose item is not trained on


def leakage(dataset: Dataset) -> Leakage:
    """Counts over the test split; without times none is earlier."""
    train, test = dataset.splits["train"], dataset.splits["test"]
    users, items = (np.asarray(dataset.inter[f]) for f in (dataset.user_field, dataset.item_field))
    pairs = users.astype(np.int64) * dataset.num_items + items
    earlier = 0
    if dataset.time_field is not None:
        times = np.asarray(dataset.inter[dataset.time_field])
        last = np.full(dataset.num_users, -np.inf)
        np.maximum.at(last, users[train], times[train])
        earlier = int((times[test] < last[users[test]]).sum())
    return Leakage(
        len(test),
        int(np.isin(pairs[test], pairs[train]).sum()),
        earlier,
        int((~np.isin(users[test], users[train])).sum()),
        int((~np.isin(items[test], items[train])).sum()),
    )


def spread(counts: np.ndarray) -> dict[str, float]:
    """Smallest, quartiles, largest and mean."""
    low, first, middle, third, high = np.percentile(counts, [0, 25, 50, 75, 100])
    return {
        "least": low,
        "quarter": first,
        "median": middle,
        "three quarters": third,
        "most": high,
        "mean": float(counts.mean()),
    }


def per_user(dataset: Dataset) -> np.ndarray:
    """Interactions of every user that has some."""
    return _counts(dataset.flat(dataset.user_field))


def per_item(dataset: Dataset) -> np.ndarray:
    """Interactions of every item that has some."""
    return _counts(dataset.flat(dataset.item_field))


def _counts(ids: np.ndarray) -> np.ndarray:
    counts = np.bincount(ids)
    return counts[counts > 0]
