"""Dates as people write them, as seconds since 1970: each value by itself.

    2024-01-05, 2024-01-05T10:00:00Z, 2024-01-05 10:00:00.5+02:00, 2024/01/05
    05.01.2024 (day first), 5 Jan 2024, Jan 5, 2024, Fri Jan 05 10:00:00 2024
    05/01/2024, 05-01-2024: day or month first, as the values of the column show

A value does not depend on the others, but for the last form: there one value such as 31/01/2024
decides for all, and where none does, `AmbiguousDates` asks the user.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = rf"(?<word>(?i:{'|'.join(MONTHS)})[a-z]*)\.?"
WEEKDAY = r"^(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+"
CLOCK = (
    r"(?:(?:\s*T\s*|,?\s+)(?<hour>\d{1,2}):(?<minute>\d{2})(?::(?<second>\d{2}(?:[.,]\d+)?))?"
    r"\s?(?<half>(?i:am|pm|a\.m\.|p\.m\.))?"
    r"\s?(?<zone>(?i:z|utc|gmt)|[+-]\d{2}:?(?:\d{2})?)?)?$"
)
# A year of two digits stands behind days and months; not after dashes, where it may as well come
# first. 69 to 99 are 19.., as strptime reads them.
ANY_YEAR = r"(?<year>\d{4}|\d{2})"
FOUR_YEAR = r"(?<year>\d{4})"
FORMS = (
    rf"^{FOUR_YEAR}[-/.](?<month>\d{{1,2}})[-/.](?<day>\d{{1,2}})",
    rf"^(?<day>\d{{1,2}})\.(?<month>\d{{1,2}})\.{ANY_YEAR}",
    rf"^(?<day>\d{{1,2}})(?:st|nd|rd|th)?[ -]{MONTH}[ ,-]\s*{ANY_YEAR}",
    rf"^{MONTH}[ -](?<day>\d{{1,2}})(?:st|nd|rd|th)?[ ,-]\s*{FOUR_YEAR}",
    rf"^(?<month>\d{{1,2}}) (?<day>\d{{1,2}}), {FOUR_YEAR}",
)
# As C and Unix write them, with the year behind the time.
UNIX = (
    rf"^{MONTH}\s+(?<day>\d{{1,2}})\s+(?<hour>\d{{2}}):(?<minute>\d{{2}}):(?<second>\d{{2}})"
    rf"\s(?:(?<zone>UTC|GMT|[+-]\d{{4}})\s)?{FOUR_YEAR}$"
)
SLASHES = r"^(?<left>\d{{1,2}}){sign}(?<right>\d{{1,2}}){sign}{year}"
ORDERED = tuple(
    SLASHES.format(sign=sign, year=year) for sign, year in (("/", ANY_YEAR), ("-", FOUR_YEAR))
)
YEAR_1000 = -30_610_224_000  # a date before it is a year of fewer than four digits
LOOKED_AT = 100  # dates of a column, to find out how they are written
MOST_WAYS = 8


class AmbiguousDates(ValueError):
    """Dates of which nothing says whether the day or the month comes first.

    problem: what they show, without the remedy; column: their name; example: one of them.
    """

    def __init__(self, where: str, column: str, problem: str, example: str):
        flag = f"--data.cells.{column}.order"
        self.problem = f"{where}, column {column!r}: {problem}"
        super().__init__(
            f"{self.problem}; say which comes first with '{flag}=day' or "
            f"'{flag}=month', or write dates as 2025-01-31"
        )
        self.column, self.example = column, example


@dataclass
class DateOrder:
    """Which of day and month comes first in dates with slashes or dashes: what values show.

    day, month: a date that can be read in this order alone; either: one that can be read in both.

    >>> import polars as pl
    >>> order = DateOrder()
    >>> order.add(pl.Series(["05/06/2024", "31/05/2024"]))
    >>> order.leading, order.either
    ('day', '05/06/2024')
    """

    day: str | None = None
    month: str | None = None
    either: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are dates that can be read in both orders, and none that decides."""
        return self.either is not None and self.day is None and self.month is None

    @property
    def leading(self) -> str:
        """The order that values show; empty where none does."""
        return "" if (self.day is None) == (self.month is None) else "day" if self.day else "month"

    def add(self, text: pl.Series) -> None:
        """Look at further values."""
        import polars as pl

        for form in ORDERED:
            pairs = text.str.extract_groups(form).struct.unnest()
            left, right = (pairs[name].cast(pl.Int8) for name in ("left", "right"))
            self.day = self.day or _first(text, (left > 12) & (left <= 31) & (right <= 12))
            self.month = self.month or _first(text, (right > 12) & (right <= 31) & (left <= 12))
        self.either = self.either or _first(text, _fits_both(text))

    def first(self, text: pl.Series) -> str:
        """The order that the first value shows which can be read in one alone; empty: none does."""
        import polars as pl

        places: dict[str, int] = {}
        for form in ORDERED:
            pairs = text.str.extract_groups(form).struct.unnest()
            left, right = (pairs[name].cast(pl.Int8) for name in ("left", "right"))
            for name, large, small in (("day", left, right), ("month", right, left)):
                rows = ((large > 12) & (large <= 31) & (small <= 12)).fill_null(False)
                if rows.any():
                    place = int(rows.arg_max() or 0)
                    places[name] = min(place, places.get(name, place))
        return min(places, key=lambda name: places[name], default="")

    def check(self, where: str, column: str) -> None:
        """Raise AmbiguousDates where the values do not decide."""
        if self.day and self.month:
            problem = f"{self.day!r} has the day first and {self.month!r} the month"
            raise AmbiguousDates(where, column, problem, self.either or self.day)
        if self.is_open:
            assert self.either is not None
            problem = (
                f"{self.either!r} may have the day or the month first, and no value of the column "
                "decides"
            )
            raise AmbiguousDates(where, column, problem, self.either)


