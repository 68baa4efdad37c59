"""Section: the base of every section of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema


class Section(BaseModel):
    """Base of every section: unknown keys and wrong types are errors, and nothing changes later."""

    # defer_build: of all the sections only Config is ever validated by itself.
    model_config = ConfigDict(
        extra="forbid", strict=True, validate_default=True, frozen=True, defer_build=True
    )


@dataclass(frozen=True)
class OneOf:
    """Annotates text that is one of some names, to which a package may add its own."""

    names: list[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if value not in self.names:
            raise PydanticCustomError("one_of", "not one of the names")
        return value

    def __hash__(self) -> int:
        return id(self)
