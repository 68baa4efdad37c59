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
from shoal.data.clicks.formats import LineFormat
from shoal.data.clicks.lines import BadLine, Cells, Parser, show
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.packed import plain_name

SHOWN_COLUMNS = 100  # that an error names


def header(first_line: bytes, separator: str, name: str) -> tuple[list[str], int]:
    """The columns' names, and the byte between them: `separator` if it is there, else a comma."""
    text = first_line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").strip("\r\n")
    between = separator if separator in text else ","
    return check_names(text.split(between), name), ord(between)


def check_names(names: list[str], name: str) -> list[str]:
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{name} has {len(names)} columns; at most {MOST_COLUMNS} are read")
    twice = [one for one, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{name}: two columns are named {twice[0]!r}")
    return names


def check_columns(layout: Layout, names: list[str], file: str) -> None:
    """Every column of the layout must be there."""
    for key, wanted in [
        ("label", [layout.label]),
        ("slots", list(layout.slots)),
        ("dense", list(layout.dense)),
    ]:
        known = set(names)
        for one in wanted:
            if one not in known:
                raise ValueError(
                    f"{file} has no column {one!r} (data.clicks.{key}); its columns are "
                    f"{', '.join(names[:SHOWN_COLUMNS])}{did_you_mean(one, names)}"
                )


class Csv(LineFormat):
    """Columns by the names of its first line."""

    name = "csv"

    def looks_so(self, file: Path, first: bytes) -> bool:
        return plain_name(file).suffix == ".csv"

    def has_header(self, first: bytes) -> bool:
        return True

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        names, between = header(first, separator, name)
        check_columns(layout, names, name)
        place = {one: number for number, one in enumerate(names)}
        dense_places = [place[one] for one in layout.dense]
        slot_places = [place[one] for one in layout.slots]

        def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
            if len(starts) and (data[starts[0] : stops[-1]] == ord('"')).any():
                quotes = np.flatnonzero(data[starts[0] : stops[-1]] == ord('"')) + starts[0]
                index = int(np.searchsorted(stops, quotes[0], side="right"))
                shown = show(data, int(starts[index]), int(stops[index]))
                raise BadLine(index, f"quoted cells are not read: {shown}; write Parquet instead")
            cells = Cells.split(data, starts, stops, between, len(names))
            dense = cells.pick(dense_places).floats(slice(None), layout.dense)
            every = np.arange(len(layout.slots))
            ids = cells.pick(slot_places).ids(slice(None), every, layout, keep_integers=True)
            labels = cells.labels(place[layout.label], layout.label)
            return Samples(len(layout.slots), labels, dense, ids)

        return parse
