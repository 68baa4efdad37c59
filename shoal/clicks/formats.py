"""What a format of click logs is: samples of a file, in blocks.

A format is one class, registered under its name: `register(MyFormat())` makes data.format=NAME
known, here or in a package of your own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shoal.clicks.layout import Layout
from shoal.clicks.lines import BLOCK_BYTES, Block, LineBlock, Parser, count_lines, line_chunks
from shoal.clicks.samples import HeldSamples
from shoal.config.schema import ClicksSection, add_format
from shoal.data.bounded_files import LONGEST_LINE, open_text

if TYPE_CHECKING:
    import polars as pl


class ClickFormat:
    """A format of click logs."""

    name = ""  # data.format
    is_log = False  # files of this format hold click logs alone

    def layout(self, section: ClicksSection) -> Layout:
        """Which columns there are; here data.clicks.slots names those with ids."""
        if section.slots is None:
            raise ValueError(
                f"data.clicks.slots must name the columns with ids of {self.name} files; a number "
                "n stands for C1 to Cn"
            )
        slots, dense = numbered("C", section.slots), numbered("I", section.dense or 0)
        rows = folded_below(section)
        return checked(Layout(slots, dense, section.label or "label", rows, True))

    def looks_so(self, file: Path, first: bytes) -> bool:
        """Whether a file has this format, by its name and its first line."""
        return False

    def count(self, file: Path) -> int:
        """Samples of a file."""
        raise NotImplementedError  # every format writes its own

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        """The samples of a file, in order."""
        raise NotImplementedError  # every format writes its own

    def sample(self, file: Path, layout: Layout, separator: str) -> pl.DataFrame | None:
        """A sample of rows whose text shows how columns are read; None: their types say it."""
        return None

    def mapped(self, files: Sequence[Path], layout: Layout) -> HeldSamples | None:
        """All samples, left where they lie; None: they must be parsed first."""
        return None


class LineFormat(ClickFormat):
    """A format whose samples are lines."""

    def has_header(self, first: bytes) -> bool:
        """Whether the first line is no sample."""
        return False

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        """What turns lines into samples; first: the first line of the file."""
        raise NotImplementedError  # every format writes its own

    def count(self, file: Path) -> int:
        with open_text(file) as source:
            first = first_line(source)
            header = bool(first.strip(b"\r\n")) and self.has_header(first)
            source.seek(0)
            return sum(map(count_lines, line_chunks(source.read, str(file)))) - header

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        with open_text(file) as source:
            chunks = line_chunks(source.read, str(file))
            yield from self.text(chunks, layout, separator, str(file))

    def text(
        self, chunks: Iterator[bytes], layout: Layout, separator: str, name: str
    ) -> Iterator[LineBlock]:
        """The samples of chunks of whole lines."""
        parser: Parser | None = None
        line = 1
        for chunk in chunks:
            if parser is None:
                rest = chunk.lstrip(b"\r\n")  # blank lines before anything else
                line += chunk.count(b"\n") - rest.count(b"\n")
                if not rest:
                    continue
                chunk, first = rest, rest[: rest.find(b"\n") + 1 or len(rest)]
                parser = self.parser(layout, first, separator, name)
                if self.has_header(first):
                    chunk, line = chunk[len(first) :], line + 1
            block = LineBlock(chunk, parser, name, line)
            line += block.num_lines
            yield block


FORMATS: dict[str, ClickFormat] = {}


def register(form: ClickFormat) -> None:
    """Make a format known by data.format; those that come first are tried first."""
    FORMATS[form.name] = form
    add_format(form.name, click_log=form.is_log)


def looks_like(file: Path) -> str:
    """The format of a file, by its name and its first line."""
    first = b""
    if file.suffix not in (".parquet", ".npz", ".npy"):
        with open_text(file) as source:
            first = first_line(source)
    for form in FORMATS.values():
        if form.looks_so(file, first):
            return form.name
    *names, last = FORMATS
    raise ValueError(
        f"{file} does not say which format it has; set data.format to {', '.join(names)} or {last}"
    )


def numbered(prefix: str, names: list[str] | int) -> tuple[str, ...]:
    """Names; a number n stands for PREFIX1 to PREFIXn."""
    if isinstance(names, int):
        return tuple(f"{prefix}{k + 1}" for k in range(names))
    return tuple(names)


def folded_below(section: ClicksSection) -> int | None:
    """data.clicks.rows, of formats whose slots share one numbering."""
    if isinstance(section.rows, list):
        raise ValueError(
            "data.clicks.rows: a number for each slot is for data.format=multi_hot; give one number"
        )
    return section.rows


def checked(layout: Layout) -> Layout:
    """The layout; ValueError where it has no columns, or two of one name."""
    names = [*layout.slots, *dict.fromkeys(layout.dense), layout.label]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"data.clicks: {twice[0]!r} is named twice among slots, dense and label")
    if not layout.slots and not layout.dense:
        raise ValueError("data.clicks has neither slots nor dense values; name at least one")
    return layout


def first_line(source: BinaryIO) -> bytes:
    """The first line that is not blank; of a longer one than is read, its beginning."""
    head = b""
    while b"\n" not in head and len(head) < LONGEST_LINE and (piece := source.read(BLOCK_BYTES)):
        head = (head + piece).lstrip(b"\r\n")  # a file may begin with any number of blank lines
    return head[: head.find(b"\n") + 1 or len(head)]
