"""A cluster's file: a small YAML, read with every figure's unit.

    hosts: 8
    host: {preset: DGX-H100, price: 70}     # per hour
    between: {kind: infiniband, bandwidth: 400Gb/s, latency: 5us}   # of each device, each way
    efficiency: {gemm: 0.7}

Every part is a preset's name, or keys of which `preset` names what the other ones change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.yaml_io import read_file
from shoal.planning.cluster import (
    LINKS,
    PRECISIONS,
    Cluster,
    ComputeDevice,
    Disk,
    Efficiency,
    Estimate,
    Host,
    NetworkLink,
)
from shoal.planning.presets import CLUSTERS, DEVICES, EFFICIENCY, HOSTS

UNITS: dict[str, dict[str, float]] = {
    "bytes": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
    | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    "bytes/s": {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Mb/s": 0.125e6, "Gb/s": 0.125e9},
    "flops": {"GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15},
    "seconds": {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
}
EXAMPLES = {"bytes": "80GB", "bytes/s": "3.35TB/s", "flops": "990TFLOPS", "seconds": "5us"}
# Key -> the unit of its number.
QUANTITIES = {
    **dict.fromkeys(("memory", "size"), "bytes"),
    **dict.fromkeys(("bandwidth", "read", "write", "to_device"), "bytes/s"),
    **dict.fromkeys(("latency",), "seconds"),
    **dict.fromkeys(("devices", "cores", "hosts"), "count"),
    "price": "number",
}
SECONDS = ("row", "kernel", "launch", "meet", "cold", "step")  # of efficiency
MAY_BE_ZERO = ("latency", "price")
REQUIRED = {
    ComputeDevice: ("bandwidth", "flops"),
    NetworkLink: ("kind", "bandwidth"),
    Host: ("devices", "inside", "memory", "bandwidth"),
    Disk: (),
}


def read_quantity(text: object, unit: str, key: str, zero: bool = False) -> float:
    """A number with its unit, such as 3.35TB/s; ConfigError with the key where it makes no sense.

    >>> read_quantity("400Gb/s", "bytes/s", "between.bandwidth")
    50000000000.0
    """
    units, example = UNITS.get(unit, {}), f", such as {EXAMPLES[unit]}" if unit in EXAMPLES else ""
    number, suffix = text, ""
    pattern = r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*"
    if isinstance(text, str) and (match := re.fullmatch(pattern, text)):
        number, suffix = float(match[1]) if match[1].count(".") < 2 else text, match[2]
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigError(f"{key}: given {text!r}; wanted a number{example}")
    if suffix and suffix not in units:
        unit_names, suggestion = ", ".join(units) or "it has none", did_you_mean(suffix, units)
        raise ConfigError(
            f"{key}: given {text!r}; {suffix!r} is no unit of it: {unit_names}{suggestion}"
        )
    value = float(number) * units.get(suffix, 1.0)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "0 or more" if zero else "more than 0"
        raise ConfigError(f"{key}: given {text!r}; it must be {least}{example}")
    if unit == "count" and value != int(value):
        raise ConfigError(f"{key}: given {text!r}; wanted a whole number")
    return int(value) if unit == "count" else value


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
        base = _preset(entries.pop("preset"), CLUSTERS, f"{place}: preset")
    _check_keys(entries, ("name", "hosts", "host", "between", "efficiency"), place)
    host = _host(entries["host"], f"{place}: host") if "host" in entries else base and base.host
    if host is None:
        raise ConfigError(f"{place}: host is missing; give a preset's name or its parts")
    between = base.between if base is not None else None
    if entries.get("between") is not None:
        between = _part(NetworkLink, entries["between"], f"{place}: between", between)
    efficiency = base.efficiency if base is not None else EFFICIENCY[host.device.kind]
    efficiency = _efficiency(entries.get("efficiency", {}), efficiency, f"{place}: efficiency")
    hosts = read_quantity(entries.get("hosts", 1), "count", f"{place}: hosts")
    name = str(entries.get("name", Path(place).stem))
    return Cluster(name, host, 1, between, efficiency).of_size(int(hosts))


def _host(entries: object, key: str) -> Host:
    if isinstance(entries, str):
        return _preset(entries, HOSTS, key)
    entries = dict(_mapping(entries, key))
    base = _preset(entries.pop("preset"), HOSTS, f"{key}.preset") if "preset" in entries else None
    device = entries.pop("device", None)
    if isinstance(device, str):
        device = _preset(device, DEVICES, f"{key}.device")
    elif device is not None:
        inner = dict(_mapping(device, f"{key}.device"))
        first = inner.pop("preset", None)
        start = _preset(first, DEVICES, f"{key}.device.preset") if first is not None else None
        device = _part(ComputeDevice, inner, f"{key}.device", start)
    elif base is not None:
        device = base.device
    else:
        raise ConfigError(f"{key}.device is missing; devices: {', '.join(DEVICES)}")
    for name, kind in (("inside", NetworkLink), ("disk", Disk)):
        if name in entries:
            entries[name] = _part(
                kind, entries[name], f"{key}.{name}", base and getattr(base, name)
            )
    start = replace(base, device=device) if base is not None else None
    return _part(Host, entries | ({} if start else {"device": device}), key, start)


def _part(kind: type, entries: object, key: str, base: Any = None) -> Any:
    """Make a dataclass from a mapping; keys that are left out have the values of `base`."""
    entries = dict(_mapping(entries, key))
    _check_keys(entries, tuple(field.name for field in fields(kind)), key)
    values = {name: _value(kind, name, value, f"{key}.{name}") for name, value in entries.items()}
    if base is not None:
        return replace(base, **values)
    missing = [name for name in REQUIRED[kind] if name not in values]
    if missing:
        raise ConfigError(f"{key}.{missing[0]} is missing; give it, or begin with a preset")
    return kind(**({} if kind in (NetworkLink, Disk) else {"name": "own"}) | values)


def _value(kind: type, name: str, value: object, key: str) -> Any:
    """Read the value of a key, in bytes, seconds or operations."""
    if name in QUANTITIES:
        return read_quantity(value, QUANTITIES[name], key, name in MAY_BE_ZERO)
    if name == "kind":
        allowed_kinds = LINKS if kind is NetworkLink else ("gpu", "core")
        if value not in allowed_kinds:
            suggestion = did_you_mean(str(value), allowed_kinds)
            raise ConfigError(
                f"{key}: given {value!r}; one of {', '.join(allowed_kinds)}{suggestion}"
            )
    if name == "flops":
        table = dict(_mapping(value, key))
        _check_keys(table, PRECISIONS, key)
        return {name: read_quantity(v, "flops", f"{key}.{name}") for name, v in table.items()}
    return value


def _efficiency(entries: object, base: Efficiency, key: str) -> Efficiency:
    """Read the efficiencies of a file: each is a number, or [value, low, high]."""
    table = dict(_mapping(entries, key))
    estimates_by_name = base.named()
    _check_keys(table, tuple(estimates_by_name), key)
    estimates = {}
    for name, figure in table.items():
        unit = "seconds" if name in SECONDS else "number"
        figures = figure if isinstance(figure, list) else [figure]
        values = [read_quantity(v, unit, f"{key}.{name}") for v in figures]
        if unit == "number" and max(values) > 1:
            raise ConfigError(f"{key}.{name}: given {figure!r}; it is a share: at most 1")
        if len(values) not in (1, 3):
            raise ConfigError(
                f"{key}.{name}: given {figure!r}; wanted a number or [value, low, high]"
            )
        spread = Estimate.about(values[0], 0.1, "the cluster's file")
        estimates[name] = (
            spread if len(values) == 1 else Estimate(values[0], values[1], values[2], spread.source)
        )
    return replace(base, **estimates)


def _mapping(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}: given {value!r}; wanted keys and values")
    return value


def _check_keys(entries: Mapping[str, Any], allowed_keys: tuple[str, ...], key: str) -> None:
    for name in entries:
        if name not in allowed_keys:
            suggestion = did_you_mean(str(name), allowed_keys)
            raise ConfigError(
                f"{key}: unknown key {name!r}; known: {', '.join(allowed_keys)}{suggestion}"
            )


def _preset(name: object, presets: Mapping[str, Any], key: str) -> Any:
    if name not in presets:
        suggestion = did_you_mean(str(name), presets)
        raise ConfigError(f"{key}: no preset {name!r}; presets: {', '.join(presets)}{suggestion}")
    return presets[str(name)]
