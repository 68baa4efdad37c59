"""Resolved: a config with the origin of every value. Nothing changes it; copies are derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.config.checks import problems
from shoal.config.errors import ConfigError
from shoal.config.key_applicability import notes as unread_notes
from shoal.config.keys import LEAVES
from shoal.config.output import show as show_config
from shoal.config.schema import Config


@dataclass(frozen=True)
class Resolved:
    """A config, where each of its values came from, and lines to log once."""

    config: Config
    origins: Mapping[str, str]  # dotted key -> origin; options of the model as model.KEY
    told: list[str] = field(default_factory=list)  # how the words of other tools were read

    @property
    def notes(self) -> list[str]:
        """All lines to log: those of reading, and those that the values themselves ask for."""
        return [*self.told, *unread_notes(self.config), *_batches(self.config)]

    def with_values(self, values: Mapping[str, Any], origin: str) -> Resolved:
        """A copy with other values under some dotted keys, checked like all, and their origin."""
        plain = self.config.model_dump()
        for key, value in values.items():
            *sections, last = key.split(".")
            inner = plain
            for section in sections:
                inner = inner[section]
            inner[last] = LEAVES[key].check(value, key)
        config = Config.model_validate(plain)
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        if errors := problems(config, origins, ()):
            raise ConfigError(errors)
        return replace(self, config=config, origins=origins)


def show(resolved: Resolved) -> str:
    """YAML of the config with the origin of every value; loads to the same values."""
    return show_config(resolved.config, resolved.origins)


def _batches(config: Config) -> list[str]:
    """What a batch is where there are several processes."""
    ranks = max(config.launch.world_size, config.launch.nproc)
    if ranks <= 1:
        return []
    if config.updates_apart:
        return [f"every worker makes updates of its own, of {config.train.batch_size} samples each"]
    return [
        f"batch sizes are global: each batch of {config.train.batch_size} samples is split over "
        f"{ranks} processes"
    ]
