"""Seconds of a step while they are added up, what a process reaches, and what travels.

An exchange between hosts goes by way of the devices of a host: what is for another host is brought
together inside first, so that a device sends one message to each other host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from shoal.planning.cluster import Cluster, Efficiency, NetworkLink
from shoal.planning.prediction import PARTS, RunLayout
from shoal.planning.step_work import Work

# What threads that take a host's last core do of a model's layers, of what they could: they wait
# for each other after every operation, and something else always runs there. Seen on two cores.
LAST_CORE = 0.8


@dataclass
class StepTime:
    """Seconds of a step by part, added up part by part."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    hidden: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=lambda: {"inside": 0.0, "between": 0.0})

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        self.seconds[part] += seconds

    def hide(self, part: str, parallel_seconds: float) -> None:
        """Hide a part behind `parallel_seconds` of other parts; the time beyond them stays."""
        free = min(self.seconds[part], parallel_seconds)
        self.seconds[part] -= free
        self.hidden[part] = self.hidden.get(part, 0.0) + free


@dataclass(frozen=True)
class Reach:
    """What one process reaches of its device (or of its cores), per second."""

    products: float
    attention: float
    stream: float
    gather: float
    row: float  # seconds of an id
    kernel: float  # seconds of a kernel
    launch: float  # seconds of the host for an operation; 0: steps are recorded

    @classmethod
    def for_layout(cls, work: Work, cluster: Cluster, layout: RunLayout) -> Reach:
        """What one process of a layout reaches."""
        host, device, rate = cluster.host, cluster.host.device, cluster.efficiency
        peak = device.flops.get(work.precision) or device.flops["float32"]
        bandwidth, cores, of_layers = device.bandwidth, 1.0, 1.0
        stream = bandwidth * rate.stream.value
        if not host.on_gpu:
            processes_per_host = max(1.0, layout.per_host + layout.servers / layout.hosts)
            cores = _cores(
                min(layout.threads, host.devices / processes_per_host), layout.per_host, rate
            )
            last = layout.threads > 1 and not has_spare_core(cluster, layout)
            of_layers = cores * (LAST_CORE if last else 1.0)
            bandwidth = min(cores * bandwidth, host.bandwidth / processes_per_host)
            stream = min(of_layers * stream, host.bandwidth / processes_per_host)
        recorded = work.recorded and host.on_gpu
        return cls(
            products=of_layers * peak * rate.gemm.value,
            attention=of_layers * peak * rate.attention.value,
            stream=stream,
            gather=bandwidth * rate.gather.value,
            row=rate.row.value / cores,
            kernel=rate.kernel.value,
            launch=0.0 if recorded else rate.launch.value,
        )


def _cores(per_process: float, processes: int, rate: Efficiency) -> float:
    """What the cores of a process do, in cores that are alone: busy ones slow each other down."""
    busy = per_process * processes
    return per_process if busy <= 1.0 else (1.0 + rate.threads.value * (busy - 1.0)) / processes


def has_spare_core(cluster: Cluster, layout: RunLayout) -> bool:
    """Whether work that overlaps with a step has a core; with GPUs the host's cores are free."""
    busy = layout.per_host * layout.threads + layout.servers / layout.hosts
    return cluster.host.on_gpu or cluster.host.devices > busy


def between_hosts(cluster: Cluster, layout: RunLayout) -> NetworkLink:
    """The link of a process to other hosts: its device's link, or its share of the host's."""
    link = cluster.between
    assert link is not None, "Cluster.of_size refuses hosts without a link"
    return (
        link if cluster.host.on_gpu else replace(link, bandwidth=link.bandwidth / layout.per_host)
    )


def over(link: NetworkLink, rate: Efficiency, bytes_: float, messages: float) -> float:
    """Seconds that bytes take over a link, sent as `messages` messages one after the other."""
    return bytes_ / (link.bandwidth * rate.link(link).value) + messages * link.latency


def all_to_all(step: StepTime, cluster: Cluster, layout: RunLayout, bytes_: float) -> None:
    """Every process sends its share of `bytes_` to every other; between hosts by way of its host.

    What goes to another host is brought together inside first, so that a device sends one message
    to each other host.
    """
    inside, hosts = layout.per_host, layout.hosts
    if inside > 1:
        sent_bytes = bytes_ * (inside - 1) / inside
        step.sent["inside"] += sent_bytes
        step.add("exchange_inside", over(cluster.host.inside, cluster.efficiency, sent_bytes, 1))
    if hosts > 1:
        sent_bytes = bytes_ * (hosts - 1) / hosts
        step.sent["between"] += sent_bytes
        link, messages = between_hosts(cluster, layout), 1 + (hosts - 1) / 8
        step.add(
            "exchange_between",
            over(link, cluster.efficiency, sent_bytes, messages),
        )


def all_gather(step: StepTime, cluster: Cluster, layout: RunLayout, bytes_: float) -> None:
    """Every process receives `bytes_` of every other one."""
    inside, hosts = layout.per_host, layout.hosts
    if hosts > 1:
        sent_bytes = bytes_ * (hosts - 1)
        step.sent["between"] += sent_bytes
        part = over(
            between_hosts(cluster, layout), cluster.efficiency, sent_bytes, math.log2(hosts)
        )
        step.add("exchange_between", part)
    if inside > 1:
        sent_bytes = bytes_ * hosts * (inside - 1)
        step.sent["inside"] += sent_bytes
        part = over(cluster.host.inside, cluster.efficiency, sent_bytes, math.log2(inside))
        step.add("exchange_inside", part)


def all_reduce(
    step: StepTime, cluster: Cluster, layout: RunLayout, bytes_: float, part: str = "all_reduce"
) -> None:
    """A sum over all processes: scattered inside a host, then between hosts, then gathered."""
    inside, hosts = layout.per_host, layout.hosts
    if inside > 1 and bytes_:
        sent_bytes = 2 * bytes_ * (inside - 1) / inside
        step.sent["inside"] += sent_bytes
        step.add(
            part, over(cluster.host.inside, cluster.efficiency, sent_bytes, 2 * math.log2(inside))
        )
    if hosts > 1 and bytes_:
        sent_bytes = 2 * bytes_ / inside * (hosts - 1) / hosts
        step.sent["between"] += sent_bytes
        step.add(
            part,
            over(
                between_hosts(cluster, layout), cluster.efficiency, sent_bytes, 2 * math.log2(hosts)
            ),
        )
