"""Section: the base of every section of a config, and what a key may declare about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

STRICT = ConfigDict(extra="forbid", strict=True)  # of mappings, by pydantic.with_config


@dataclass(frozen=True)
class ReadBy:
    """The strategies that read a key; `ps async` and `ps geo` are modes of the servers.

    Under others the log names the key, so that one config serves several strategies. `refused`: it
    is an error there, because users would count on it.
    """

    strategies: tuple[str, ...]
    refused: bool = False
    harmless: tuple[object, ...] = ()  # values besides the default that ask for nothing

    def __str__(self) -> str:
        names = (one.replace(" ", " with strategy.ps.mode=") for one in self.strategies)
        return f"strategy.name={' or '.join(names)}"


class Section(BaseModel):
    """Base of every section: unknown keys and wrong types are errors, and nothing changes later."""

    # defer_build: of all the sections only Config is ever validated by itself.
    model_config = ConfigDict(**STRICT, validate_default=True, frozen=True, defer_build=True)
    read_by: ClassVar[ReadBy | None] = None  # of its keys that do not declare it themselves


@dataclass(frozen=True)
class NeedsTrust:
    """A key that names code to run, or a place to write to: not for the config of a run folder."""

    use: str


RUN, WRITTEN = NeedsTrust("which would be run"), NeedsTrust("which would be written to")
