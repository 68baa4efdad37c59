"""Raw Criteo: label, 13 integers and 26 hexadecimal strings, tab-separated, missing ones empty.

A dense value x becomes log(1 + max(x, 0)), a missing one 0. A string becomes a 64-bit id hashed
from the number of its column and its text, so that equal strings of two columns are two ids; a
missing one is the id 0, which no string has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.config.schema import ClicksSection
from shoal.data.clicks.formats import LineFormat
from shoal.data.clicks.lines import Cells, Parser
from shoal.data.clicks.samples import Layout, Samples

NUM_DENSE, NUM_SLOTS = 13, 26
DENSE = tuple(f"I{k + 1}" for k in range(NUM_DENSE))
SLOTS = tuple(f"C{k + 1}" for k in range(NUM_SLOTS))
LABEL = "label"
WIDTH = 1 + NUM_DENSE + NUM_SLOTS
INTEGERS, STRINGS = slice(1, 1 + NUM_DENSE), slice(1 + NUM_DENSE, WIDTH)


def changed(integers: np.ndarray) -> np.ndarray:
    """Dense values of raw integers."""
    return np.log1p(np.maximum(integers, 0)).astype(np.float32)


class Criteo(LineFormat):
    """Its columns are fixed."""

    name = "criteo"
    is_log = True

    def layout(self, section: ClicksSection) -> Layout:
        for key, given, size in [
            ("slots", section.slots, NUM_SLOTS),
            ("dense", section.dense, NUM_DENSE),
        ]:
            if given is not None and given != size:
                raise ValueError(
                    f"data.clicks.{key} is {given}, but raw Criteo has {size} of them; leave it out"
                )
        return Layout(SLOTS, DENSE, LABEL, section.rows)

    def looks_so(self, file: Path, first: bytes) -> bool:
        return first.count(b"\t") == WIDTH - 1 and not self.has_header(first)

    def has_header(self, first: bytes) -> bool:
        """Its first cell is then no number."""
        return first.split(b"\t")[0].strip() not in (b"0", b"1")

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            cells = Cells.split(data, starts, stops, ord("\t"), WIDTH)
            whole, sound = cells.integers(INTEGERS)
            cells.check(sound, INTEGERS, DENSE, "it must be a whole number")
            dense = changed(whole)
            ids = cells.ids(STRINGS, np.arange(NUM_SLOTS), layout, keep_integers=False)
            return Samples(NUM_SLOTS, cells.labels(0, LABEL), dense, ids)

        return parse
