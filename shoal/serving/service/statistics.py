"""Metrics of a service, as Prometheus reads them at /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
DESCRIPTIONS = {  # of what other parts of the service count; names in _total are counters
    "batches_total": "Batches that the model answered",
    "batched_requests_total": "Requests in these batches",
    "too_late_total": "Requests refused because their answer would have come after the deadline",
    "reloads_total": "Newer artifacts, or pipelines, that took the place of an older one",
    "reload_failures_total": "Artifacts, or pipelines, that could not be loaded",
    "artifact_since_seconds": "When the artifact or pipeline was taken, in seconds since 1970",
    "fallbacks_total": "Questions in which something took the place of a stage",
    "logged_total": "Answers in the request log",
    "log_lost_total": "Answers that could not be written into the request log",
    "state_bytes": "Bytes of the histories that are kept between requests",
    "states": "Histories that are kept between requests",
    "state_requests_total": "Histories in requests",
    "state_hits_total": "Histories whose beginning was kept",
}
Count = float | Mapping[str, float]  # a number, or one for each stage of a pipeline
# Counts by the names above, and labels of what is in use.
ReadCounts = Callable[[], tuple[dict[str, Count], dict[str, str]]]


class RequestMetrics:
    """Counts requests and their times by route, and reports what other parts count.

    >>> metrics = RequestMetrics(lambda: ({"batches_total": 3}, {"artifact": "monday"}))
    >>> counter, histogram = metrics.series("/ready", 200)
    >>> counter.inc()
    >>> 'shoal_requests_total{route="/ready",status="200"} 1.0' in metrics.text().decode()
    True
    """

    def __init__(self, read_counts: ReadCounts):
        self.read_counts = read_counts
        # Separate from the package's global registry: a process may hold several services.
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "shoal_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "shoal_request_seconds",
            "Seconds from a request's head to its answer",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("shoal_in_flight", "Requests being answered", registry=self.registry)
        start = time.monotonic()
        uptime = Gauge("shoal_uptime_seconds", "Seconds in service", registry=self.registry)
        uptime.set_function(lambda: time.monotonic() - start)
        self.registry.register(self)
        # Kept, because finding series by their labels costs more than counting.
        self.series = cache(self._find_series)

    def _find_series(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """What counts requests of a route with this status, and the seconds of the route."""
        return self.requests.labels(route, status), self.seconds.labels(route)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format (`prometheus_client.CONTENT_TYPE_LATEST`)."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """The counts of other parts; the registry calls this."""
        counts, labels = self.read_counts()
        for name, value in counts.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if not isinstance(value, Mapping):
                yield kind(f"shoal_{name}", DESCRIPTIONS[name], value=value)
                continue
            family = kind(f"shoal_{name}", DESCRIPTIONS[name], labels=["stage"])
            for stage, number in value.items():
                family.add_metric([stage], number)
            yield family
        yield InfoMetricFamily("shoal_artifact", "The artifact in use", value=labels)
