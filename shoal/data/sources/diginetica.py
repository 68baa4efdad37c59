"""Diginetica's item views: csv whose times are a date and the milliseconds within the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.sources.csv import Csv
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines

if TYPE_CHECKING:
    import polars as pl

DATE, MILLISECONDS = "eventdate", "timeframe"


class Diginetica(Csv):
    """csv in which `eventdate` becomes the time of the view: its date plus `timeframe`."""

    name = "diginetica"
    endings = ()

    def described(self, config: DataSection) -> Csv:
        return self

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        import polars as pl

        frame, numbers, skipped = super().rows(body, header, [*columns, DATE, MILLISECONDS], lines)
        if not {DATE, MILLISECONDS} <= {*frame.columns}:
            return frame, numbers, skipped  # another file: its columns are refused by name
        days = frame[DATE].str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("ms"))
        times = days.cast(pl.Int64) + frame[MILLISECONDS].cast(pl.Int64, strict=False)
        # A date that is none, or one without milliseconds, stays for the message about it.
        texts = times.cast(pl.String).zip_with(times.is_not_null(), frame[DATE] + " ?")
        return frame.with_columns(texts.alias(DATE)), numbers, skipped
