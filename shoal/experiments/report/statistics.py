"""Statistics over users: intervals of means, differences of two runs, many comparisons at once.

Users are resampled with replacement (the bootstrap); every function is a pure function of its
values. Columns of a matrix share their resamples, so that one call serves all metrics of a run.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000  # for an interval
RESAMPLES_OF_PAIRS = 10_000  # no p-value is smaller than 1 / this
# More users are put into so many random groups first, whose sums are resampled in their place: the
# deviation of a mean is the same, and known to 2 %, however many users there are.
GROUPS = 1000
CONFIDENCE = 0.95


class MeanInterval(NamedTuple):
    """The mean over users, and the interval that holds it; each a number, or one per column."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class PairedDifference(NamedTuple):
    """The mean of b - a over users, its interval, and the p-value of no difference."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def mean_interval(values: np.ndarray | Sequence[float]) -> MeanInterval:
    """The mean of each column [users] or [users, columns], with its 95 % interval.

    A user with NaN has no value, and does not count. The interval of fewer than two users is NaN.

    >>> mean, low, high = mean_interval([0.0, 0.5, 0.5, 1.0])
    >>> float(mean), bool(low < mean < high)
    (0.5, True)
    """
    mean, deviations = _resample(np.asarray(values, dtype=np.float64), RESAMPLES)
    return MeanInterval(mean, *_interval(mean, deviations))


def paired(a: np.ndarray | Sequence[float], b: np.ndarray | Sequence[float]) -> PairedDifference:
    """How much larger b is than a, user by user: line k of both is the same user.

    p: how often a difference at least this large would come by chance, were there none.

    >>> found = paired([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4])
    >>> float(found.difference), float(found.p)
    (0.0, 1.0)
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a has the shape {first.shape} and b {second.shape}: pair them by user")
    mean, deviations = _resample(second - first, RESAMPLES_OF_PAIRS)
    # NaN (fewer than two users) is no evidence of anything.
    extreme = ~(np.abs(deviations) < np.abs(mean))
    p = (1 + extreme.sum(axis=0)) / (1 + RESAMPLES_OF_PAIRS)
    # All of n users may be better by chance: no test finds less than all of them on one side.
    users = np.isfinite(second - first).sum(axis=0)
    p = np.minimum(1.0, np.maximum(p, 0.5 ** (users - 1.0)))
    return PairedDifference(mean, *_interval(mean, deviations), p)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values of several comparisons, each raised for having been one of many (Holm 1979).

    NaN is no comparison, and stays.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = [k for k in np.argsort(ps) if not np.isnan(ps[k])]
    adjusted, least = [float(p) for p in ps], 0.0
    for place, k in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * ps[k]))
        adjusted[k] = least
    return adjusted


def _interval(mean: np.ndarray, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(deviations, [tail, 1 - tail], axis=0)
    return mean + low, mean + high


def _resample(values: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Means of the columns, and how far those of each resample lie from them [number, ...]."""
    columns = values.reshape(len(values), math.prod(values.shape[1:]))
    is_known = np.isfinite(columns)
    sums, counts = np.where(is_known, columns, 0.0), is_known.astype(np.float64)
    users = counts.sum(axis=0)
    mean = np.divide(sums.sum(axis=0), users, out=np.full(len(users), np.nan), where=users > 0)
    sums -= np.where(is_known, mean, 0.0)  # deviations add up without a loss of digits
    resamples = _draw(len(columns), number)
    if resamples.starts is not None:
        sums, counts = (
            np.add.reduceat(column_sums[resamples.order], resamples.starts, axis=0)
            for column_sums in (sums, counts)
        )
    deviations, first = np.zeros((number, columns.shape[1])), 0
    for block in resamples.weights:
        weights = block.astype(np.float64)
        total = weights @ counts
        deviations[first : first + len(block)] = np.divide(
            weights @ sums, total, out=np.zeros_like(total), where=total > 0
        )
        first += len(block)
    # A resample of n users varies by (n - 1) / n of what users do.
    few = users < 2
    deviations *= np.sqrt(users / np.maximum(users - 1, 1))
    deviations[:, few] = np.nan
    shape = values.shape[1:]
    return mean.reshape(shape), deviations.reshape(number, *shape)


class Resamples(NamedTuple):
    """Users in groups, and how often each group is drawn: blocks of [resamples, groups]."""

    order: np.ndarray | None  # users by group; None: each is a group
    starts: np.ndarray | None
    weights: list[np.ndarray]


@lru_cache(maxsize=2)  # the same for all runs of a page
def _draw(users: int, number: int) -> Resamples:
    draw = np.random.default_rng(0)
    units = users
    order = starts = None
    if users > GROUPS:
        group = draw.permutation(np.arange(users) % GROUPS)
        order = np.argsort(group, kind="stable")
        units, starts = GROUPS, np.searchsorted(group[order], np.arange(GROUPS))
    weights, block = [], max(1, (1 << 21) // max(1, units))
    for first in range(0, number if units else 0, block):
        size = min(block, number - first)
        drawn = draw.integers(0, units, (size, units)) + units * np.arange(size)[:, None]
        counted = np.bincount(drawn.ravel(), minlength=size * units).reshape(size, units)
        weights.append(counted.astype(np.uint16))
    return Resamples(order, starts, weights)
