"""Data that is given beside a config: a file or a folder in place of what the config names."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.config import Resolved
from shoal.config.schema import CLICK_FORMATS
from shoal.config.yaml_io import inline
from shoal.data.clicks.formats import looks_like
from shoal.data.prepared.named import data_values, holds_log
from shoal.data.sources.roles import roles_of
from shoal.data.sources.table import columns_of
from shoal.models import find


def with_data(resolved: Resolved, path: str | Path) -> Resolved:
    """The same config for the data in a file or a folder; columns are found by their names."""
    place, config = Path(path), resolved.config
    if not place.exists():
        raise ValueError(f"there is no file or folder {path} to read data from")
    clicks = find(config.model.name).kind == "clicks"
    log = holds_log(config.data)
    if clicks and place.is_file():
        with suppress(ValueError):
            log = log or looks_like(place) in CLICK_FORMATS
    values = data_values(place, config.data, clicks, log)
    resolved = resolved.with_values(values, f"data {path}")
    return with_columns(resolved, place) if values.get("data.files") else resolved


def with_columns(resolved: Resolved, path: Path, known: tuple[str, ...] = ()) -> Resolved:
    """The same with data.fields for the columns of a table, where the config does not say them.

    known: columns that are found without.
    """
    data = resolved.config.data
    columns = columns_of(path, data)
    guessed: dict[str, Any] = {
        f"data.fields.{role}": name
        for role, name in roles_of(columns).items()
        if resolved.origins[f"data.fields.{role}"] == "default"
        and getattr(data.fields, role) not in columns
        and name not in known
    }
    if not guessed:
        return resolved
    said = ", ".join(f"{key}={inline(name)}" for key, name in guessed.items())
    resolved = resolved.with_values(guessed, f"the columns of {path}")
    return replace(
        resolved, read_notes=[*resolved.read_notes, f"{path}: by the names of its columns, {said}"]
    )
