"""csv: a header, then a line for each sample; columns are named in the config.

Whole numbers in a slot's column are ids as they stand, other text is hashed with the number of the
slot; an empty cell is the id 0, or the dense value 0. Cells are not quoted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import MOST_COLUMNS
from shoal.data.clicks.decode import decode, read_lines
from shoal.data.clicks.formats import LineFormat
from shoal.data.clicks.lines import BadLine, Parser, show
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.packed import plain_name


def header(first_line: bytes, separator: str, name: str) -> tuple[list[str], int]:
    """The columns' names, and the byte between them: `separator` if it is there, else a comma."""
    text = first_line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").strip("\r\n")
    between = separator if separator in text else ","
    names = text.split(between)
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{name} has {len(names)} columns; at most {MOST_COLUMNS} are read")
    twice = [one for one, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{name}: two columns are named {twice[0]!r}")
    return names, ord(between)


def check_columns(layout: Layout, names: list[str], file: str) -> None:
    """Every column of the layout must be there."""
    known = set(names)
    keys = {"label": [layout.label], "slots": layout.slots, "dense": layout.dense}
    for key, wanted in keys.items():
        for one in wanted:
            if one not in known:
                raise ValueError(
                    f"{file} has no column {one!r} (data.clicks.{key}); its columns are "
                    f"{', '.join(names[:100])}{did_you_mean(one, names)}"
                )


class CsvClicks(LineFormat):
    """Columns by the names of its first line."""

    name = "csv"

    def looks_so(self, file: Path, first: bytes) -> bool:
        return plain_name(file).suffix == ".csv"

    def has_header(self, first: bytes) -> bool:
        return True

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        names, between = header(first, separator, name)
        check_columns(layout, names, name)
        wanted = [layout.label, *layout.slots, *layout.dense]

        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            quotes = np.flatnonzero(data == ord('"'))
            quoted = np.searchsorted(quotes, stops) > np.searchsorted(quotes, starts)
            if quoted.any():
                index = int(quoted.argmax())
                shown = show(data[starts[index] : stops[index]].tobytes())
                raise BadLine(index, f"quoted cells are not read: {shown}; write Parquet instead")
            return decode(read_lines(data, starts, stops, between, names, wanted), layout)

        return parse
