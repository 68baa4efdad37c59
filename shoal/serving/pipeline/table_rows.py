"""Rows of a table that stands beside a pipeline: of items, of a test, of outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config.schema import DataSection
from shoal.data.sources.csv import OTHER_FORMAT
from shoal.data.sources.tables import read_frame
from shoal.data.sources.typed import OR_SKIP
from shoal.runs.input_data import encoding_of

if TYPE_CHECKING:
    import polars as pl


def read_rows(file: Path) -> pl.DataFrame:
    """The rows of a table, as they are; an error has no remedy that only a config of data has."""
    try:
        return read_frame(file, DataSection(encoding=encoding_of(file)))
    except ValueError as error:
        text = str(error).removesuffix(OR_SKIP).removesuffix(OTHER_FORMAT)
        raise ValueError(text) from error
