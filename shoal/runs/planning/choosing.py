"""Which strategy, on how many hosts, what limits it, and what would change it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.row_rules import show_size
from shoal.runs.planning.cluster import Cluster, NetworkLink
from shoal.runs.planning.prediction import Place, Prediction, RunLayout
from shoal.runs.planning.timing import ROOM, predict
from shoal.runs.planning.work import Work

MOST_HOSTS = 4096
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
TARGET = re.compile(
    r"\s*([\d.]+)\s*epochs?\s+in\s+([\d.]+)\s*(s|min|h|d)(?:ec\w*|ute\w*|our\w*|ay\w*)?\s*"
)


@dataclass(frozen=True)
class Target:
    """So many epochs in so many seconds."""

    epochs: float
    seconds: float

    @classmethod
    def read(cls, text: str) -> Target:
        """
        >>> Target.read("1 epoch in 2 h")
        Target(epochs=1.0, seconds=7200.0)
        """
        found = TARGET.fullmatch(text)
        try:
            made = cls(float(found[1]), float(found[2]) * SECONDS[found[3]]) if found else None
        except ValueError:
            made = None
        if made is None or made.epochs <= 0 or made.seconds <= 0:
            raise ValueError(
                f"--target: given {text!r}; write it as '1 epoch in 2 h', '10 epochs in 90 min'"
            )
        return made


def layouts(work: Work, cluster: Cluster) -> list[RunLayout]:
    """What is worth a look on a cluster: every strategy on all devices, and one process."""
    host, hosts, size = cluster.host, cluster.hosts, cluster.devices
    one = 1 if host.on_gpu else host.devices
    found = [RunLayout("single", threads=one)]
    if not host.on_gpu and hosts > 1:  # a process for each host is enough, its threads do the rest
        size, one = hosts, host.devices
    elif not host.on_gpu:
        one = 1
    if size > 1:
        found.append(RunLayout("ddp", size, hosts, one))
        places: list[Place] = ["row"]
        if all(table.state_bytes != 4 for table in work.tables):  # one number: of whole rows
            places.append("column")
        if len(work.tables) >= size:
            places.append("table")
        found += [RunLayout("sharded", size, hosts, one, place=place) for place in places]
        if hosts > 1:
            found.append(RunLayout("sharded", size, hosts, one, place="row", groups=hosts))
    servers = max(1, hosts // 4) if hosts > 1 else 1
    workers = size if host.on_gpu else size - servers  # servers compute on cores
    if workers >= 1 and size > 1:
        workers_on = max(1, hosts - servers) if hosts > 1 and not host.on_gpu else hosts
        found += [
            RunLayout("ps", workers, workers_on, one, servers=servers, mode=mode)
            for mode in ("sync", "async")
        ]
    room = ROOM * (host.device.memory if host.on_gpu else host.memory / max(1, size // hosts))
    share = min(1.0, 0.8 * room * size / max(1, work.table_bytes))
    if share < 1.0:
        in_host = host.on_gpu and work.table_bytes < ROOM * host.memory * hosts
        tiers = RunLayout("tiers", size, hosts, one, place="row", in_memory=share)
        found.append(tiers if in_host else replace(tiers, over="ssd"))
    return found


def rank(work: Work, cluster: Cluster, bars: bool = True) -> list[Prediction]:
    """All layouts, those that fit first, then by the time of an epoch."""
    every = [predict(work, cluster, layout, bars) for layout in layouts(work, cluster)]
    return sorted(every, key=lambda one: (not one.fits, one.epoch_seconds))


def choose(ranking: list[Prediction]) -> Prediction:
    """The fastest that fits, synchronous where one is; ValueError where nothing fits."""
    able = [one for one in ranking if one.fits]
    able = [one for one in able if one.layout.mode == "sync"] or able
    if not able:
        least = min(ranking, key=lambda one: one.short)
        raise ValueError(cannot_fit(least))
    return able[0]


def cannot_fit(least: Prediction) -> str:
    """By how much the nearest layout fails, and what would do."""
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
    """What if: milliseconds of a step, and samples per second against what they are now."""
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
    now = predict(work, cluster, layout, bars=False).samples_per_second
    made = {name: predict(*change, bars=False) for name, change in changes.items()}
    return [(name, p.step.value, p.samples_per_second / now) for name, p in made.items()]


def _half_rows(work: Work) -> Work:
    tables = (replace(one, value_bytes=max(1, one.value_bytes // 2)) for one in work.tables)
    return replace(work, tables=tuple(tables))


def advice(best: Prediction, cluster: Cluster) -> str:
    """What to change first, by what binds, of what the cluster's devices can do."""
    device = cluster.host.device
    more = "more devices" if cluster.host.on_gpu else "more cores"
    faster = device.flops.get("bfloat16", 0.0) > 1.1 * device.flops["float32"]
    half = "train.precision=bfloat16 where it is float32, or " if faster else ""
    recorded = ", recorded steps (strategy.graph)" if cluster.host.on_gpu else ""
    for word, text in {
        "rows": f"rows in bfloat16 (rows.dtype), a row-wise optimizer, or {more}",
        "inside": "devices with a faster link, a larger share of small tables replicated "
        "(strategy.replicate_below), or rows that travel in half the bytes",
        "between": "a faster network, fewer and larger hosts, or a larger batch",
        "all-reduce": "a larger batch, so that gradients travel less often",
        "products": f"{half}{more}",
        "attention": f"shorter histories, or {more}",
        "elementwise": f"{half}train.compile, which joins operations",
        "kernels": f"a larger batch{recorded}",
        "launches": f"a larger batch{recorded}, or fewer processes",
        "input": "prepared data (shoal prepare), or more cores",
        "optimizer": "a larger batch, so that it runs less often",
    }.items():
        if word in best.binds:
            return text
    return more


def meet(work: Work, cluster: Cluster, target: Target) -> tuple[Prediction, Cluster] | None:
    """The fewest hosts (a power of two) that reach a target; None: not even the most do."""
    hosts = 1
    while hosts <= (MOST_HOSTS if cluster.between is not None else 1):
        there = cluster.of_size(hosts)
        ranking = [one for one in rank(work, there, bars=False) if one.fits]
        if ranking:
            best = choose(ranking)
            if target.epochs * best.epoch_seconds <= target.seconds:
                return best, there
        hosts *= 2
    return None


def keys(best: Prediction) -> dict[str, Any]:
    """The plan as keys of a config."""
    layout = best.layout
    name = {"tiers": "sharded" if layout.processes > 1 else "single"}.get(
        layout.strategy, layout.strategy
    )
    found: dict[str, Any] = {"strategy.name": name}
    if layout.strategy == "sharded":
        found["strategy.place"] = layout.place
        if layout.groups > 1:
            found["strategy.groups"] = layout.groups
    if layout.strategy == "ps":
        found |= {"strategy.ps.mode": layout.mode, "launch.servers": layout.servers}
    if layout.strategy == "tiers":
        held = f"{best.device_bytes or best.host_bytes / layout.per_host:.3g}"
        key = "rows.tiers.gpu" if layout.over == "host" else "rows.tiers.host"
        found[key] = int(float(held))
        if layout.over == "ssd":
            found["rows.tiers.ssd"] = "FOLDER"
    found["launch.nproc"] = layout.per_host
    if layout.hosts > 1:
        found["launch.world_size"] = layout.processes
    found["train.batch_size"] = best.batch
    return found
