"""Metrics by name, as the checks of a config read them: a metric's class has all that is asked."""

from importlib import import_module
from typing import ClassVar, Literal, Protocol

import shoal


class MetricClass(Protocol):
    """What a class of shoal.training.metrics says of its metric."""

    needs: ClassVar[Literal["ranked", "valued", "either"]]  # lists, values against labels
    has_topk: ClassVar[bool]  # it is reported for each cut-off of eval.topk
    best_at: ClassVar[float | None]  # the best value; None: the highest or the lowest
    reads_groups: ClassVar[Literal["user", "item"] | None]  # of eval.groups


_classes: dict[str, type[MetricClass]] = {}


def add_metric_class(name: str, metric: type[MetricClass]) -> None:
    """Let configs choose a metric by this name."""
    _classes[name] = metric


def metric_classes() -> dict[str, type[MetricClass]]:
    """Name -> class of every metric. Those of the package are imported with the first call."""
    import_module(shoal.METRICS)
    return _classes
