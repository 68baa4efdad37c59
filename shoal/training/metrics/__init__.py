"""Metrics with additive state: what a block of users or rows adds does not depend on the others.

A metric says what one block adds to its state (`measure`) and what a state is worth (`compute`).
States are merged over blocks and ranks as states, never as results, so every split of the users
over batches and processes gives the same values. Parts of the same name are shared: the counts of
recommended items, say, are kept once for all the metrics that read them.

definitions.py  the metrics, each a few lines
pairs.py        the exact count of pairs behind AUC and GAUC
collection.py   MetricSet: collects blocks, merges states over ranks, computes
"""

from shoal.training.metrics.collection import Kept, MetricSet
from shoal.training.metrics.definitions import (
    METRICS,
    Metric,
    PerRow,
    PerUser,
    Ranked,
    Valued,
    canonical,
    higher_is_better,
    register,
)
from shoal.training.metrics.pairs import pair_counts

__all__ = [
    "METRICS",
    "Kept",
    "Metric",
    "MetricSet",
    "PerRow",
    "PerUser",
    "Ranked",
    "Valued",
    "canonical",
    "higher_is_better",
    "pair_counts",
    "register",
]
