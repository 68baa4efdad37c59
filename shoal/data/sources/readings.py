"""How the columns of a table are read: found in a sample of its first file, the same everywhere.

Training, `shoal prepare` and click logs look at the same rows, so they decide alike. One question
may need more of the table: whether 05/06/2024 has the day or the month first, if no date of the
sample shows it. Then rows are looked at in their order until one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.dates import DateOrder
from shoal.data.reading import ColumnReading, filled, find_reading

if TYPE_CHECKING:
    import polars as pl

# A sample is what stands at some places of a file, the first of which is its beginning.
SAMPLE_PLACES = 8
SAMPLE_ROWS = 10_000  # of all places of Parquet and Arrow
SAMPLE_BYTES = 1 << 20  # of all places of text; of packed text all at its beginning


def find_readings(
    sample: pl.DataFrame,
    types: Mapping[str, FieldType | None],
    config: DataSection,
    where: str,
    rows: Callable[[str], Iterable[pl.Series]],
) -> dict[str, ColumnReading]:
    """Column -> how it is read.

    types: of the columns that are wanted; None: the values say it. where: names the table in
    messages. rows: a column -> its values, part by part, should the sample leave dates open.
    """
    fields, readings = config.fields, {}
    for name, kind in types.items():
        options = (config.cells or {}).get(name, {})
        if name in (fields.user, fields.item) and options.get("kind", "id") != "id":
            raise ValueError(
                f"data.cells.{name}.kind is {options['kind']}: users and items are ids, which are "
                "read as they stand; leave it out"
            )
        is_time = name == fields.time
        readings[name] = find_reading(sample[name], kind, is_time, options, config.seq_separator)
        if readings[name].is_time and not readings[name].order:
            order = _order_of(sample[name], name, where, rows)
            readings[name] = replace(readings[name], order=order)
    return readings


def _order_of(
    values: pl.Series, name: str, where: str, rows: Callable[[str], Iterable[pl.Series]]
) -> str:
    """The order of day and month, where the sample leaves it open: as the first date shows it."""
    import polars as pl

    if values.dtype != pl.String:
        return ""
    order = DateOrder()
    order.add(filled(values))
    if order.is_open:
        for text in rows(name):
            if text.dtype == pl.String and (first := order.first(filled(text))):
                return first
    order.check(where, name)
    return ""


def typed_reading(kind: FieldType, config: DataSection) -> ColumnReading:
    """The reading of a column whose file, or whose training data, says its type."""
    is_list = kind.endswith("_seq")
    return ColumnReading(kind, separator=config.seq_separator if is_list else "")
