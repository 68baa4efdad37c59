"""Metrics of a service, as Prometheus reads them at /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.serving.processes.sums import MetricsDocument

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
    "items_posted_total": "New items that were posted",
    "added_items": "Items that an artifact has in service and was not trained with",
    "left_out_items": "New items that an artifact cannot read",
    "version_share": "Share of users whom a version answers",
    "shadow_requests_total": "Requests that the shadow was asked after they were answered",
    "shadow_failed_total": "Requests in these that the shadow could not answer",
    "shadow_dropped_total": "Requests that the shadow was not asked, because it lagged or was gone",
    "shadow_lists_total": "Lists of the shadow that were compared with those that were answered",
    "shadow_equal_lists_total": "Lists in these with the same items in the same order",
    "shadow_overlap_total": "Sum over these lists of the part of their items in both",
    "shadow_seconds_total": "Seconds that the shadow computed",
    "shadow_ends_total": "Unexpected ends of the shadow's process",
}
BY_ARTIFACT = {name for name in DESCRIPTIONS if name.startswith(("version_", "shadow_"))}
BY_ARTIFACT |= {"added_items", "left_out_items"}
# A number, or one for each stage of a pipeline or for each artifact (`BY_ARTIFACT`).
Count = float | Mapping[str, float]
# Counts by the names above, and labels of each artifact or pipeline in use.
ReadCounts = Callable[[], tuple[dict[str, Count], list[dict[str, str]]]]


class RequestMetrics:
    """Counts requests and their times by route, and reports what other parts count.

    >>> metrics = RequestMetrics(lambda: ({"batches_total": 3}, [{"artifact": "monday"}]))
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

    def document(self) -> MetricsDocument:
        """All metrics as a document that can be added to those of other processes."""
        return {
            metric.name: {
                "help": metric.documentation,
                "type": metric.type,
                "samples": [
                    [sample.name, dict(sample.labels), sample.value] for sample in metric.samples
                ],
            }
            for metric in self.registry.collect()
        }

    def collect(self) -> Iterable[Metric]:
        """The counts of other parts; the registry calls this."""
        counts, labels = self.read_counts()
        for name, value in counts.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if not isinstance(value, Mapping):
                yield kind(f"shoal_{name}", DESCRIPTIONS[name], value=value)
                continue
            label = "artifact" if name in BY_ARTIFACT else "stage"
            family = kind(f"shoal_{name}", DESCRIPTIONS[name], labels=[label])
            for word, number in value.items():
                family.add_metric([word], number)
            yield family
        info = InfoMetricFamily("shoal_artifact", "The artifact in use", labels=[])
        for facts in labels:
            info.add_metric([], facts)
        yield info


def text_of(document: MetricsDocument) -> bytes:
    """A document of metrics in Prometheus' text format.

    >>> from shoal.serving.processes.sums import figure
    >>> document = figure("shoal_states", "gauge", "Histories", 3)
    >>> text_of(document).decode().splitlines()[-1]
    'shoal_states 3.0'
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DocumentCollector(document))
    return generate_latest(registry)


class DocumentCollector(Collector):
    """The metrics of a document, as a registry reads them."""

    def __init__(self, document: MetricsDocument):
        self.document = document

    def collect(self) -> Iterable[Metric]:
        """A metric for each family."""
        for name, facts in self.document.items():
            metric = Metric(name, facts["help"], facts["type"])
            for sample, labels, value in facts["samples"]:
                metric.add_sample(sample, labels, value)
            yield metric


class VersionMetrics:
    """Counts requests and their times by version, in the registry of a service.

    >>> registry = CollectorRegistry()
    >>> VersionMetrics(registry).add("monday", status=200, seconds=0.002)
    >>> 'shoal_version_seconds_count{artifact="monday"} 1.0' in generate_latest(registry).decode()
    True
    """

    def __init__(self, registry: CollectorRegistry):
        self.requests = Counter(
            "shoal_version_requests",
            "Requests that a version was asked",
            ["artifact", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "shoal_version_seconds",
            "Seconds until a version answered",
            ["artifact"],
            buckets=SECONDS,
            registry=registry,
        )

    def add(self, artifact: str, status: int, seconds: float) -> None:
        """Count a request to a version; the times are those of answers alone."""
        self.requests.labels(artifact, status).inc()
        if status == 200:
            self.seconds.labels(artifact).observe(seconds)
