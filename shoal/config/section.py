"""Section: the base of every section of a config."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of every section: unknown keys and wrong types are errors, and nothing changes later."""

    # defer_build: of all the sections only Config is ever validated by itself.
    model_config = ConfigDict(
        extra="forbid", strict=True, validate_default=True, frozen=True, defer_build=True
    )
