"""Dates as people write them, as seconds since 1970."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

# Ways of writing dates that Polars does not find out by itself.
DATES = (
    *("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y", "%m/%d/%y %H:%M"),
    *("%m/%d/%y", "%m-%d-%Y", "%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y"),
    *("%m %d, %Y", "%Y/%m/%d %H:%M", "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y"),
)


def seconds_of_dates(text: pl.Series) -> pl.Series:
    """Dates as text, as seconds since 1970: in the way of writing that reads most of them.

    >>> import polars as pl
    >>> seconds_of_dates(pl.Series(["12/31/2010 8:26", "1/2/2011 9:00"])).to_list()
    [1293783960.0, 1293958800.0]
    """
    import polars as pl

    best = pl.Series(text.name, [None] * len(text), dtype=pl.Float64)
    for form in (None, *DATES):
        if best.count() == text.count():
            break
        with suppress(pl.exceptions.PolarsError):  # nothing says which way it is
            found = text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64) / 1e6
            best = found if found.count() > best.count() else best
    return best
