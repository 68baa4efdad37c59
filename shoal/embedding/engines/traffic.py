"""Traffic: where a tiered engine found the rows that it was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """What ids that were pulled found so far; of equal ones only the first finds a cold row."""

    hot: int = 0
    ahead: int = 0  # on the disk, but read before they were asked for
    cold: int = 0
    evicted: int = 0
