"""Traffic: where a tiered engine found the rows of lookups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Counts of where pulled ids found rows; of equal ids only the first counts as cold."""

    hot: int = 0
    ahead: int = 0  # on the disk, but read before they were pulled
    cold: int = 0
    evicted: int = 0
