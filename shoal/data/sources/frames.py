"""Frames of Python as Polars frames: pandas, Polars, Arrow, Hugging Face datasets, rows as dicts.

None of these libraries is needed but Polars: what a frame can do is asked of the frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl


def to_polars(frame: Any, name: str = "the frame") -> pl.DataFrame:
    """The columns of a frame as a Polars frame; name: what errors call the frame."""
    import polars as pl

    try:
        converted = _converted(frame, pl)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} ({type(frame).__name__}) cannot be read: {str(error).splitlines()[0]}; a "
            "column holds values of one type, as many as the others"
        ) from error
    if converted is None:
        raise ValueError(
            f"{name} is a {type(frame).__name__}; give a frame of pandas, Polars, Arrow or "
            "Hugging Face datasets, a dict of arrays, or an iterator of dicts"
        )
    if not len(converted):
        raise ValueError(f"{name} has no rows")
    return converted


def _converted(frame: Any, pl: Any) -> pl.DataFrame | None:
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if isinstance(frame, pl.DataFrame):
        return frame
    if hasattr(frame, "columns") and hasattr(frame, "to_numpy"):  # pandas, with or without Arrow
        return pl.DataFrame([_series(str(name), frame[name], pl) for name in frame.columns])
    if hasattr(frame, "__arrow_c_stream__"):
        return pl.DataFrame(frame)
    if hasattr(frame, "column_names") and hasattr(frame, "features"):  # Hugging Face datasets
        return pl.DataFrame({name: list(frame[name]) for name in frame.column_names})
    if hasattr(frame, "__dataframe__"):
        return pl.from_dataframe(frame)
    if isinstance(frame, Mapping):
        return pl.DataFrame([_series(str(name), column, pl) for name, column in frame.items()])
    if isinstance(frame, Iterable) and not isinstance(frame, str | bytes):
        rows = list(frame)
        if rows and all(isinstance(row, Mapping) for row in rows):
            plain = [{str(name): _plain(value) for name, value in row.items()} for row in rows]
            return pl.DataFrame(plain, infer_schema_length=None)
    return None


def _series(name: str, column: Any, pl: Any) -> pl.Series:
    """A column of pandas, numpy, Arrow, Polars or plain Python."""
    arrow = hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")
    if arrow and not hasattr(column, "iloc"):  # pandas has NaN for nothing, see below
        return pl.Series(name, column)
    if isinstance(column, list | tuple) and any(isinstance(one, list | tuple) for one in column):
        return pl.Series(name, [_plain(one) for one in column], strict=True)
    values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")  # of any resolution
    if values.dtype.kind in "iufbM":
        return pl.Series(name, values)
    # Objects: text, lists, or numbers with gaps, where NaN stands for nothing.
    return pl.Series(name, [_plain(one) for one in values.tolist()], strict=True)


def _plain(value: Any) -> Any:
    """A value of Python's own types; None for NaN and what pandas and numpy have for it."""
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()  # None of NaT
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    missing = isinstance(value, float) and value != value
    return None if missing or type(value).__name__ in ("NAType", "NaTType") else value
