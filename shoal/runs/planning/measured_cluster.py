"""A cluster's file of what was measured here, and how it differs from the nearest preset."""

from __future__ import annotations

import math
import platform
import statistics
from typing import Any

import numpy as np
import yaml

from shoal.config.row_rules import show_size
from shoal.embedding.placements.planner import in_columns
from shoal.runs.planning.cluster import Cluster, Estimate
from shoal.runs.planning.cluster_file import read_cluster
from shoal.runs.planning.links import Reach, StepTime
from shoal.runs.planning.measure import Measured, Timing
from shoal.runs.planning.measure_links import STRATEGIES
from shoal.runs.planning.presets import CLUSTERS
from shoal.runs.planning.row_time import read_rows, update_rows
from shoal.runs.planning.timing import MEETINGS
from shoal.runs.planning.work import Popularity, TableWork

FAR = 1.25  # a figure that differs by more than this factor is pointed out


def measured_file(found: Measured) -> str:
    """The text of a cluster's file; what was not measured is the nearest preset's."""
    near = nearest(found)
    what = f"{found.devices} x {found.device}" if found.on_gpu else f"{found.cores} cores"
    head = f"# shoal plan --measure: {what} ({platform.machine()}); preset: the nearest one\n"
    return head + yaml.safe_dump(
        _parts(found, near), sort_keys=False, width=200, default_flow_style=None
    )


def measured_cluster(found: Measured) -> Cluster:
    """The same as a cluster."""
    return read_cluster(_parts(found, nearest(found)))


def nearest(found: Measured) -> Cluster:
    """The preset that is most like this machine: its GPU by name, else its kind of cores."""
    if found.on_gpu:
        given = found.device.upper().replace("-", " ")
        kinds = {n: c for n, c in CLUSTERS.items() if c.host.on_gpu}
        named = {n: c for n, c in kinds.items() if c.host.device.name.split("-")[0] in given}
        some = named or kinds
        size = float(found.device_memory)
        beside = [n for n, c in some.items() if c.host.device.name.split("-")[-1].upper() in given]
        return min(
            (some[name] for name in beside or some),
            key=lambda c: abs(math.log(c.host.device.memory / size)),
        )
    arm = platform.machine() in ("aarch64", "arm64")
    kinds = {n: c for n, c in CLUSTERS.items() if not c.host.on_gpu}
    kind = "laptop" if platform.system() == "Darwin" else "arm" if arm else "x86"
    some = {n: c for n, c in kinds.items() if n.startswith(kind)}
    return min(some.values(), key=lambda c: abs(math.log(c.host.devices / found.cores)))


def differences(found: Measured) -> str:
    """A table: every figure of the nearest preset, what was measured, and the factor between."""
    near, here = nearest(found), measured_cluster(found)
    lines: list[tuple[str, ...]] = [("figure", near.name, "measured", "factor", "")]
    before, after = figures(near), figures(here)
    for name, (value, unit) in after.items():
        if name not in before:
            continue
        factor = value / before[name][0]
        far = "differs" if max(factor, 1 / factor) > FAR else ""
        shown = [_shown(x, unit) for x in (before[name][0], value)]
        lines.append((name, *shown, f"{factor:.2f}", far))
    return in_columns(lines, left=(0, 4))