def _first(text: pl.Series, rows: pl.Series) -> str | None:
    rows = rows.fill_null(False)
    return str(text[int(rows.arg_max() or 0)]) if rows.any() else None


def seconds_of_dates(text: pl.Series, order: str = "") -> pl.Series:
    """Dates as text, as seconds since 1970; null where one is none.

    order: "day" or "month" comes first; without it, null also where nothing says which does.

    >>> import polars as pl
    >>> seconds_of_dates(pl.Series(["12/31/2010 8:26", "1/2/11 9:00"]), "month").to_list()
    [1293783960.0, 1293958800.0]
    """
    import polars as pl

    forms = [*(form + CLOCK for form in (*FORMS, *(_ordered(order) if order else ()))), UNIX]
    text = text.str.strip_chars()
    seconds = pl.Series(text.name, [None] * len(text), dtype=pl.Float64)
    is_left = text.is_not_null()
    # Most columns are written in one way or two, which Polars reads far faster.
    for way in _ways(text.filter(is_left), forms):
        if not is_left.any():
            return seconds
        read = text.set(~is_left, None).str.to_datetime(way, strict=False, time_unit="us")
        parsed = read.cast(pl.Int64) / 1e6
        parsed = parsed.set(parsed < YEAR_1000, None)
        seconds, is_left = seconds.zip_with(~is_left, parsed), is_left & parsed.is_null()
    if is_left.any():
        rest = text.filter(is_left).str.replace(WEEKDAY, "")
        if not order:
            forms += [form + CLOCK for name in ("day", "month") for form in _ordered(name)]
            rest = rest.set(_fits_both(rest), None)
        for form in forms:
            parsed = _by_form(rest, form)
            places = is_left.arg_true().filter(parsed.is_not_null())
            seconds = seconds.scatter(places, parsed.drop_nulls())
            rest = rest.set(parsed.is_not_null(), None)
    return seconds.set(seconds < YEAR_1000, None)


def holds_dates(text: pl.Series, order: str = "") -> bool:
    """Whether all of a column of text are dates; order: "day" or "month" comes first.

    >>> import polars as pl
    >>> holds_dates(pl.Series(["2024-01-31", None])), holds_dates(pl.Series(["drama", "war"]))
    (True, False)
    """
    dates = text.drop_nulls()
    sample = dates.head(LOOKED_AT)
    if not len(dates) or seconds_of_dates(sample, order).count() < len(sample):
        return False
    return seconds_of_dates(dates, order).count() == len(dates)


def _ordered(order: str) -> list[str]:
    """The forms of dates with slashes or dashes, in an order."""
    left, right = ("month", "day") if order == "month" else ("day", "month")
    return [f.replace("<left>", f"<{left}>").replace("<right>", f"<{right}>") for f in ORDERED]


