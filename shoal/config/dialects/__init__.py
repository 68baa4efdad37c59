"""Dialects: the keys of other tools. A new one is a file here and its name in NAMES."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from shoal.config.dialects.base import Dialect
from shoal.config.sources import Layer

# The modules, each with its class as DIALECT. Of two that know a key the first one reads it.
NAMES = ["tdfo", "paddlerec", "torchrec", "recbole"]


def listen(sources: Sequence[Layer]) -> list[Dialect]:
    """Every dialect, with all sources of a config in its ears."""
    modules = [import_module(f"shoal.config.dialects.{name}") for name in NAMES]
    return [module.DIALECT(sources) for module in modules]
