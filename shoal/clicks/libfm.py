"""libFM's text: a label and INDEX:1 for each slot, separated by spaces, as Frappe's split has it.

Indices count over all slots, so that they are ids as they stand. A label is 1, or -1 (0) for none.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from shoal.clicks.decode import decode, read_lines
from shoal.clicks.formats import LineFormat
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, Parser, show
from shoal.clicks.samples import Samples

FIRST = re.compile(rb"[-+]?[01]( \d+:1)+\s*")


class LibFm(LineFormat):
    """A line has as many features as data.clicks.slots names, each of the value 1."""

    name = "libfm"
    is_log = True

    def looks_so(self, file: Path, first: bytes) -> bool:
        return FIRST.fullmatch(first) is not None

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        import polars as pl

        names = [layout.label, *layout.slots]

        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            frame = read_lines(data, starts, stops, ord(" "), names, names)
            for slot in layout.slots:
                is_odd = ~frame[slot].str.contains(r"^\d+:1$").fill_null(False)
                if is_odd.any():
                    row = int(is_odd.arg_max() or 0)
                    shown = show((frame[slot][row] or "").encode())
                    raise BadLine(row, f"{slot} is {shown}; a feature is INDEX:1")
            labels = frame[layout.label].replace("-1", "0").replace("+1", "1")
            ids = frame.select(pl.col(layout.slots).str.strip_suffix(":1").cast(pl.Int64))
            return decode(ids.with_columns(labels.alias(layout.label)), layout)

        return parse
