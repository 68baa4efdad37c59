"""Statistics over users: intervals of means, differences of two runs, many comparisons at once.

They are Student's t of scipy, whose columns each leave out the users without a value.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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
    mean, low, high, _ = _t_test(np.asarray(values, dtype=np.float64))
    return MeanInterval(mean, low, high)


def paired(a: np.ndarray | Sequence[float], b: np.ndarray | Sequence[float]) -> PairedDifference:
    """How much larger b is than a, user by user (the paired t-test): line k is the same user.

    p: how often a difference at least this large would come by chance, were there none.

    >>> test = paired([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4])
    >>> float(test.difference), float(test.p)
    (0.0, 1.0)
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a has the shape {first.shape} and b {second.shape}: pair them by user")
    differences = second - first
    mean, low, high, p = _t_test(differences)
    # NaN, of fewer than two users or of no difference at all, is no evidence of anything.
    p = np.where(np.isnan(p), 1.0, p)
    # All of n users may be better by chance, however alike their differences are.
    users = np.isfinite(differences).sum(axis=0)
    p = np.minimum(1.0, np.maximum(p, 0.5 ** (users - 1.0)))
    return PairedDifference(mean, low, high, p)


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


def _t_test(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean of each column, its interval, and the p-value of a mean of zero."""
    from scipy import stats  # only where it is needed: its import takes longer than a page

    values = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns with one user, or with values that are alike
        mean = np.nanmean(values, axis=0)
        test = stats.ttest_1samp(values, 0.0, axis=0, nan_policy="omit")
        interval = test.confidence_interval(CONFIDENCE)
    return mean, np.asarray(interval.low), np.asarray(interval.high), np.asarray(test.pvalue)
