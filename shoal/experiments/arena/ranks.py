"""Average ranks of models, Friedman's test, and Nemenyi's critical difference (Demšar 2006)."""

import math
import warnings
from dataclasses import dataclass

import numpy as np

ALPHA = 0.05
FEW_BLOCKS = 5  # with fewer data sets the test hardly ever finds a difference


@dataclass(frozen=True)
class RanksOfModels:
    """How models rank in several blocks: data sets, or users of one."""

    models: list[str]  # the best rank first
    average: list[float]  # of each model; 1 is the best
    blocks: int
    p: float | None  # of Friedman's test; None with two models, or where all ranks are tied
    critical_difference: float
    groups: list[list[str]]  # models that do not differ, each group as large as it can be


def rank_models(models: list[str], values: np.ndarray, higher_is_better: bool) -> RanksOfModels:
    """Rank models by values [blocks, models], each block by itself; ties share their ranks.

    A block in which a model has no value (NaN) does not count.

    >>> ranks = rank_models(["a", "b"], np.array([[0.3, 0.1], [0.4, 0.2]]), higher_is_better=True)
    >>> ranks.models, ranks.average
    (['a', 'b'], [1.0, 2.0])
    """
    from scipy import stats  # only where it is needed: its import takes longer than a page

    values = values[np.isfinite(values).all(axis=1)]
    num_blocks, num_models = values.shape
    if num_models < 2 or num_blocks < 2:
        raise ValueError(f"{num_models} models in {num_blocks} blocks cannot be ranked")
    ranks = stats.rankdata(-values if higher_is_better else values, axis=1)
    average = ranks.mean(axis=0)
    order = np.argsort(average, kind="stable")
    difference = critical_difference(num_models, num_blocks)
    names, means = [models[k] for k in order], [float(average[k]) for k in order]
    return RanksOfModels(
        models=names,
        average=means,
        blocks=num_blocks,
        p=_friedman(values),
        critical_difference=difference,
        groups=_groups(names, means, difference),
    )


def critical_difference(num_models: int, num_blocks: int) -> float:
    """Nemenyi's: average ranks that are further apart differ by more than chance, at 5 %.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy import stats

    quantile = float(stats.studentized_range.ppf(1 - ALPHA, num_models, np.inf))
    return quantile * math.sqrt(num_models * (num_models + 1) / (12 * num_blocks))


def _friedman(values: np.ndarray) -> float | None:
    """The p-value of Friedman's test, which needs three models."""
    from scipy import stats

    if values.shape[1] < 3:
        return None
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where all ranks are tied
        p = float(stats.friedmanchisquare(*values.T).pvalue)
    return p if math.isfinite(p) else None


def _groups(models: list[str], average: list[float], difference: float) -> list[list[str]]:
    """Runs of models, by rank, of which none differs from another; none within a larger one."""
    groups: list[list[str]] = []
    last_end = 0
    for start in range(len(models)):
        end = start + 1
        while end < len(models) and average[end] - average[start] <= difference:
            end += 1
        if end > start + 1 and end > last_end:
            groups.append(models[start:end])
            last_end = end
    return groups
