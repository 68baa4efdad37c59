"""Which strategy, on how many hosts, what limits it, and what would change it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.sizes import show_size
from shoal.planning.cluster import Cluster, NetworkLink
from shoal.planning.prediction import Place, Prediction, RunLayout
from shoal.planning.step_time import ROOM, predict
from shoal.planning.step_work import Work

MOST_HOSTS = 4096
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
TARGET = re.compile(
    r"\s*([\d.]+)\s*epochs?\s+in\s+([\d.]+)\s*(s|min|h|d)(?:ec\w*|ute\w*|our\w*|ay\w*)?\s*"
)


@dataclass(frozen=True)
class Target:
    """A goal: a number of epochs in a number of seconds."""

    epochs: float
    seconds: float

    @classmethod
    def read(cls, text: str) -> Target:
        """
        >>> Target.read("1 epoch in 2 h")
        Target(epochs=1.0, seconds=7200.0)
        """
        match = TARGET.fullmatch(text)
        try:
            target = cls(float(match[1]), float(match[2]) * SECONDS[match[3]]) if match else None
        except ValueError:
            target = None
        if target is None or target.epochs <= 0 or target.seconds <= 0:
            raise ValueError(
                f"--target: given {text!r}; write it as '1 epoch in 2 h', '10 epochs in 90 min'"
            )
        return target


def layouts(work: Work, cluster: Cluster) -> list[RunLayout]:
    """Layouts to compare on a cluster: every strategy on all devices, and one process."""
    # One process, then data-parallel and sharded layouts of all devices.
    host, hosts, size = cluster.host, cluster.hosts, cluster.devices
    threads = 1 if host.on_gpu else host.devices
    candidates = [RunLayout("single", threads=threads)]
    if not host.on_gpu and hosts > 1:  # a process for each host is enough, its threads do the rest
        size, threads = hosts, host.devices
    elif not host.on_gpu:
        threads = 1
    if size > 1:
        candidates.append(RunLayout("ddp", size, hosts, threads))
        places: list[Place] = ["row"]
        if all(table.state_bytes != 4 for table in work.tables):  # one number: of whole rows
            places.append("column")
        if len(work.tables) >= size:
            places.append("table")
        candidates += [RunLayout("sharded", size, hosts, threads, place=place) for place in places]
        if hosts > 1:
            candidates.append(RunLayout("sharded", size, hosts, threads, place="row", groups=hosts))
    # Parameter servers.
    servers = max(1, hosts // 4) if hosts > 1 else 1
    workers = size if host.on_gpu else size - servers  # servers compute on cores
    if workers >= 1 and size > 1:
        workers_on = max(1, hosts - servers) if hosts > 1 and not host.on_gpu else hosts
        candidates += [
            RunLayout("ps", workers, workers_on, threads, servers=servers, mode=mode)
            for mode in ("sync", "async")
        ]
    # Tiers, where the rows do not fit the memory of all devices.
    room = ROOM * (host.device.memory if host.on_gpu else host.memory / max(1, size // hosts))
    share = min(1.0, 0.8 * room * size / max(1, work.table_bytes))
    if share < 1.0:
        in_host = host.on_gpu and work.table_bytes < ROOM * host.memory * hosts
        tiers = RunLayout("tiers", size, hosts, threads, place="row", in_memory=share)
        candidates.append(tiers if in_host else replace(tiers, over="ssd"))
    return candidates


def rank_layouts(work: Work, cluster: Cluster, bars: bool = True) -> list[Prediction]:
    """Predictions of all layouts: those that fit first, the fastest epoch first."""
    predictions = [predict(work, cluster, layout, bars) for layout in layouts(work, cluster)]
    return sorted(
        predictions, key=lambda prediction: (not prediction.fits, prediction.epoch_seconds)
    )


def choose(ranking: list[Prediction]) -> Prediction:
    """The fastest prediction that fits, synchronous if possible; ValueError where nothing fits."""
    fitting = [prediction for prediction in ranking if prediction.fits]
    fitting = [prediction for prediction in fitting if prediction.layout.mode == "sync"] or fitting
    if not fitting:
        least = min(ranking, key=lambda prediction: prediction.short)
        raise ValueError(cannot_fit(least))
    return fitting[0]


def cannot_fit(least: Prediction) -> str:
    """A message: how much memory the nearest layout lacks, and what would help."""
    layout, missing = least.layout, show_size(least.short)
    need = max(
        0.0 if least.device_room is None else least.device_bytes / least.device_room,
        least.host_bytes / least.host_room,
    )
    hosts = math.ceil(layout.hosts * need)
    return (
        f"nothing fits: {layout.title} comes nearest and lacks {missing} on the fullest "
        f"{'device' if least.device_room is not None else 'host'}; {hosts} such hosts would do, "
        f"or rows on disks (rows.tiers.ssd), or rows of 1/{math.ceil(need)} of the width"
    )


# ---- what would change --------------------------------------------------------------------------


def _faster_link(link: NetworkLink, factor: float) -> NetworkLink:
    return replace(link, bandwidth=factor * link.bandwidth)


def _device(cluster: Cluster, **factors: float) -> Cluster:
    host, device = cluster.host, cluster.host.device
    if "bandwidth" in factors:
        device = replace(device, bandwidth=factors["bandwidth"] * device.bandwidth)
        host = replace(host, bandwidth=factors["bandwidth"] * host.bandwidth)
    if "flops" in factors:
        faster = {key: factors["flops"] * value for key, value in device.flops.items()}
        device = replace(device, flops=faster)
    return replace(cluster, host=replace(host, device=device))


def sensitivity(work: Work, cluster: Cluster, layout: RunLayout) -> list[tuple[str, float, float]]:
    """Changes, with milliseconds of a step after each, and the factor in samples per second."""
    inside = _faster_link(cluster.host.inside, 0.5)
    between = None if cluster.between is None else _faster_link(cluster.between, 0.5)
    changes = {
        "batch doubled": (work.of_batch(2 * work.batch), cluster, layout),
        "batch halved": (work.of_batch(max(1, work.batch // 2)), cluster, layout),
        "links inside at half": (
            work,
            replace(cluster, host=replace(cluster.host, inside=inside)),
            layout,
        ),
        "links between hosts at half": (work, replace(cluster, between=between), layout),
        "memory bandwidth doubled": (work, _device(cluster, bandwidth=2.0), layout),
        "operations doubled": (work, _device(cluster, flops=2.0), layout),
        "rows of half the bytes": (_half_rows(work), cluster, layout),
    }
    if layout.hosts == 1:
        del changes["links between hosts at half"]
    if layout.processes == 1:
        del changes["links inside at half"]
    if layout.strategy != "single" and cluster.between is not None:
        twice = replace(layout, processes=2 * layout.processes, hosts=2 * layout.hosts)
        changes["hosts doubled"] = (work, cluster.of_size(2 * cluster.hosts), twice)
    current_rate = predict(work, cluster, layout, bars=False).samples_per_second
    predictions = {name: predict(*change, bars=False) for name, change in changes.items()}
    return [
        (name, p.step.value, p.samples_per_second / current_rate) for name, p in predictions.items()
    ]


def _half_rows(work: Work) -> Work:
    tables = (replace(one, value_bytes=max(1, one.value_bytes // 2)) for one in work.tables)
    return replace(work, tables=tuple(tables))


def advice(best: Prediction, cluster: Cluster) -> str:
    """What to change first, by the resource that binds and what the devices can do."""
    device = cluster.host.device
    hardware = "more devices" if cluster.host.on_gpu else "more cores"
    faster = device.flops.get("bfloat16", 0.0) > 1.1 * device.flops["float32"]
    half = "train.precision=bfloat16 where it is float32, or " if faster else ""
    recorded = ", recorded steps (strategy.graph)" if cluster.host.on_gpu else ""
    for word, text in {
        "rows": f"rows in bfloat16 (rows.dtype), a row-wise optimizer, or {hardware}",
        "inside": "devices with a faster link, a larger share of small tables replicated "
        "(strategy.replicate_below), or rows that travel in half the bytes",
        "between": "a faster network, fewer and larger hosts, or a larger batch",
        "all-reduce": "a larger batch, so that gradients travel less often",
        "products": f"{half}{hardware}",
        "attention": f"shorter histories, or {hardware}",
        "elementwise": f"{half}train.compile, which joins operations",
        "kernels": f"a larger batch{recorded}",
        "launches": f"a larger batch{recorded}, or fewer processes",
        "input": "prepared data (shoal prepare), or more cores",
        "optimizer": "a larger batch, so that it runs less often",
    }.items():
        if word in best.binds:
            return text
    return hardware


def smallest_cluster(
    work: Work, cluster: Cluster, target: Target
) -> tuple[Prediction, Cluster] | None:
    """The fewest hosts (a power of two) that reach a target; None: MOST_HOSTS do not."""
    hosts = 1
    while hosts <= (MOST_HOSTS if cluster.between is not None else 1):
        sized_cluster = cluster.of_size(hosts)
        ranking = [one for one in rank_layouts(work, sized_cluster, bars=False) if one.fits]
        if ranking:
            best = choose(ranking)
            if target.epochs * best.epoch_seconds <= target.seconds:
                return best, sized_cluster
        hosts *= 2
    return None


def keys(best: Prediction) -> dict[str, Any]:
    """The plan as keys of a config."""
    layout = best.layout
    name = {"tiers": "sharded" if layout.processes > 1 else "single"}.get(
        layout.strategy, layout.strategy
    )
    config_keys: dict[str, Any] = {"strategy.name": name}
    if layout.strategy == "sharded":
        config_keys["strategy.place"] = layout.place
        if layout.groups > 1:
            config_keys["strategy.groups"] = layout.groups
    if layout.strategy == "ps":
        config_keys |= {"strategy.ps.mode": layout.mode, "launch.servers": layout.servers}
    if layout.strategy == "tiers":
        row_memory = f"{best.device_bytes or best.host_bytes / layout.per_host:.3g}"
        key = "rows.tiers.gpu" if layout.over == "host" else "rows.tiers.host"
        config_keys[key] = int(float(row_memory))
        if layout.over == "ssd":
            config_keys["rows.tiers.ssd"] = "FOLDER"
    config_keys["launch.nproc"] = layout.per_host
    if layout.hosts > 1:
        config_keys["launch.world_size"] = layout.processes
    config_keys["train.batch_size"] = best.batch
    return config_keys
