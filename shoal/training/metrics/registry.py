"""Metrics by name, and how others are added."""

from shoal.config import checks
from shoal.config.errors import did_you_mean
from shoal.config.train_section import metric_title
from shoal.training.metrics import beyond as b
from shoal.training.metrics import definitions as m
from shoal.training.metrics.base import Metric

METRICS: dict[str, type[Metric]] = {
    metric.__name__: metric
    for metric in (
        m.Recall,
        m.MRR,
        m.NDCG,
        m.Hit,
        m.MAP,
        m.Precision,
        m.RBP,
        m.GAUC,
        m.UAUC,
        m.MedRank,
        m.ItemCoverage,
        m.AveragePopularity,
        m.GiniIndex,
        m.ShannonEntropy,
        m.TailPercentage,
        b.Novelty,
        b.Serendipity,
        b.Personalisation,
        b.IntraListDiversity,
        b.Miscalibration,
        b.UserGap,
        b.ItemGap,
        m.AUC,
        m.LogLoss,
        m.Calibration,
        m.MAE,
        m.RMSE,
    )
}


def register(name: str, metric: type[Metric]) -> None:
    """Let configs choose a metric by this name: `eval.metrics: [NAME]`.

    >>> class SecondHit(PerUser):
    ...     def value(self, ranking):  # [b, T]: a value of each user's list at each k
    ...         return (ranking.hits_at > 1).double()
    >>> register("SecondHit", SecondHit)
    """
    METRICS[name] = metric
    checks.add_metric(name, metric.has_topk, metric.needs, metric.reads_groups)


def canonical(name: str) -> str:
    """The proper spelling of a metric's name, whatever its case and its file."""
    name = metric_title(name)
    by_lower = {one.lower(): one for one in METRICS}
    if name.lower() not in by_lower:
        raise ValueError(
            f"unknown metric {name!r}; known are {', '.join(METRICS)}{did_you_mean(name, METRICS)}"
        )
    return by_lower[name.lower()]


def higher_is_better(name: str) -> bool:
    """Whether more is better, for a name such as `MRR@10` or `rmse`."""
    return METRICS[canonical(name.partition("@")[0])].higher_is_better
