"""A cluster's file of what was measured here, and how it differs from the nearest preset."""

from __future__ import annotations

import math
import platform
import statistics
from typing import Any

import numpy as np
import yaml

from shoal.config.sizes import show_size
from shoal.embedding.placements.table_plan import in_columns
from shoal.planning.cluster import Cluster, Estimate
from shoal.planning.cluster_file import read_cluster
from shoal.planning.link_probes import STRATEGIES
from shoal.planning.links import Reach, StepTime
from shoal.planning.presets import CLUSTERS
from shoal.planning.probes import Measurement, Timing
from shoal.planning.row_time import read_rows, update_rows
from shoal.planning.step_time import MEETINGS
from shoal.planning.step_work import Popularity, TableWork

FAR = 1.25  # a figure that differs by more than this factor is pointed out


def measured_file(measurement: Measurement) -> str:
    """The text of a cluster's file; what was not measured is the nearest preset's."""
    preset = nearest(measurement)
    hardware = (
        f"{measurement.devices} x {measurement.device}"
        if measurement.on_gpu
        else f"{measurement.cores} cores"
    )
    head = f"# shoal plan --measure: {hardware} ({platform.machine()}); preset: the nearest one\n"
    return head + yaml.safe_dump(
        _parts(measurement, preset), sort_keys=False, width=200, default_flow_style=None
    )


def measured_cluster(measurement: Measurement) -> Cluster:
    """The cluster of one host that a measurement describes."""
    return read_cluster(_parts(measurement, nearest(measurement)))


def nearest(measurement: Measurement) -> Cluster:
    """The preset that is most like this machine: its GPU by name, else its kind of cores."""
    if measurement.on_gpu:
        device_name = measurement.device.upper().replace("-", " ")
        kinds = {n: c for n, c in CLUSTERS.items() if c.host.on_gpu}
        named = {n: c for n, c in kinds.items() if c.host.device.name.split("-")[0] in device_name}
        candidates = named or kinds
        size = float(measurement.device_memory)
        same_form = [
            n
            for n, c in candidates.items()
            if c.host.device.name.split("-")[-1].upper() in device_name
        ]
        return min(
            (candidates[name] for name in same_form or candidates),
            key=lambda c: abs(math.log(c.host.device.memory / size)),
        )
    arm = platform.machine() in ("aarch64", "arm64")
    kinds = {n: c for n, c in CLUSTERS.items() if not c.host.on_gpu}
    kind = "laptop" if platform.system() == "Darwin" else "arm" if arm else "x86"
    candidates = {n: c for n, c in kinds.items() if n.startswith(kind)}
    return min(candidates.values(), key=lambda c: abs(math.log(c.host.devices / measurement.cores)))


def differences(measurement: Measurement) -> str:
    """A table: every figure of the nearest preset, what was measured, and the factor between."""
    preset, measured = nearest(measurement), measured_cluster(measurement)
    lines: list[tuple[str, ...]] = [("figure", preset.name, "measured", "factor", "")]
    before, after = figures(preset), figures(measured)
    for name, (value, unit) in after.items():
        if name not in before:
            continue
        factor = value / before[name][0]
        remark = "differs" if max(factor, 1 / factor) > FAR else ""
        shown = [_shown(x, unit) for x in (before[name][0], value)]
        lines.append((name, *shown, f"{factor:.2f}", remark))
    return in_columns(lines, left=(0, 4))


