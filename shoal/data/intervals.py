"""Intervals as text: "[3,inf)", or several joined by ";" as in "(0,5];[7,9]"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

_ONE = re.compile(r"([\[(])([^,\[\]()]+),([^,\[\]()]+)([\])])")


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    low_closed: bool
    high_closed: bool


def parse_intervals(text: str, where: str) -> list[Interval]:
    """The intervals that `text` names; `where` is the option, for the error message."""
    intervals = []
    for part in text.split(";"):
        found = _ONE.fullmatch(part.strip())
        try:
            low, high = (float(found[2]), float(found[3])) if found else (math.nan, math.nan)
        except ValueError:
            found = None
        if not found or math.isnan(low) or math.isnan(high):
            raise ValueError(
                f"{where}: {part.strip()!r} is no interval; write [low,high] with [ ] for "
                'included and ( ) for excluded ends, e.g. "[3,inf)", and join several with ";"'
            )
        if low > high:
            raise ValueError(
                f"{where}: {part.strip()!r} holds nothing, its low end is above its high end; "
                f"did you mean {found[1]}{found[3].strip()},{found[2].strip()}{found[4]}?"
            )
        intervals.append(Interval(low, high, found[1] == "[", found[4] == "]"))
    return intervals


def within(values: np.ndarray, intervals: list[Interval]) -> np.ndarray:
    """bool mask: values that lie in at least one of the intervals."""
    inside = np.zeros(values.shape, dtype=bool)
    for i in intervals:
        above = values >= i.low if i.low_closed else values > i.low
        below = values <= i.high if i.high_closed else values < i.high
        inside |= above & below
    return inside


def holds_everything(intervals: list[Interval]) -> bool:
    """True when no count (0 or more) can fall outside, so that counting can be skipped."""
    return any(
        (i.low < 0 or (i.low == 0 and i.low_closed)) and math.isinf(i.high) for i in intervals
    )
