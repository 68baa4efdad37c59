"""What a column means, by its name and its values: a moment, an outcome.

Times are seconds since 1970, or milliseconds as JavaScript counts them. A table of ids made of them
would have a row for every moment, and no moment comes again.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

# Words of columns that say what came of an interaction: known after it, never before.
OUTCOMES = (
    "added basket booked bookmarked bought buy cart checkout click clicked clicks commented "
    "completed completion consumed conversion conversions converted ctr cvr dwell finished "
    "followed gmv installed label like liked likes listened opened outcome paid payment played "
    "plays playtime purchase purchased purchases refunded replied reserved responded response "
    "returned revenue reward sale sales saved shared signup skipped sold spend spent subscribed "
    "target timespent viewtime watch watched"
)
# Units behind numbers, in lower case.
MEASURES = (
    "kg g mg lb lbs oz km m cm mm mi ft in l cl ml ms s sec secs min mins h hr hrs b kb mb gb tb "
    "w kw kwh v mah hz khz mhz ghz px dpi °c °f"
)
MEASURED = re.compile(rf"[-+−]?\d[\d.,]*\s?({'|'.join(MEASURES.split())})\.?", re.IGNORECASE)
HOUR, DAY = 3600, 86_400
NAMES = {"time", "timestamp", "datetime", "date", "day", "ts", "at", "on", "when", "moment"}
NAMES |= {"birth", "birthday", "birthdate", "born", "dob", "published", "released", "joined"}
NAMES |= {"registered", "signup", "created", "updated"}
FIRST, LAST = -2_208_988_800, 4_102_444_800  # from 1900 to 2100
# Of a column whose name says nothing: from September 2001 to May 2033.
FIRST_OF_ANY, LAST_OF_ANY = 1_000_000_000, 2_000_000_000
MILLISECONDS = 100_000_000_000  # larger numbers are no seconds: it would be the year 5138
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# From here on a number is in the next unit: as seconds it would be in the year 5138.
LONG_AFTER = 1e11


def is_outcome(column: str) -> bool:
    """Whether a column says what came of an interaction, by its name.

    >>> is_outcome("is_bought"), is_outcome("watchTime"), is_outcome("price")
    (True, True, False)
    """
    words = words_of(column)
    joined = {first + second for first, second in pairwise(words)}  # view_time
    plain = {word.removeprefix("is").removesuffix("flag") for word in words}
    return not {*words, *plain, *joined}.isdisjoint(OUTCOMES.split())


def is_measured(value: str) -> bool:
    """Whether a text is a number with a unit.

    >>> is_measured("3,5 kg"), is_measured("120min"), is_measured("12a")
    (True, True, False)
    """
    return MEASURED.fullmatch(value.strip()) is not None


def words_of(column: str) -> list[str]:
    """The words of a name, in lower case."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column).lower())


def holds_times(name: str, values: np.ndarray) -> bool:
    """Whether all numbers of a column are moments: by its name and its values.

    >>> import numpy as np
    >>> holds_times("shown_at", np.array([1.7e9])), holds_times("watch_time", np.array([31.0]))
    (True, False)
    """
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return False
    low, high = float(numbers.min()), float(numbers.max())
    if low > MILLISECONDS:
        low, high = low / 1000, high / 1000
    if low >= FIRST_OF_ANY and high <= LAST_OF_ANY:
        return True
    # A duration in seconds, or a number of the day, is small.
    is_moment = max(abs(low), abs(high)) > FIRST_OF_ANY / 10
    return not NAMES.isdisjoint(words_of(name)) and is_moment and low >= FIRST and high <= LAST


def seconds(values: np.ndarray) -> np.ndarray:
    """Times as seconds since 1970, float64."""
    values = np.asarray(values, np.float64)
    return np.where(np.abs(values) > MILLISECONDS, values / 1000, values)


def hour(values: np.ndarray) -> np.ndarray:
    """The hour of the day in UTC, 0 to 23.

    >>> import numpy as np
    >>> hour(np.array([0.0, 7200.0, -1.0])).tolist()
    [0.0, 2.0, 23.0]
    """
    return np.floor(seconds(values) / HOUR) % 24


def weekday(values: np.ndarray) -> np.ndarray:
    """The day of the week in UTC: 0 is Monday.

    >>> import numpy as np
    >>> weekday(np.array([0.0])).tolist()  # 1970-01-01 was a Thursday
    [3.0]
    """
    return (np.floor(seconds(values) / DAY) + 3) % 7


def has_hours(values: np.ndarray) -> bool:
    """Whether times are more than dates: some are not at midnight."""
    return bool((np.nan_to_num(seconds(values)) % DAY != 0).any())


def unit_of(numbers: pl.Series) -> str:
    """The unit of times that are numbers, by their median: s, ms, us or ns since 1970.

    >>> import polars as pl
    >>> [unit_of(pl.Series([1.7 * 10**power])) for power in (9, 12, 15, 18)]
    ['s', 'ms', 'us', 'ns']
    """
    middle = numbers.drop_nulls().abs().median()
    size = float(middle) if isinstance(middle, int | float) else 0.0
    return next((u for u, factor in UNITS.items() if size < LONG_AFTER * factor), "ns")


def seconds_of_numbers(numbers: pl.Series, unit: str) -> pl.Series:
    """Times in a unit as seconds."""
    factor = UNITS.get(unit, 1.0)
    return numbers if factor == 1.0 else numbers / factor