def figures(cluster: Cluster) -> dict[str, tuple[float, str]]:
    """What a cluster's programs reach, with its unit: shares are multiplied by what they are of."""
    host, device, rate = cluster.host, cluster.host.device, cluster.efficiency
    made = {
        "memory of a host": (host.memory, "B"),
        "bandwidth of a host's memory": (host.bandwidth, "B/s"),
        "copies on a device": (device.bandwidth * rate.stream.value, "B/s"),
        "rows on a device": (device.bandwidth * rate.gather.value, "B/s"),
        "a row beside its bytes": (rate.row.value, "s"),
        **{
            f"products, {name}": (peak * rate.gemm.value, "FLOPS")
            for name, peak in device.flops.items()
        },
        "a core, by one more thread": (rate.threads.value, ""),
        "an operation": (rate.kernel.value, "s"),
        "an operation of a model": (rate.launch.value, "s"),
        "a step of nothing": (rate.step.value, "s"),
        "until processes meet": (rate.meet.value, "s"),
        "a row from a disk": (rate.cold.value, "s"),
        "between processes": (host.inside.bandwidth * rate.link(host.inside).value, "B/s"),
        "a message": (host.inside.latency, "s"),
        "disk, read": (host.disk.read, "B/s"),
        "disk, write": (host.disk.write, "B/s"),
    }
    if host.on_gpu:
        made["host to device"] = (host.to_device, "B/s")
    return {name: one for name, one in made.items() if one[0] > 0}


def _parts(found: Measured, near: Cluster) -> dict[str, Any]:
    """What the file holds."""
    assert found.copy and found.copy_all and found.stream
    assert found.kernel and found.launch and found.threads and found.step
    host = near.host
    rows, row = _rows(found)
    # Of a GPU the data sheet says what there is; of cores the best that was measured does.
    best = max(found.copy.value, found.stream.value, rows.value)
    bandwidth = max(host.device.bandwidth, best) if found.on_gpu else best
    flops, gemm, attention = _products(found, near)
    efficiency: dict[str, Any] = {
        "gemm": gemm,
        "attention": attention,
        "stream": _share(found.stream, bandwidth),
        "gather": _share(rows, bandwidth),
        "row": [_seconds(x) for x in (row.value, row.low, row.high)],
        "kernel": _span(found.kernel),
        "launch": _span(found.launch),
        "threads": _share(found.threads, 1.0),
        "step": _span(found.step),
    }
    if found.cold is not None:
        efficiency["cold"] = _span(found.cold)
    made: dict[str, Any] = {
        "preset": host.name,
        "name": "measured",
        "devices": found.devices if found.on_gpu else found.cores,
        "cores": found.cores,
        "memory": _bytes(found.memory),
        "bandwidth": _speed(max(found.copy_all.value, 0.0 if found.on_gpu else bandwidth)),
        "device": {
            "preset": host.device.name,
            "bandwidth": _speed(bandwidth),
            "flops": {name: f"{value / 1e9:.1f}GFLOPS" for name, value in flops.items()},
        },
    }
    if found.on_gpu:
        made["device"]["memory"] = _bytes(found.device_memory)
    if found.to_device is not None:
        made["to_device"] = _speed(found.to_device.value)
    if not found.on_gpu or found.devices > 1:
        speeds = [found.links[name].value for name in ("all_reduce", "all_to_all")]
        kind = host.inside.kind
        made["inside"] = {
            "kind": kind,
            "bandwidth": _speed(max(speeds)),
            "latency": _seconds(found.links["latency"].value),
        }
        if not found.on_gpu:
            efficiency["meet"] = _meet(found)
        middle = math.sqrt(speeds[0] * speeds[1])
        efficiency[kind] = [_ratio(x / max(speeds)) for x in (middle, min(speeds), max(speeds))]
    made["disk"] = {
        "size": _bytes(host.disk.size),
        **{name: _speed(found.disk[name].value) for name in ("read", "write")},
        "latency": _seconds(found.disk["latency"].value),
    }
    whole: dict[str, Any] = {"name": "measured", "hosts": 1, "host": made}
    if near.between is not None:
        link = near.between
        whole["between"] = {
            **{"kind": link.kind, "bandwidth": _speed(link.bandwidth)},
            "latency": _seconds(link.latency),
        }
    return {**whole, "efficiency": efficiency}


def _meet(found: Measured) -> list[str]:
    """Seconds of an exchange of next to nothing: what a step of two processes takes longer."""
    assert found.step is not None
    more = sorted(
        max(1e-6, (found.links[name].value - found.step.value) / MEETINGS[name])
        for name in STRATEGIES
    )
    return [_seconds(x) for x in (statistics.mean(more), *more)]


