"""Metrics with additive state: what a block of users or rows adds does not depend on the others.

A metric computes what one block adds to its state (`measure`) and the value of a state (`compute`).
States are merged over blocks and ranks as states, never as results, so every split of the users
over batches and processes gives the same values. Parts of the same name are shared: the counts of
recommended items, say, are kept once for all the metrics that read them.

base.py         blocks of users and rows, what is known of the run, bases of metrics
definitions.py  the metrics of accuracy, each a few lines
beyond.py       novelty, diversity, calibration, fairness
pairs.py        the exact count of pairs behind AUC and GAUC
registry.py     metrics by name, and how others are added
own.py          metrics of FILE.py:Class
collection.py   MetricSet: collects blocks, merges states over ranks, computes
"""

from shoal.training.metrics.base import Groups, Metric, PerRow, PerUser, Ranked, Valued
from shoal.training.metrics.collection import MetricSet, UserValues
from shoal.training.metrics.own import load_metric, with_names
from shoal.training.metrics.pairs import pair_counts
from shoal.training.metrics.registry import METRICS, canonical, higher_is_better, register

__all__ = [
    "METRICS",
    "Groups",
    "Metric",
    "MetricSet",
    "PerRow",
    "PerUser",
    "Ranked",
    "UserValues",
    "Valued",
    "canonical",
    "higher_is_better",
    "load_metric",
    "pair_counts",
    "register",
    "with_names",
]
