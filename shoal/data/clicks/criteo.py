"""Raw Criteo: label, 13 integers and 26 hexadecimal strings, tab-separated, missing ones empty.

A dense value x becomes log(1 + max(x, 0)), a missing one 0. A string becomes a 64-bit id hashed
from the number of its column and its text, so that equal strings of two columns are two ids; a
missing one is the id 0, which no string has.
"""

from __future__ import annotations

import numpy as np

from shoal.data.clicks.lines import BadLine, Cells, Parser
from shoal.data.clicks.samples import Layout, Samples

NUM_DENSE, NUM_SLOTS = 13, 26
DENSE = tuple(f"I{k + 1}" for k in range(NUM_DENSE))
SLOTS = tuple(f"C{k + 1}" for k in range(NUM_SLOTS))
LABEL = "label"
WIDTH = 1 + NUM_DENSE + NUM_SLOTS


def has_header(first_line: bytes) -> bool:
    """Whether the file begins with names: its first cell is then no number."""
    return first_line.split(b"\t")[0].strip() not in (b"0", b"1")


def parser(layout: Layout) -> Parser:
    """What turns lines into samples."""

    def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
        cells = Cells.split(data, starts, stops, ord("\t"), WIDTH)
        dense = np.empty((len(starts), NUM_DENSE), np.float32)
        for k in range(NUM_DENSE):
            whole, sound = cells.integers(1 + k)
            empty = cells.starts[:, 1 + k] == cells.stops[:, 1 + k]
            if len(odd := np.flatnonzero(~sound & ~empty)):
                index = int(odd[0])
                raise BadLine(
                    index, f"{DENSE[k]} is {cells.text(index, 1 + k)}; it must be a whole number"
                )
            dense[:, k] = np.log1p(np.maximum(whole, 0))
        ids = np.empty((len(starts), NUM_SLOTS), np.int64)
        for k in range(NUM_SLOTS):
            ids[:, k] = cells.ids(1 + NUM_DENSE + k, k, layout, keep_integers=False)
        return Samples(NUM_SLOTS, cells.labels(0, LABEL), dense, ids)

    return parse
