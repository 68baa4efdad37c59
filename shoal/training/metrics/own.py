"""Users' own metrics: FILE.py:Class in eval.metrics, or a class that a Python program hands over.

Such a metric is registered by the name of its class, under which its values are reported.
"""

from collections.abc import Mapping
from typing import Any

from shoal.config.train_section import metric_title
from shoal.models.own import find_class, full_name, register_class
from shoal.training.metrics.base import Metric
from shoal.training.metrics.registry import METRICS, register

_own: set[str] = set()  # names of metrics that were registered here


def load_metric(name: str) -> str:
    """Register the metric of FILE.py:Class; its name as it is the same in every folder."""
    metric = find_class(name, Metric, "metric")
    title = metric_title(name)
    if title in METRICS and title not in _own:
        raise ValueError(
            f"metric {name}: {title} is a metric that is there already; call the class otherwise"
        )
    _own.add(title)
    register(title, metric)
    return full_name(name)


def with_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a config, where classes among the metrics have become names."""
    named = dict(values)
    for key in ("eval.metrics", "metrics"):
        if isinstance(metrics := named.get(key), list | tuple):
            named[key] = [register_class(one) if isinstance(one, type) else one for one in metrics]
    if isinstance(section := named.get("eval"), Mapping):
        named["eval"] = with_names(section)
    return named
