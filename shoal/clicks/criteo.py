"""Raw Criteo: label, 13 integers and 26 hexadecimal strings, tab-separated, missing ones empty.

A dense value x becomes log(1 + max(x, 0)), a missing one 0. A string becomes a 64-bit id hashed
from the number of its column and its text, so that equal strings of two columns are two ids; a
missing one is the id 0, which no string has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.clicks.decode import decode, read_lines
from shoal.clicks.formats import LineFormat, folded_below
from shoal.clicks.layout import Layout
from shoal.clicks.lines import Parser
from shoal.clicks.samples import Samples
from shoal.config.schema import ClicksSection

DENSE = tuple(f"I{k + 1}" for k in range(13))
SLOTS = tuple(f"C{k + 1}" for k in range(26))
COLUMNS = ["label", *DENSE, *SLOTS]


class Criteo(LineFormat):
    """Raw Criteo, whose columns are fixed."""

    name = "criteo"
    is_log = True

    def layout(self, section: ClicksSection) -> Layout:
        for key, names in (("slots", SLOTS), ("dense", DENSE)):
            if getattr(section, key) not in (None, len(names)):
                raise ValueError(
                    f"data.clicks.{key} is {getattr(section, key)}, but raw Criteo has "
                    f"{len(names)} of them; leave it out"
                )
        return Layout(SLOTS, DENSE, "label", folded_below(section))

    def looks_so(self, file: Path, first: bytes) -> bool:
        return first.count(b"\t") == len(COLUMNS) - 1 and not self.has_header(first)

    def has_header(self, first: bytes) -> bool:
        """Whether the first line names columns: its first cell is no label."""
        return first.split(b"\t")[0].strip() not in (b"0", b"1")

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            frame = read_lines(data, starts, stops, ord("\t"), COLUMNS, COLUMNS)
            return decode(frame, layout, raw=True)

        return parse
