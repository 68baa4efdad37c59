"""Data that is given beside a config: a file or a folder in place of what the config names."""

from __future__ import annotations

from pathlib import Path

from shoal.config import Resolved
from shoal.data.named import data_values
from shoal.models import find


def with_data(resolved: Resolved, path: str | Path) -> Resolved:
    """The same config for the data in a file or a folder."""
    config = resolved.config
    if not Path(path).exists():
        raise ValueError(f"there is no file or folder {path} to read data from")
    values = data_values(Path(path), config.data, find(config.model.name).kind == "clicks")
    return resolved.with_values(values, f"data {path}")
