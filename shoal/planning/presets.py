"""Common machines: presets.yaml, read once and checked as a cluster's file is."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.config.yaml_io import read_file
from shoal.planning.cluster import Cluster, ComputeDevice, Efficiency, NetworkLink
from shoal.planning.cluster_values import (
    as_mapping,
    check_keys,
    read_efficiency,
    read_host,
    read_part,
)

FILE = Path(__file__).with_name("presets.yaml")


def read_presets(
    entries: Mapping[str, Any], place: str
) -> tuple[dict[str, ComputeDevice], dict[str, Efficiency], dict[str, Cluster]]:
    """Devices, efficiencies by kind of device, and clusters of one host, from a file's content."""
    check_keys(entries, ("devices", "hosts", "efficiency"), place)
    devices = {
        name: read_part(ComputeDevice, {"name": name} | device, f"{place}: devices.{name}")
        for name, device in as_mapping(entries["devices"], f"{place}: devices").items()
    }
    shares = as_mapping(entries["efficiency"], f"{place}: efficiency")
    check_keys(shares, ("gpu", "core"), f"{place}: efficiency")
    gpu = read_efficiency(shares["gpu"], None, f"{place}: efficiency.gpu")
    core = read_efficiency(shares["core"], gpu, f"{place}: efficiency.core")
    efficiency = {"gpu": gpu, "core": core}
    clusters = {}
    for name, parts in as_mapping(entries["hosts"], f"{place}: hosts").items():
        key = f"{place}: hosts.{name}"
        parts = {"name": name, **as_mapping(parts, key)}
        between = parts.pop("between", None)
        if between is not None:
            between = read_part(NetworkLink, between, f"{key}.between")
        host = read_host(parts, key, devices, hosts={})
        clusters[name] = Cluster(name, host, 1, between, efficiency[host.device.kind])
    return devices, efficiency, clusters


DEVICES, EFFICIENCY, CLUSTERS = read_presets(read_file(FILE)[0], FILE.name)
HOSTS = {name: cluster.host for name, cluster in CLUSTERS.items()}


def this_machine() -> Cluster:
    """This machine, guessed from presets; `shoal plan --measure` is more exact."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if torch.cuda.is_available():
        device_name = torch.cuda.get_device_name(0)
        similar_hosts = [
            host
            for host in HOSTS.values()
            if host.on_gpu and _is_like(host.device.name, device_name)
        ]
        host = similar_hosts[0] if similar_hosts else HOSTS["8xL4"]
        size = float(torch.cuda.mem_get_info(0)[1])
        device = replace(host.device, name=device_name, memory=size)
        number = torch.cuda.device_count()
        machine = replace(host, device=device, devices=number)
    else:
        host = HOSTS["arm-64" if platform.machine() in ("aarch64", "arm64") else "x86-64"]
        bandwidth = min(host.bandwidth, host.device.bandwidth * (cores or 1))
        machine = replace(
            host, name="this machine", devices=cores or 1, bandwidth=bandwidth, price=0.0
        )
    machine = replace(machine, cores=cores or 1, memory=memory)
    return Cluster("this machine", machine, 1, None, EFFICIENCY[machine.device.kind])


def _is_like(preset: str, device_name: str) -> bool:
    """Whether a preset's device is the one that a driver names, such as NVIDIA H100 80GB HBM3."""
    words = device_name.upper().replace("-", " ").split()
    return preset.split("-")[0].upper() in words