def figures(cluster: Cluster) -> dict[str, tuple[float, str]]:
    """Name -> (what programs reach on a cluster, unit): each share multiplied by its peak."""
    host, device, rate = cluster.host, cluster.host.device, cluster.efficiency
    values = {
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
        values["host to device"] = (host.to_device, "B/s")
    return {name: one for name, one in values.items() if one[0] > 0}


def _parts(measurement: Measurement, preset: Cluster) -> dict[str, Any]:
    """The content of a cluster's file."""
    assert measurement.copy and measurement.copy_all and measurement.stream
    assert measurement.kernel and measurement.launch and measurement.threads and measurement.step
    host = preset.host
    rows, row = _rows(measurement)
    # A GPU has the bandwidth of its data sheet; cores have the best that was measured.
    best = max(measurement.copy.value, measurement.stream.value, rows.value)
    bandwidth = max(host.device.bandwidth, best) if measurement.on_gpu else best
    flops, gemm, attention = _products(measurement, preset)
    efficiency: dict[str, Any] = {
        "gemm": gemm,
        "attention": attention,
        "stream": _share(measurement.stream, bandwidth),
        "gather": _share(rows, bandwidth),
        "row": [_seconds(x) for x in (row.value, row.low, row.high)],
        "kernel": _span(measurement.kernel),
        "launch": _span(measurement.launch),
        "threads": _share(measurement.threads, 1.0),
        "step": _span(measurement.step),
    }
    if measurement.cold is not None:
        efficiency["cold"] = _span(measurement.cold)
    host_entries: dict[str, Any] = {
        "preset": host.name,
        "name": "measured",
        "devices": measurement.devices if measurement.on_gpu else measurement.cores,
        "cores": measurement.cores,
        "memory": _bytes(measurement.memory),
        "bandwidth": _speed(
            max(measurement.copy_all.value, 0.0 if measurement.on_gpu else bandwidth)
        ),
        "device": {
            "preset": host.device.name,
            "bandwidth": _speed(bandwidth),
            "flops": {name: f"{value / 1e9:.1f}GFLOPS" for name, value in flops.items()},
        },
    }
    if measurement.on_gpu:
        host_entries["device"]["memory"] = _bytes(measurement.device_memory)
    if measurement.to_device is not None:
        host_entries["to_device"] = _speed(measurement.to_device.value)
    if not measurement.on_gpu or measurement.devices > 1:
        speeds = [measurement.links[name].value for name in ("all_reduce", "all_to_all")]
        kind = host.inside.kind
        host_entries["inside"] = {
            "kind": kind,
            "bandwidth": _speed(max(speeds)),
            "latency": _seconds(measurement.links["latency"].value),
        }
        if not measurement.on_gpu:
            efficiency["meet"] = _meet(measurement)
        middle = math.sqrt(speeds[0] * speeds[1])
        efficiency[kind] = [_ratio(x / max(speeds)) for x in (middle, min(speeds), max(speeds))]
    host_entries["disk"] = {
        "size": _bytes(host.disk.size),
        **{name: _speed(measurement.disk[name].value) for name in ("read", "write")},
        "latency": _seconds(measurement.disk["latency"].value),
    }
    cluster_entries: dict[str, Any] = {"name": "measured", "hosts": 1, "host": host_entries}
    if preset.between is not None:
        link = preset.between
        cluster_entries["between"] = {
            **{"kind": link.kind, "bandwidth": _speed(link.bandwidth)},
            "latency": _seconds(link.latency),
        }
    return {**cluster_entries, "efficiency": efficiency}


def _meet(measurement: Measurement) -> list[str]:
    """Seconds of an almost empty exchange: how much longer a step of two processes takes."""
    assert measurement.step is not None
    added_seconds = sorted(
        max(1e-6, (measurement.links[name].value - measurement.step.value) / MEETINGS[name])
        for name in STRATEGIES
    )
    return [_seconds(x) for x in (statistics.mean(added_seconds), *added_seconds)]


def _rows(measurement: Measurement) -> tuple[Timing, Estimate]:
    """Bytes a second of rows, and seconds of an id without its bytes: a line through the widths.

    Read and updated by Adagrad, a row moves the bytes that row_time.py counts. On a GPU rows are
    no faster than a copy: short ones waste more of the memory's bandwidth than long ones, which
    would make the line too flat. On cores a part of the rows lies in caches.
    """
    assert measurement.copy
    most = measurement.copy.value if measurement.on_gpu else math.inf
    dims = sorted(measurement.rows)
    bytes_by_dim = np.array([bytes_of_row(dim) for dim in dims])

    def line(times: list[float]) -> tuple[float, float]:
        seconds = np.array(times)
        system = np.stack([bytes_by_dim, np.ones(len(dims))], axis=1) / seconds[:, None]
        slope, fixed = np.linalg.lstsq(system, np.ones(len(dims)), rcond=None)[0]
        if fixed < 0:
            slope, fixed = float(np.median(seconds / bytes_by_dim)), 0.0
        if slope <= 0:
            slope, fixed = float((seconds / bytes_by_dim).min()), 0.0
        if slope < 1.0 / most:
            slope = 1.0 / most
            weights = seconds**-2.0
            fixed = max(0.0, float(np.average(seconds - slope * bytes_by_dim, weights=weights)))
        return 1.0 / float(slope), float(fixed)

    timings = {dim: (measurement.rows[dim][0], measurement.rows[dim][1]) for dim in dims}
    speed, fixed = line([a.value + b.value for a, b in timings.values()])
    ends = [
        line([getattr(a, k) + getattr(b, k) for a, b in timings.values()]) for k in ("low", "high")
    ]
    speeds = sorted([speed, *(one[0] for one in ends)])
    least = 1e-11  # the file holds no zero
    fixes = sorted(max(least, one) for one in (fixed, *(one[1] for one in ends)))
    return (
        Timing(speed, speeds[0], speeds[-1]),
        Estimate(max(least, fixed), fixes[0], fixes[-1], "measured"),
    )


def bytes_of_row(dim: int) -> float:
    """Bytes that a row of `dim` numbers moves when it is read and updated (Adagrad) once."""
    table = TableWork(
        name="",
        rows=1,
        dim=dim,
        ids=1.0,
        vectors=1.0,
        popularity=Popularity.uniform(1),
        value_bytes=4 * dim,
        state_bytes=4 * dim,
    )
    of_bytes, step = Reach(1.0, 1.0, 1.0, gather=1.0, row=0.0, kernel=0.0, launch=0.0), StepTime()
    read_rows(step, table, of_bytes, 1.0, 1.0)
    update_rows(step, table, of_bytes, 1.0, 1.0, 4)
    return sum(step.seconds.values())


def _products(
    measurement: Measurement, preset: Cluster
) -> tuple[dict[str, float], list[float], list[float]]:
    """Peaks by precision, and the shares of them that products and attention reach."""
    best = {name: max(t.value for t in one.values()) for name, one in measurement.products.items()}
    sheet = preset.host.device.flops if measurement.on_gpu else {}
    flops = {name: max(best[name], sheet.get(name, 0.0)) for name in best}
    main = "bfloat16" if measurement.on_gpu else "float32"
    shares = [one.value / flops[main] for one in measurement.products[main].values()]
    assert measurement.attention is not None
    attention = measurement.attention.value / flops[main]
    span = (statistics.median(shares), min(shares), max(shares))
    ends = (attention, 0.75 * attention, 1.25 * attention)
    return flops, [_ratio(x) for x in span], [_ratio(x) for x in ends]


def _share(timing: Timing, peak: float) -> list[float]:
    return [_ratio(x / peak) for x in (timing.value, timing.low, timing.high)]


def _ratio(x: float) -> float:
    return round(min(1.0, max(0.001, x)), 4)


def _span(timing: Timing) -> list[str]:
    return [_seconds(x) for x in (timing.value, timing.low, timing.high)]


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
