"""A config that names a public data set, with the keys that read its published files."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from shoal.config import Resolved
from shoal.data.loading.published import published_values

SPLIT = "data.split."


def with_published(resolved: Resolved) -> Resolved:
    """The config with the keys of the public set that data.name names, where it does not say them.

    Keys that a config, the command line or Python says stand. Where they say another way to split,
    the set's own split does not count.
    """
    name = resolved.config.data.name
    values = published_values(resolved.config.data)
    if not values:
        return resolved
    said = {key for key, origin in resolved.origins.items() if not origin.startswith("default")}
    if _splits_otherwise(said, values):
        values = {key: value for key, value in values.items() if not key.startswith(SPLIT)}
    elif f"{SPLIT}ratio" in said:
        values.pop(f"{SPLIT}at", None)
    values = {key: value for key, value in values.items() if key not in said}
    note = f"{name} is read as it is published; data keys that are not given are those of the set"
    resolved = resolved.with_values(values, f"the public set {name}")
    return replace(resolved, read_notes=[*resolved.read_notes, note])


def _splits_otherwise(said: Set[str], values: Mapping[str, Any]) -> bool:
    """Whether the keys that are said choose another way to split than the set's own."""
    by = values.get(f"{SPLIT}by", "ratio")
    return (
        f"{SPLIT}by" in said
        or (f"{SPLIT}ratio" in said and by not in ("ratio", "sessions"))
        or (f"{SPLIT}leave" in said and by != "leave_one_out")
    )
