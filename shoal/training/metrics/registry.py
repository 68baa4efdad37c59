"""Metrics by name: every class of definitions.py and beyond.py, and those that others register."""

from shoal.config.errors import did_you_mean
from shoal.config.metric_classes import add_metric_class
from shoal.config.train_section import metric_title
from shoal.training.metrics import beyond, definitions
from shoal.training.metrics.base import Metric

METRICS: dict[str, type[Metric]] = {}


def register(name: str, metric: type[Metric]) -> None:
    """Let configs choose a metric by this name: `eval.metrics: [NAME]`.

    >>> class SecondHit(PerUser):
    ...     def value(self, ranking):  # [b, T]: a value of each user's list at each k
    ...         return (ranking.hits_at > 1).double()
    >>> register("SecondHit", SecondHit)
    """
    METRICS[name] = metric
    add_metric_class(name, metric)


for module in (definitions, beyond):
    for name, member in vars(module).items():
        # A name without underscore that the file itself defines, not one that it imports.
        if isinstance(member, type) and member.__module__ == module.__name__:
            register(name, member)


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
