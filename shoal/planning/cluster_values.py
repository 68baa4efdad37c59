"""Parts of a cluster made of mappings, every figure with its unit: of presets and of files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from shoal.config.errors import ConfigError, did_you_mean
from shoal.planning.cluster import (
    LINKS,
    PRECISIONS,
    ComputeDevice,
    Disk,
    Efficiency,
    Estimate,
    Host,
    NetworkLink,
)

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


def read_host(
    entries: object,
    key: str,
    devices: Mapping[str, ComputeDevice],
    hosts: Mapping[str, Host],
) -> Host:
    """Read a host: a preset's name, or its parts, which may begin with presets."""
    if isinstance(entries, str):
        return find_preset(entries, hosts, key)
    entries = dict(as_mapping(entries, key))
    base = None
    if "preset" in entries:
        base = find_preset(entries.pop("preset"), hosts, f"{key}.preset")
    device = entries.pop("device", None)
    if isinstance(device, str):
        device = find_preset(device, devices, f"{key}.device")
    elif device is not None:
        inner = dict(as_mapping(device, f"{key}.device"))
        first = inner.pop("preset", None)
        start = find_preset(first, devices, f"{key}.device.preset") if first is not None else None
        device = read_part(ComputeDevice, inner, f"{key}.device", start)
    elif base is not None:
        device = base.device
    else:
        raise ConfigError(f"{key}.device is missing; devices: {', '.join(devices)}")
    for name, kind in (("inside", NetworkLink), ("disk", Disk)):
        if name in entries:
            entries[name] = read_part(
                kind, entries[name], f"{key}.{name}", base and getattr(base, name)
            )
    start = replace(base, device=device) if base is not None else None
    return read_part(Host, entries | ({} if start else {"device": device}), key, start)


def read_part(kind: type, entries: object, key: str, base: Any = None) -> Any:
    """Make a dataclass from a mapping; keys that are left out have the values of `base`."""
    entries = dict(as_mapping(entries, key))
    check_keys(entries, tuple(field.name for field in fields(kind)), key)
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
        table = dict(as_mapping(value, key))
        check_keys(table, PRECISIONS, key)
        return {name: read_quantity(v, "flops", f"{key}.{name}") for name, v in table.items()}
    return value


def read_efficiency(entries: object, base: Efficiency | None, key: str) -> Efficiency:
    """Read what programs reach; figures that are left out are those of `base`.

    Each is a number, [value, low, high], or {value: 0.7, spread: 0.1, source: TEXT}.
    """
    table = as_mapping(entries, key)
    check_keys(table, tuple(field.name for field in fields(Efficiency)), key)
    estimates = {name: _estimate(name, figure, f"{key}.{name}") for name, figure in table.items()}
    return Efficiency(**estimates) if base is None else replace(base, **estimates)


def _estimate(name: str, figure: object, key: str) -> Estimate:
    """Read one figure of what programs reach, with the range it lies in."""
    source, spread = "the cluster's file", 0.1
    figures = figure if isinstance(figure, list) else [figure]
    if isinstance(figure, Mapping):
        check_keys(figure, ("value", "spread", "source"), key)
        figures = [figure.get("value")]
        source = str(figure.get("source", source))
        spread = read_quantity(figure.get("spread", spread), "number", f"{key}.spread", zero=True)
    unit = "seconds" if name in SECONDS else "number"
    values = [read_quantity(value, unit, key) for value in figures]
    if unit == "number" and max(values) > 1:
        raise ConfigError(f"{key}: given {figure!r}; it is a share: at most 1")
    if len(values) == 1:
        return Estimate.about(values[0], spread, source)
    if len(values) != 3:
        raise ConfigError(f"{key}: given {figure!r}; wanted a number or [value, low, high]")
    return Estimate(values[0], values[1], values[2], source)


def find_preset(name: object, presets: Mapping[str, Any], key: str) -> Any:
    """The preset of a name; else ConfigError with the nearest right spelling."""
    if name not in presets:
        suggestion = did_you_mean(str(name), presets)
        raise ConfigError(f"{key}: no preset {name!r}; presets: {', '.join(presets)}{suggestion}")
    return presets[str(name)]


def as_mapping(value: object, key: str) -> Mapping[str, Any]:
    """The value, which must be a mapping."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}: given {value!r}; wanted keys and values")
    return value


def check_keys(entries: Mapping[str, Any], allowed_keys: tuple[str, ...], key: str) -> None:
    """Refuse keys that a mapping does not have; the error names the nearest right spelling."""
    for name in entries:
        if name not in allowed_keys:
            suggestion = did_you_mean(str(name), allowed_keys)
            raise ConfigError(
                f"{key}: unknown key {name!r}; known: {', '.join(allowed_keys)}{suggestion}"
            )
