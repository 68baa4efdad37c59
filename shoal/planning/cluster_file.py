"""A cluster's file: a small YAML, read with every figure's unit.

    hosts: 8
    host: {preset: DGX-H100, price: 70}     # per hour
    between: {kind: infiniband, bandwidth: 400Gb/s, latency: 5us}   # of each device, each way
    efficiency: {gemm: 0.7}

Every part is a preset's name, or keys of which `preset` names what the other ones change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.yaml_io import read_file
from shoal.planning.cluster import Cluster, NetworkLink
from shoal.planning.cluster_values import (
    check_keys,
    find_preset,
    read_efficiency,
    read_host,
    read_part,
    read_quantity,
)
from shoal.planning.presets import CLUSTERS, DEVICES, EFFICIENCY, HOSTS


def read_cluster(named: str | Path | Mapping[str, Any]) -> Cluster:
    """Read a cluster from the name of a preset, a file, or the content of a file."""
    if isinstance(named, Mapping):
        return _cluster(named, "cluster")
    if str(named) in CLUSTERS:
        return CLUSTERS[str(named)]
    if not Path(named).is_file():
        raise ConfigError(
            f"--cluster {named}: neither a file nor a preset; presets: {', '.join(CLUSTERS)}"
            f"{did_you_mean(str(named), CLUSTERS)}"
        )
    return _cluster(read_file(named)[0], str(named))


def _cluster(entries: Mapping[str, Any], place: str) -> Cluster:
    entries = dict(entries)
    base = None
    if "preset" in entries:
        base = find_preset(entries.pop("preset"), CLUSTERS, f"{place}: preset")
    check_keys(entries, ("name", "hosts", "host", "between", "efficiency"), place)
    if "host" in entries:
        host = read_host(entries["host"], f"{place}: host", DEVICES, HOSTS)
    elif base is not None:
        host = base.host
    else:
        raise ConfigError(f"{place}: host is missing; give a preset's name or its parts")
    between = base.between if base is not None else None
    if entries.get("between") is not None:
        between = read_part(NetworkLink, entries["between"], f"{place}: between", between)
    efficiency = base.efficiency if base is not None else EFFICIENCY[host.device.kind]
    efficiency = read_efficiency(entries.get("efficiency", {}), efficiency, f"{place}: efficiency")
    hosts = read_quantity(entries.get("hosts", 1), "count", f"{place}: hosts")
    name = str(entries.get("name", Path(place).stem))
    return Cluster(name, host, 1, between, efficiency).of_size(int(hosts))