def _rows(found: Measured) -> tuple[Timing, Estimate]:
    """Bytes a second of rows, and seconds of an id beside its bytes: a line through the widths.

    Read and updated by Adagrad, a row moves the bytes that row_time.py counts.
    """
    dims = sorted(found.rows)
    moved = np.array([bytes_of_row(dim) for dim in dims])

    def line(times: list[float]) -> tuple[float, float]:
        seconds = np.array(times)
        system = np.stack([moved, np.ones(len(dims))], axis=1) / seconds[:, None]
        slope, fixed = np.linalg.lstsq(system, np.ones(len(dims)), rcond=None)[0]
        if fixed < 0:
            slope, fixed = float(np.median(seconds / moved)), 0.0
        if slope <= 0:
            slope, fixed = float((seconds / moved).min()), 0.0
        return 1.0 / float(slope), float(fixed)

    both = {dim: (found.rows[dim][0], found.rows[dim][1]) for dim in dims}
    speed, fixed = line([a.value + b.value for a, b in both.values()])
    ends = [
        line([getattr(a, k) + getattr(b, k) for a, b in both.values()]) for k in ("low", "high")
    ]
    speeds = sorted([speed, *(one[0] for one in ends)])
    least = 1e-11  # the file holds no zero
    fixes = sorted(max(least, one) for one in (fixed, *(one[1] for one in ends)))
    return (
        Timing(speed, speeds[0], speeds[-1]),
        Estimate(max(least, fixed), fixes[0], fixes[-1], "measured"),
    )


def bytes_of_row(dim: int) -> float:
    """That a row of so many numbers moves when it is read once and updated once by Adagrad."""
    one = TableWork("", 1, dim, 1.0, 1.0, Popularity.uniform(1), 4 * dim, 4 * dim)
    of_bytes, step = Reach(1.0, 1.0, 1.0, gather=1.0, row=0.0, kernel=0.0, launch=0.0), StepTime()
    read_rows(step, one, of_bytes, 1.0, 1.0)
    update_rows(step, one, of_bytes, 1.0, 1.0, 4)
    return sum(step.seconds.values())


def _products(found: Measured, near: Cluster) -> tuple[dict[str, float], list[float], list[float]]:
    """Peaks by precision, the share of them that products reach, and that attention does."""
    best = {name: max(t.value for t in one.values()) for name, one in found.products.items()}
    sheet = near.host.device.flops if found.on_gpu else {}
    flops = {name: max(best[name], sheet.get(name, 0.0)) for name in best}
    main = "bfloat16" if found.on_gpu else "float32"
    shares = [one.value / flops[main] for one in found.products[main].values()]
    assert found.attention is not None
    attention = found.attention.value / flops[main]
    span = (statistics.median(shares), min(shares), max(shares))
    ends = (attention, 0.75 * attention, 1.25 * attention)
    return flops, [_ratio(x) for x in span], [_ratio(x) for x in ends]


def _share(one: Timing, of: float) -> list[float]:
    return [_ratio(x / of) for x in (one.value, one.low, one.high)]


def _ratio(x: float) -> float:
    return round(min(1.0, max(0.001, x)), 4)


def _span(one: Timing) -> list[str]:
    return [_seconds(x) for x in (one.value, one.low, one.high)]


def _seconds(x: float) -> str:
    return f"{1e9 * x:.4g}ns" if x < 1e-6 else f"{1e6 * x:.4g}us"


def _speed(x: float) -> str:
    return f"{x / 1e9:.4g}GB/s"


def _bytes(x: float) -> str:
    return f"{x / 1e9:.4g}GB"


def _shown(x: float, unit: str) -> str:
    if unit == "s":
        return _seconds(x)
    if not unit:
        return f"{x:.2f}"
    if unit == "FLOPS":
        return f"{x / 1e9:,.1f} GFLOPS"
    return show_size(int(x)) + ("/s" if unit == "B/s" else "")
