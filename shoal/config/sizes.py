"""Sizes of memory and disk: bytes, written as text with a unit such as 60GB or 256KiB."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic_core import PydanticCustomError, core_schema

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 1 << (10 * power) for power, unit in enumerate("KMGT", 1)}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
EXACT = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")  # the largest that fits is written


def read_size(size: object) -> object:
    """Bytes of "20GB", "512MiB" or a number."""
    if isinstance(size, str):
        match = SIZE.fullmatch(size)
        unit = match[2].upper() if match else "?"
        if match is None or unit not in UNITS:
            raise ValueError(
                f"{size!r} is no size; write a number with KB, MB, GB, TB (1000) or KiB, MiB, GiB, "
                "TiB (1024), such as 20GB"
            )
        return int(float(match[1]) * UNITS[unit])
    return size


def show_size(count: float) -> str:
    """Bytes as people write them, rounded, in units of 1000."""
    for unit in ("TB", "GB", "MB", "KB"):
        factor = UNITS[unit[0]]
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def write_size(count: int) -> str:
    """Bytes as a config writes them: exactly, so that `read_size` returns the same number.

    >>> write_size(262144), write_size(60 * 10**9), write_size(1001)
    ('256KiB', '60GB', '1001B')
    """
    for unit in EXACT:
        factor = UNITS[unit[:-1].upper()]
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count}B" if count else "0"


@dataclass(frozen=True)
class SizeBelow:
    """In an Annotated int: a number of bytes, which configs write as text with a unit."""

    limit: int = 1 << 62
    least: int = 0

    def check(self, size: object) -> object:
        """The bytes; ValueError where the text is no size, or the size is out of bounds."""
        count = read_size(size)
        if isinstance(count, int) and not self.least <= count < self.limit:
            raise ValueError(f"allowed: {self}")
        return count

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": ["string", "integer"], "description": str(self)}

    def __str__(self) -> str:
        text = "a size such as 60GB or 256KiB"
        text += " above 0" if self.least else ""
        return text if self.limit == 1 << 62 else f"{text}, below {write_size(self.limit)}"


class ItemCount:
    """In an Annotated text: a batch by the items that it has to find, such as `2048 items`."""

    def check(self, text: str) -> str:
        """The text; an error where it is no number of items."""
        if items_of(text) is None:  # no ValueError: what else is allowed stands in the message, too
            raise PydanticCustomError("items", "no number of items")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __str__(self) -> str:
        return "a number of items such as `2048 items`"


def items_of(size: int | str) -> int | None:
    """The number of a size in items; None where it is no such size.

    >>> items_of("2048 items"), items_of("auto"), items_of(64)
    (2048, None, None)
    """
    number, _, unit = str(size).partition(" ")
    is_count = unit == "items" and number.isdecimal() and 1 <= int(number) < 1 << 31
    return int(number) if is_count else None


Size = Annotated[int, SizeBelow()]
PositiveSize = Annotated[int, SizeBelow(least=1)]
