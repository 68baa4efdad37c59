"""Dates as people write them, as seconds since 1970."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

# Ways of writing dates that Polars does not find out by itself.
DATES = (
    *("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y", "%m-%d-%Y"),
    *("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%m %d, %Y", "%Y/%m/%d %H:%M"),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y"),
)
# Days and months before a year of two digits: 69 to 99 are 19.., as strptime reads them. Not after
# dashes, where the year may as well come first.
OF_1900, OF_2000 = (
    rf"^(\d{{1,2}}[./]\d{{1,2}}[./])({year})\b" for year in (r"69|[7-9]\d", r"\d\d")
)
ORDER = r"^(?<one>\d{1,2})[/-](?<other>\d{1,2})[/-](?:\d{4}|\d{2})\b"
YEAR_1000 = -30_610_224_000  # a date before it is a year of fewer than four digits


def seconds_of_dates(text: pl.Series) -> pl.Series:
    """Dates as text, as seconds since 1970: in the way of writing that reads most of them.

    Day first, where month first reads no more.

    >>> import polars as pl
    >>> seconds_of_dates(pl.Series(["12/31/2010 8:26", "1/2/11 9:00"])).to_list()
    [1293783960.0, 1293958800.0]
    """
    import polars as pl

    text = text.str.replace(OF_1900, "${1}19${2}").str.replace(OF_2000, "${1}20${2}")
    best = pl.Series(text.name, [None] * len(text), dtype=pl.Float64)
    for form in (None, *DATES):
        if best.count() == text.count():
            break
        with suppress(pl.exceptions.PolarsError):  # nothing says which way it is
            found = text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64) / 1e6
            found = found.set(found < YEAR_1000, None)
            best = found if found.count() > best.count() else best
    return best


def doubtful_order(text: pl.Series, seconds: pl.Series) -> str | None:
    """How dates were read that may all be day first or month first; None where one order fits.

    >>> import polars as pl
    >>> text = pl.Series(["01/02/2025", "01/03/2025"])
    >>> str(doubtful_order(text, seconds_of_dates(text))).partition(",")[0]
    "'01/02/2025' was read day first"
    """
    import polars as pl

    text, times = text.filter(seconds.is_not_null()), seconds.drop_nulls().to_numpy()
    pairs = text.str.extract_groups(ORDER).struct.unnest().cast(pl.Int8).drop_nulls().to_numpy()
    rows = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    if len(pairs) < len(text) or not len(rows) or pairs.max() > 12:
        return None
    row = int(rows[0])
    is_month = time.gmtime(times[row]).tm_mon == pairs[row, 0]
    used, unused = ("month", "day") if is_month else ("day", "month")
    return (
        f"{text[row]!r} was read {used} first, and all dates may be {unused} first as well: times "
        f"go from {shown_time(times.min())} to {shown_time(times.max())}; if that is wrong, "
        "write dates as 2025-01-31"
    )


def shown_time(seconds: float) -> str:
    """A time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
