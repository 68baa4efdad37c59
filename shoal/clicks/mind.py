"""MIND: behaviors.tsv, whose lines are lists of news that were shown, and news.tsv beside it.

    1 <tab> U13740 <tab> 11/11/2019 9:05:58 AM <tab> N55189 N42782 <tab> N55689-1 N35729-0

Each news of a line is a sample: the user, the news, its category and subcategory, and the news that
the user clicked before. Text is hashed with the number of its slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.clicks.decode import decode, read_lines
from shoal.clicks.formats import ClickFormat, folded_below
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, Block, Rows, line_bounds, line_chunks, show
from shoal.clicks.samples import Samples
from shoal.config.schema import ClicksSection
from shoal.data.bounded_files import open_text, packed_or_not

if TYPE_CHECKING:
    import polars as pl

CELLS = ["impression", "user", "time", "history", "shown"]
SLOTS = ("user", "news", "category", "subcategory", "history")
LABEL = "clicked"
TAB, SPACE = ord("\t"), ord(" ")
NEWS = "news.tsv"
News = Mapping[str, tuple[str, str]]  # news -> category, subcategory


class Mind(ClickFormat):
    """Samples are the news of impressions; columns are fixed."""

    name = "mind"
    is_log = True

    def layout(self, section: ClicksSection) -> Layout:
        for key in ("slots", "dense"):
            if getattr(section, key) is not None:
                raise ValueError(
                    f"data.clicks.{key} is {getattr(section, key)}, and the columns of MIND are "
                    f"fixed ({', '.join(SLOTS)}); leave it out"
                )
        return Layout(SLOTS, (), section.label or LABEL, folded_below(section))

    def looks_so(self, file: Path, first: bytes) -> bool:
        return file.name.startswith("behaviors") and first.count(b"\t") == len(CELLS) - 1

    def count(self, file: Path) -> int:
        with open_text(file) as source:
            chunks = line_chunks(source.read, str(file))
            return sum(len(Impressions(chunk, {}, None, str(file), 1)) for chunk in chunks)

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        news, line = read_news(packed_or_not(file.with_name(NEWS))), 1
        with open_text(file) as source:
            for chunk in line_chunks(source.read, str(file)):
                block = Impressions(chunk, news, layout, str(file), line)
                line += block.num_lines
                yield block


class Impressions(Block):
    """The samples of whole lines of behaviors.tsv. layout: None where they are counted alone."""

    def __init__(self, data: bytes, news: News, layout: Layout | None, name: str, first_line: int):
        self.bytes = np.frombuffer(data, np.uint8)
        self.news, self.layout, self.name, self.first_line = news, layout, name, first_line
        starts, stops = line_bounds(data)
        self.num_lines = len(stops)
        self.lines = np.flatnonzero(stops > starts)
        self.starts, self.stops = starts[self.lines], stops[self.lines]
        tabs, spaces = np.flatnonzero(self.bytes == TAB), np.flatnonzero(self.bytes == SPACE)
        before = np.searchsorted(tabs, self.stops) - 1
        last_cells = self.starts.copy()
        has_tab = before >= 0
        last_cells[has_tab] = np.maximum(self.starts[has_tab], tabs[before[has_tab]])
        counts = np.searchsorted(spaces, self.stops) - np.searchsorted(spaces, last_cells) + 1
        self.ends = np.cumsum(counts)  # of each line's samples

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def parse(self, rows: Rows) -> Samples:
        import polars as pl

        assert self.layout is not None, "blocks that are parsed have a layout"
        samples = np.arange(len(self))[rows]
        if not len(samples):
            return Samples.none(self.layout)
        lines = np.searchsorted(self.ends, samples, side="right")
        distinct, line_of_sample = np.unique(lines, return_inverse=True)
        starts, stops = self.starts[distinct], self.stops[distinct]
        try:
            frame = read_lines(self.bytes, starts, stops, TAB, CELLS, CELLS)
        except BadLine as error:
            raise BadLine(int((line_of_sample == error.index).argmax()), str(error)) from None
        begins = np.concatenate([[0], self.ends])[lines]
        place = pl.Series("place", samples - begins)  # of each sample among the news of its line
        shown = pl.col("shown").str.split(" ").list.get(pl.col("place"), null_on_oob=True)
        table = frame[line_of_sample].with_columns(place).with_columns(shown)
        return decode(self._columns(table, self.layout), self.layout)

    def _columns(self, table: pl.DataFrame, layout: Layout) -> pl.DataFrame:
        """The columns of samples, of lines whose `shown` is the news of the sample."""
        import polars as pl

        parts = table["shown"].str.extract_groups(r"^(?P<news>.+)-(?P<label>[01])$").struct.unnest()
        odd = parts["news"].is_null()
        if odd.any():
            row = int(odd.arg_max() or 0)
            cell = show((table["shown"][row] or "").encode())
            raise BadLine(row, f"{cell} is no news with its label, NEWS-0 or NEWS-1")
        kinds = [self.news.get(one, (None, None)) for one in parts["news"].to_list()]
        return pl.DataFrame(
            {
                layout.label: parts["label"],
                "user": table["user"],
                "news": parts["news"],
                "category": pl.Series([category for category, _ in kinds], dtype=pl.String),
                "subcategory": pl.Series([one for _, one in kinds], dtype=pl.String),
                "history": table["history"].str.split(" "),
            }
        )

    def where(self, index: int) -> str:
        line = int(np.searchsorted(self.ends, index, side="right"))
        return f"line {self.first_line + int(self.lines[line])}"

    def num_bytes(self, rows: Rows) -> int:
        share = len(np.arange(len(self))[rows]) / max(1, len(self))
        return int(share * len(self.bytes))


def read_news(file: Path) -> dict[str, tuple[str, str]]:
    """News -> its category and subcategory, of news.tsv."""
    if not file.is_file():
        raise ValueError(
            f"{file} does not exist; it stands beside behaviors.tsv and has the categories of news"
        )
    news: dict[str, tuple[str, str]] = {}
    line = 0
    with open_text(file) as source:
        for chunk in line_chunks(source.read, str(file)):
            for text in chunk.removesuffix(b"\n").split(b"\n"):
                line += 1
                if not text.strip():
                    continue
                cells = text.split(b"\t", 3)
                if len(cells) < 4:
                    raise ValueError(
                        f"{file}, line {line}: {len(cells)} cells where a news has its id, "
                        f"category, subcategory and title: {show(text)}; is it news.tsv of MIND?"
                    )
                name, category, subcategory = (
                    cell.decode("utf-8", "replace") for cell in cells[:3]
                )
                news[name] = category, subcategory
    return news
