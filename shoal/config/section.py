"""Section: the base of every section of a config, and what a key may declare about itself.

Choices are names that a key may have, to which others are added by registration.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from shoal.config.errors import did_you_mean

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


class Choices:
    """In an Annotated text: one of these names, as many as there are when it is read.

    module: the module whose import adds the names of the package, where they are defined there.
    """

    def __init__(self, *names: str, module: str | None = None):
        self._names = list(names)
        self._module = module

    def add(self, name: str) -> None:
        """Let configs have a further name."""
        if name not in self._names:
            self._names.append(name)

    @property
    def names(self) -> list[str]:
        """The names that a config may have."""
        if self._module is not None:
            import_module(self._module)
        return self._names

    def check(self, value: str) -> str:
        """The name; ValueError where there is no such."""
        if value not in self.names:
            raise ValueError(f"allowed: {self}{did_you_mean(value, self.names)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.names)}

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)
