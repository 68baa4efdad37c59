"""Choices: names that a key may have, to which others are added by registration."""

from __future__ import annotations

from typing import Any

from pydantic_core import core_schema

from shoal.config.errors import did_you_mean


class Choices:
    """In an Annotated text: one of these names, as many as there are when it is read."""

    def __init__(self, *names: str):
        self.names = list(names)

    def add(self, name: str) -> None:
        """Let configs have a further name."""
        if name not in self.names:
            self.names.append(name)

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
