"""TOML in, with the line of every key. Configs of tools that write TOML are read as they are."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from shoal.config.errors import ConfigError

TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=""")


def read(text: str, place: str) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The mapping in a TOML text and the line of every key; `place` names the text in errors."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        where = f"{place}:{found[1]}" if found else place
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{place}: nested too deep") from None
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if found := TABLE.match(line):
            table = tuple(part.strip(" \"'") for part in found[1].split("."))
            lines.setdefault(table, number)
        elif found := KEY.match(line):
            lines.setdefault((*table, *found[1].split(".")), number)
    return _plain(values), lines


def _plain(value: Any) -> Any:
    """The types that YAML knows too: dates and times are text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