def _fits_both(text: pl.Series) -> pl.Series:
    """Which dates can be read with the day first and with the month first, as different days."""
    import polars as pl

    fits = pl.Series([False]).new_from_index(0, len(text))
    for form in ORDERED:
        pairs = text.str.extract_groups(form).struct.unnest()
        left, right = (pairs[name].cast(pl.Int8) for name in ("left", "right"))
        fits = fits | ((left <= 12) & (right <= 12) & (left != right)).fill_null(False)
    return fits


def _ways(text: pl.Series, forms: list[str]) -> list[str]:
    """How some of the dates are written, as formats of strptime."""
    step = max(1, len(text) // LOOKED_AT)
    ways: dict[str, None] = {}
    for value in text.gather_every(step).head(2 * LOOKED_AT).unique(maintain_order=True).to_list():
        for form in forms:
            if match := re.match(form.replace("(?<", "(?P<"), value):
                if len(match["year"]) == 4:  # of two digits Polars reads 69 as 2069
                    ways |= dict.fromkeys([_way(value, match)])
                break
    return list(ways)[:MOST_WAYS]


def _way(value: str, match: re.Match[str]) -> str:
    """A date with its parts replaced by what stands for them in strptime."""
    parts = {name: part for name, part in match.groupdict().items() if part is not None}
    stands_for = {
        "year": "%Y",
        "month": "%m",
        "day": "%d",
        "word": "%b" if len(parts.get("word", "")) == 3 else "%B",
        "hour": "%I" if "half" in parts else "%H",
        "minute": "%M",
        "second": "%S%.f" if len(parts.get("second", "")) > 2 else "%S",
        "half": "%p",
        "zone": "%z",
    }
    for name in sorted(parts, key=match.start, reverse=True):
        if name == "zone" and parts[name][0] not in "+-":
            continue  # Z, UTC or GMT stays as it is
        value = value[: match.start(name)] + stands_for[name] + value[match.end(name) :]
    return value


def _by_form(text: pl.Series, form: str) -> pl.Series:
    """Seconds of dates of one form, whose groups name their parts."""
    import polars as pl

    part = text.str.extract_groups(form).struct.unnest()
    # The date: years of two digits are 1969 to 2068, months are numbers or names.
    year = part["year"].cast(pl.Int32)
    short = part["year"].str.len_chars() == 2
    year = year + short.cast(pl.Int32) * 1900 + (short & (year < 69)).cast(pl.Int32) * 100
    if "word" in part.columns:
        short_words = part["word"].str.slice(0, 3).str.to_lowercase()
        numbers = {word: number for number, word in enumerate(MONTHS, start=1)}
        month = short_words.replace_strict(numbers, default=None, return_dtype=pl.Int32)
    else:
        month = part["month"].cast(pl.Int32)
    date = year.cast(pl.String) + "-" + month.cast(pl.String) + "-" + part["day"]
    days = date.str.to_date("%Y-%m-%d", strict=False).cast(pl.Int32).cast(pl.Float64)

    # The time of day; a part that is not there is 0.
    def number(name: str) -> pl.Series:
        return part[name].str.replace(",", ".", literal=True).cast(pl.Float64).fill_null(0.0)

    hour, minute, second = number("hour"), number("minute"), number("second")
    if "half" in part.columns:
        half = part["half"].str.slice(0, 1).str.to_lowercase().fill_null("")
        hour = hour.set((half != "") & (hour == 12), 0.0)
        hour = hour + (half == "p").cast(pl.Float64) * 12
    sound = (hour < 24) & (minute < 60) & (second < 61)
    # The zone, in minutes east of UTC.
    digits = (
        part["zone"]
        .str.replace(":", "", literal=True)
        .str.extract_groups(r"^([+-])(\d{2})(\d{2})?$")
    )
    sign, hours, minutes = digits.struct.unnest().get_columns()
    shift = hours.cast(pl.Float64).fill_null(0.0) * 60 + minutes.cast(pl.Float64).fill_null(0.0)
    is_west = (sign.fill_null("") == "-").cast(pl.Float64)
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - shift * 60 * (1 - 2 * is_west)
    return seconds.set(~sound.fill_null(False), None).alias(text.name)


def shown_time(seconds: float) -> str:
    """A time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
