"""csv: a header, then a line for each sample; columns are named in the config.

Whole numbers in a slot's column are ids as they stand, other text is hashed with the number of the
slot; an empty cell is the id 0, or the dense value 0. Cells are not quoted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.clicks.decode import decode, read_lines
from shoal.clicks.formats import LineFormat, first_line
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, Parser, line_bounds, show
from shoal.clicks.samples import Samples
from shoal.config.errors import did_you_mean
from shoal.config.schema import MOST_COLUMNS
from shoal.data.bounded_files import open_text, plain_name
from shoal.data.sources.text import sampled_text

if TYPE_CHECKING:
    import polars as pl


def header(line: bytes, separator: str, name: str) -> tuple[list[str], int]:
    """The columns' names, and the byte between them: `separator` if it is there, else a comma."""
    text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").strip("\r\n")
    between = separator if separator in text else ","
    names = text.split(between)
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{name} has {len(names)} columns; at most {MOST_COLUMNS} are read")
    twice = [one for one, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{name}: two columns are named {twice[0]!r}")
    return names, ord(between)


def check_columns(layout: Layout, names: list[str], file: str) -> None:
    """Refuse a file without some column of the layout."""
    available = set(names)
    keys = {"label": [layout.label], "slots": layout.slots, "dense": layout.dense}
    for key, columns in keys.items():
        for column in columns:
            if column not in available:
                raise ValueError(
                    f"{file} has no column {column!r} (data.clicks.{key}); its columns are "
                    f"{', '.join(names[:100])}{did_you_mean(column, names)}"
                )


class CsvClicks(LineFormat):
    """csv, whose first line names the columns."""

    name = "csv"

    def looks_so(self, file: Path, first: bytes) -> bool:
        return plain_name(file).suffix == ".csv"

    def has_header(self, first: bytes) -> bool:
        return True

    def sample(self, file: Path, layout: Layout, separator: str) -> pl.DataFrame | None:
        with open_text(file) as source:
            first = first_line(source)
        names, between = header(first, separator, str(file))
        check_columns(layout, names, str(file))
        lines = sampled_text(file, "utf-8", has_header=True)[1].replace(b"\r", b"").split(b"\n")
        whole = [one for one in lines if one.count(between) == len(names) - 1]
        text = b"\n".join(whole).decode("utf-8", "replace").encode()
        starts, stops = line_bounds(text)
        columns = [layout.label, *layout.slots, *layout.dense]
        return read_lines(np.frombuffer(text, np.uint8), starts, stops, between, names, columns)

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        names, between = header(first, separator, name)
        check_columns(layout, names, name)
        columns = [layout.label, *layout.slots, *layout.dense]

        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            quotes = np.flatnonzero(data == ord('"'))
            quoted = np.searchsorted(quotes, stops) > np.searchsorted(quotes, starts)
            if quoted.any():
                index = int(quoted.argmax())
                shown = show(data[starts[index] : stops[index]].tobytes())
                raise BadLine(index, f"quoted cells are not read: {shown}; write Parquet instead")
            return decode(read_lines(data, starts, stops, between, names, columns), layout)

        return parse
