"""What the names of columns say: their words, and whether they mean an outcome."""

from __future__ import annotations

import re
from itertools import pairwise

# Words of columns that say what came of an interaction: known after it, never before.
OUTCOMES = (
    "added basket booked bookmarked bought buy cart checkout click clicked clicks commented "
    "completed completion consumed conversion conversions converted ctr cvr dwell finished "
    "followed gmv installed label like liked likes listened opened outcome paid payment played "
    "plays playtime purchase purchased purchases refunded replied reserved responded response "
    "returned revenue reward sale sales saved shared signup skipped sold spend spent subscribed "
    "target timespent viewtime watch watched"
)


def is_outcome(column: str) -> bool:
    """Whether a column says what came of an interaction, by its name.

    >>> is_outcome("is_bought"), is_outcome("watchTime"), is_outcome("price")
    (True, True, False)
    """
    words = words_of(column)
    joined = {first + second for first, second in pairwise(words)}  # view_time
    plain = {word.removeprefix("is").removesuffix("flag") for word in words}
    return not {*words, *plain, *joined}.isdisjoint(OUTCOMES.split())


def words_of(column: str) -> list[str]:
    """The words of a name, in lower case."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column).lower())
