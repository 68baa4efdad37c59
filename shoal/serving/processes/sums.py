"""Sums of the metrics of several processes, as documents that JSON can hold.

{"shoal_requests": {"help": …, "type": "counter", "samples": [[name, {label: value}, number], …]}}

This file imports nothing of Prometheus: the parent of the processes adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MetricsDocument = dict[str, dict[str, Any]]
# Gauges that are no part of a whole: of several processes the largest counts.
LARGEST = (
    "shoal_uptime_seconds",
    "shoal_artifact_since_seconds",
    "shoal_version_share",
    "shoal_added_items",
    "shoal_left_out_items",
)
LASTING = ("counter", "histogram")  # what remains counted after its process


def summed(documents: Iterable[MetricsDocument]) -> MetricsDocument:
    """One document with the sum of each sample.

    >>> def requests(number):
    ...     samples = [["shoal_requests_total", {"status": "200"}, number]]
    ...     return {"shoal_requests": {"help": "", "type": "counter", "samples": samples}}
    >>> summed([requests(2), requests(3)])["shoal_requests"]["samples"]
    [['shoal_requests_total', {'status': '200'}, 5]]
    """
    total: MetricsDocument = {}
    places: dict[tuple[str, tuple[tuple[str, str], ...]], list[Any]] = {}
    for document in documents:
        for family, facts in document.items():
            whole = total.setdefault(family, {**facts, "samples": []})
            for name, labels, number in facts["samples"]:
                key = name, tuple(sorted(labels.items()))
                sample = places.get(key)
                if sample is None:
                    places[key] = sample = [name, labels, number]
                    whole["samples"].append(sample)
                elif name.endswith("_created"):
                    sample[2] = min(sample[2], number)
                elif facts["type"] == "info" or family in LARGEST:
                    sample[2] = max(sample[2], number)
                else:
                    sample[2] += number
    return total


def lasting(document: MetricsDocument) -> MetricsDocument:
    """The counts of a process that has ended: what it held at that moment is gone."""
    return {name: facts for name, facts in document.items() if facts["type"] in LASTING}


def figure(name: str, kind: str, text: str, number: float) -> MetricsDocument:
    """A document of one number; kind: counter or gauge."""
    sample = name + "_total" * (kind == "counter")
    return {name: {"help": text, "type": kind, "samples": [[sample, {}, number]]}}
