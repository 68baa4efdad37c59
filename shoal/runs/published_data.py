"""A config that names a public data set, with the keys that read its published files."""

from __future__ import annotations

from dataclasses import replace

from shoal.config import Resolved
from shoal.data.loading.published import published_values

SPLIT = "data.split."


def with_published(resolved: Resolved) -> Resolved:
    """The config with the keys of the public set that data.name names, where it does not say them.

    Keys that a config, the command line or Python says stand. Where they say how to split, the
    set's own split does not count.
    """
    name = resolved.config.data.name
    values = published_values(resolved.config.data)
    if not values:
        return resolved
    said = {key for key, origin in resolved.origins.items() if not origin.startswith("default")}
    if f"{SPLIT}by" in said:
        values = {key: value for key, value in values.items() if not key.startswith(SPLIT)}
    values = {key: value for key, value in values.items() if key not in said}
    note = f"{name} is read as it is published; data keys that are not given are those of the set"
    resolved = resolved.with_values(values, f"the public set {name}")
    return replace(resolved, read_notes=[*resolved.read_notes, note])
