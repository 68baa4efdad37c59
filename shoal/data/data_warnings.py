"""Warnings about a data set: why its metrics mean little, with counts and the remedy.

The log of a run, `shoal data describe` and its page show the same sentences.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.data.column_names import is_outcome
from shoal.data.dataset import Column, Dataset
from shoal.data.pairs import SPLITS
from shoal.data.statistics import left_out

FEW = 30  # users; of fewer, one more or less moves a mean by several per cent
DOES = {"train": "train", "valid": "validate", "test": "test"}


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
    """The warning about a split with fewer than FEW users or samples; unit: which of the two."""
    return (
        f"metrics of the {split} split are over {count} {unit}{'s' * (count > 1)}, fewer than "
        f"{FEW}: chance moves them far; give that split more data (data.split)"
    )
