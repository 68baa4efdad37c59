"""The section `rows.tiers`: how much of which memory rows may take, and where the others lie."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from shoal.config.section import WRITTEN, ReadBy, Section

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 1 << (10 * power) for power, unit in enumerate("KMGT", 1)}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def read_size(given: object) -> object:
    """Bytes of "20GB", "512MiB" or a number."""
    if isinstance(given, str):
        found = SIZE.fullmatch(given)
        unit = found[2].upper() if found else "?"
        if found is None or unit not in UNITS:
            raise ValueError(
                f"{given!r} is no size; write a number of bytes, or one with KB, MB, GB, TB (1000) "
                "or KiB, MiB, GiB, TiB (1024), such as 20GB"
            )
        return int(float(found[1]) * UNITS[unit])
    return given


def show_size(count: float) -> str:
    """Bytes as people write them, in units of 1000."""
    for unit in ("TB", "GB", "MB", "KB"):
        factor = UNITS[unit[0]]
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


Size = Annotated[int, BeforeValidator(read_size), Field(ge=0)]


# Elsewhere a user would count on memory that is taken all the same: servers have their own budgets,
# and in geo workers hold rows in memory.
IN_PROCESS = ReadBy(("single", "ddp", "sharded"), refused=True)
OVER_DISK = ReadBy((*IN_PROCESS.strategies, "ps sync", "ps async"), refused=True)


class TiersSection(Section):
    """Budgets of one process, for the rows of all its tables with their optimizer state."""

    gpu: Annotated[Size | None, IN_PROCESS] = Field(
        None, description="bytes of GPU memory; 0: rows stay in host memory; null: any"
    )
    host: Annotated[Size | None, OVER_DISK] = Field(
        None, description="bytes of host memory, such as 60GB; rows above it lie in ssd; null: any"
    )
    ssd: Annotated[str | None, OVER_DISK, WRITTEN] = Field(
        None, description="folder on a local disk for rows that host memory has no room for"
    )

    @model_validator(mode="after")
    def _together(self) -> TiersSection:
        if (self.host is None) != (self.ssd is None):
            lacks, has = ("ssd", "host") if self.ssd is None else ("host", "ssd")
            raise ValueError(
                f"rows.tiers.{has}: is given without rows.tiers.{lacks}: host is how many bytes "
                "stay in memory (60GB), ssd the folder where the other rows lie"
            )
        return self
