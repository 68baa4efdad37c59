"""Intervals as filters write them: "[3,inf)", "(0,5];[7,9]"."""

import re
from dataclasses import dataclass
from typing import Any

NUMBER = r"[-+]?(?:inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
INTERVAL = re.compile(rf"\s*([\[(])\s*({NUMBER})\s*,\s*({NUMBER})\s*([\])])\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Interval:
    """The numbers between `low` and `high`; a closed end belongs to it."""

    low: float
    high: float
    low_closed: bool = True
    high_closed: bool = False

    def holds(self, values: Any) -> Any:
        """Whether a number, or which numbers of an array (or column expression), lie inside."""
        above = values >= self.low if self.low_closed else values > self.low
        below = values <= self.high if self.high_closed else values < self.high
        return above & below


def parse_intervals(text: str, where: str = "") -> list[Interval]:
    """Reads intervals parted by `;`. A number belongs to the list if it lies in any of them.

    `where` is the key that holds the text, for the error message.
    """
    place = f"{where}: " if where else ""
    intervals = []
    for part in text.split(";"):
        match = INTERVAL.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{place}{part.strip()!r} is not an interval; write [LOW,HIGH] with ( or ) for an "
                "end that is left out, inf for no end and ; between several, e.g. "
                '"[3,inf)" or "(0,5];[7,9]"'
            )
        left, low, high, right = match.groups()
        interval = Interval(float(low), float(high), left == "[", right == "]")
        if interval.low > interval.high:
            raise ValueError(f"{place}{part.strip()!r} is empty: its low end is above its high end")
        if interval.low == interval.high and not (left == "[" and right == "]"):
            raise ValueError(f"{place}{part.strip()!r} is empty: write [{low},{low}] for one value")
        intervals.append(interval)
    return intervals
