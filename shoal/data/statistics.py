"""Figures of a data set, and warnings where they say that its metrics mean little.

The log of a run, `shoal data describe` and its page show the same figures and sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.column_meaning import is_measured, is_outcome
from shoal.data.dataset import SPLITS, Column, Dataset
from shoal.data.dates import shown_time
from shoal.data.reading import MOSTLY, shown_readings

FEW = 30  # users; of fewer, one more or less moves a mean by several per cent
SAMPLE = 1_000  # words of a column that are looked at
DOES = {"train": "train", "valid": "validate", "test": "test"}


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
    ]
    for reading in shown_readings(dataset.cells):
        lines.append(f"Read {reading}; data.cells says otherwise")
    for reason, count, rows in left_out(dataset):
        lines.append(f"Left out by {reason}: {count} of {rows} interactions")
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


# ---- warnings ------------------------------------------------------------------------------------


def find_data_warnings(
    data: Any, evaluated: bool = True, repeatable: bool = False, is_ranked: bool = True
) -> list[str]:
    """A sentence for each warning about a Dataset or ClickData.

    evaluated: metrics will be computed. repeatable: items that a user took may be recommended
    again. is_ranked: every row counts as taken, whatever its label.
    """
    if not isinstance(data, Dataset):
        return data.warnings() if evaluated else []
    warnings = [
        f"{count:,} of {rows:,} interactions are left out, because their user or item has no row "
        f"in the files of users and items; {key}=false keeps them"
        for key, count, rows in left_out(data)
        if key == "data.filter.by_user_or_item"
    ]
    warnings += measured_columns(data)
    warnings += untaken_rows(data) if is_ranked else []
    pair_counts = data.counted()
    # Where repeated pairs are tested on, the sentence below says more.
    if pair_counts.repeated and not repeatable and not (evaluated and any(pair_counts.earlier)):
        warnings.append(
            f"{pair_counts.repeated:,} of {pair_counts.rows:,} interactions repeat a (user, item) "
            "pair that is "
            "there already; where a pair counts once, data.filter.duplicates=first (or last) keeps "
            "one of each"
        )
    for number, split in enumerate(SPLITS) if evaluated and not repeatable else ():
        if earlier := pair_counts.earlier[number]:
            warnings.append(
                f"{earlier:,} of {pair_counts.pairs[number]:,} (user, item) pairs to {DOES[split]} "
                "on "
                f"are among those to {' or '.join(DOES[p] for p in SPLITS[:number])} on; ranking "
                "leaves out what a user has seen, so they count as misses: keep one of each with "
                "data.filter.duplicates=first, or rank them with eval.repeatable=true"
            )
    counts = dict(zip(SPLITS[1:], pair_counts.users[1:])) if evaluated else {}
    return warnings + [
        few(split, count, "user") for split, count in counts.items() if 0 < count < FEW
    ]


def measured_columns(dataset: Dataset) -> list[str]:
    """A sentence for each column of numbers with a unit, such as 3,5 kg: they are read as ids."""
    warnings = []
    for name, words in dataset.vocab.items():
        sample = [str(word) for word in words[1:SAMPLE]]  # the first is the padding
        if name in (dataset.user_field, dataset.item_field) or not sample:
            continue
        measured = [word for word in sample if is_measured(word)]
        if len(measured) >= MOSTLY * len(sample):
            warnings.append(
                f"{name} holds numbers with a unit ({measured[0]!r}), which are read as ids; write "
                "the numbers alone where they are meant"
            )
    return warnings


def untaken_rows(dataset: Dataset) -> list[str]:
    """A sentence for each column by which some rows are not taken: impressions without a click."""
    warnings = []
    for name in dataset.inter:
        if name != dataset.label_field and not is_outcome(name):
            continue
        share = share_of_ones(dataset.inter[name])
        if share is not None and dataset.types[name] == "float":
            zeros = round((1 - share) * dataset.num_inter)
            warnings.append(
                f"every row counts as taken, also the {zeros:,} of {dataset.num_inter:,} where "
                f"{name} is 0; if these were not taken, data.filter.values.{name}=[1,1] leaves "
                "them out, and a click model learns from both"
            )
    return warnings


def share_of_ones(column: Column) -> float | None:
    """The share of ones where a column holds 0 and 1, both; None where it holds something else."""
    if not isinstance(column, np.ndarray) or not ((column == 0) | (column == 1)).all():
        return None
    share = float(np.mean(column, dtype=np.float64)) if len(column) else 0.0
    return share if 0 < share < 1 else None


def few(split: str, count: int, unit: str) -> str:
    """The warning about a part with fewer than FEW users or samples; unit: which of the two."""
    return (
        f"metrics of the {split} part are over {count} {unit}{'s' * (count > 1)}, fewer than "
        f"{FEW}: chance moves them far; give that part more data (data.split)"
    )
