"""Tables of text: lines, decoded, and cut at line ends into parts of bounded size.

What a line holds is for the formats: cells (csv.py) or an object (jsonl.py). Packed text is
unpacked on the way.

Polars reads the parts. Its own scan of a whole file is not used: it fills lines that are too short
with nulls, and its batches do not say on which line they begin, which errors name.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.bounded_files import LONGEST_LINE, check_line, is_packed, open_text
from shoal.data.column_store import EVERYTHING
from shoal.data.sources.tables import Part, TableFormat, TableHeader
from shoal.data.sources.typed import SAMPLE_BYTES, SAMPLE_PLACES, FilePiece
from shoal.files.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

TEXT_BYTES = 1 << 26  # of text at a time, at most, where memory is bounded
WHOLE = -1  # where a part that is the whole file stops
BOM = b"\xef\xbb\xbf"
BOMS_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Lines(NamedTuple):
    """What is known of lines: their file, the number of the first, and whether to skip bad ones.

    whole: they are the whole file, so that a cell may go over the end of a line.
    """

    name: str
    first: int
    skip: bool = False
    whole: bool = True


class TextFormat(TableFormat):
    """Rows are lines of cells; the first line may name them."""

    first_row = 2
    has_header = True

    def sample(self, path: Path, header: TableHeader, config: DataSection) -> pl.DataFrame:
        start, body = sampled_text(path, config.encoding, self.has_header)
        part = Part(path, start, start + len(body), len(body), body)
        lenient = config.model_copy(update={"bad_rows": "skip"})
        return self.read(part, header, lenient, self.first_row, header.names).frame

    def parts(self, path: Path, header: TableHeader, memory: int) -> Iterator[Part]:
        if memory >= EVERYTHING:  # with its header, in any encoding
            yield Part(path, 0, WHOLE, path.stat().st_size)
            return
        size = max(1 << 16, min(TEXT_BYTES, memory // 32))
        with open_text(path) as source:
            start = len(_line(source, path)) if self.has_header else 0
            if is_packed(path):  # where a part of it begins is known to who reads it all
                while body := source.read(size):
                    body += _line(source, path)
                    yield Part(path, start, start + len(body), len(body), body)
                    start += len(body)
                return
            end = path.stat().st_size
            while start < end:
                source.seek(min(start + size, end))
                _line(source, path)
                stop = source.tell()
                yield Part(path, start, stop, stop - start)
                start = stop

    def read(
        self, part: Part, header: TableHeader, config: DataSection, first: int, columns: list[str]
    ) -> FilePiece:
        body, name = part.body, header.where or str(part.path)
        if body is None:
            body = _bytes_of(part)
        headed = part.stop == WHOLE and self.has_header
        body = decoded(body.removeprefix(BOM), config.encoding, name, first - headed)
        if b"\r\n" in body:
            body = body.replace(b"\r\n", b"\n")
        if headed:
            body = body.partition(b"\n")[2]
        num_lines = body.count(b"\n")
        body = body.rstrip(b"\n")
        lines = Lines(name, first, config.bad_rows == "skip", part.stop == WHOLE)
        frame, numbers, skipped = self.rows(body, header, columns, lines)
        return FilePiece(name, frame, numbers, first, "line", skipped, num_lines)

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        """The rows of lines, the line of each (None: they follow each other), and bad ones."""
        raise NotImplementedError  # every format writes its own


def sampled_text(path: Path, encoding: str, has_header: bool) -> tuple[int, bytes]:
    """Where rows begin in a file, and whole lines from several places of it."""
    with open_text(path) as source:
        if not is_by_line(encoding):  # it is read whole in any case
            return 0, source.read()
        start = len(source.readline(LONGEST_LINE)) if has_header else 0
        size = path.stat().st_size - start
        if is_packed(path) or size <= SAMPLE_BYTES:
            body = source.read(SAMPLE_BYTES)
            return start, body[: body.rfind(b"\n") + 1] or body  # the last may not be whole
        bodies = []
        for place in range(SAMPLE_PLACES):
            source.seek(start + place * size // SAMPLE_PLACES)
            if place:
                source.readline(LONGEST_LINE)  # the rest of a line
            body = source.read(SAMPLE_BYTES // SAMPLE_PLACES)
            if b"\n" not in body:  # a line that is longer
                body += source.readline(LONGEST_LINE)
            bodies.append(body[: body.rfind(b"\n") + 1])
        return start, b"".join(bodies)


def _bytes_of(part: Part) -> bytes:
    try:
        if part.stop == WHOLE:
            with open_text(part.path) as source:
                return source.read()
        with open_regular(part.path) as source:
            source.seek(part.start)
            return source.read(part.stop - part.start)
    except OSError as error:
        raise ValueError(f"cannot read {part.path}: {error.strerror or error}") from error


def _line(source: BinaryIO, path: Path) -> bytes:
    """The rest of a line; one without an end would fill memory."""
    line = source.readline(LONGEST_LINE + 1)
    check_line(path, len(line))
    return line


def first_line(path: Path, encoding: str = "utf-8") -> str:
    """The first line of a text, which names columns."""
    try:
        with open_text(path) as source:
            line = source.readline(1 << 20) if is_by_line(encoding) else source.read()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    if line.startswith(BOMS_16) and not encoding.lower().startswith(("utf-16", "utf16", "utf-32")):
        raise ValueError(
            f"{path} begins as UTF-16 does, and is read as {encoding}; set data.encoding=utf-16"
        )
    head = (
        decoded(line.removeprefix(BOM), encoding, str(path))
        .decode()
        .partition("\n")[0]
        .rstrip("\r")
    )
    if not head.strip():
        raise ValueError(f"{path} is empty; its first line must name the columns")
    return head


def is_utf8(encoding: str) -> bool:
    """Whether text of an encoding is UTF-8 as it is."""
    return encoding.replace("-", "").lower() in ("utf8", "ascii")


def is_by_line(encoding: str) -> bool:
    """Whether lines of an encoding can be found, and decoded each by itself."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise ValueError(f"data.encoding: there is no encoding {encoding!r}") from None
    return "\n".encode(encoding) == b"\n" and not name.startswith(("utf-7", "iso2022", "hz"))


def decoded(data: bytes, encoding: str, name: str, first: int = 1) -> bytes:
    """UTF-8, whatever it was; first: the number of its first line in the file."""
    if is_utf8(encoding) and data.isascii():
        return data
    try:
        text = data.decode(encoding)
    except LookupError:
        raise ValueError(f"data.encoding: there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first
        raise ValueError(
            f"{name}, line {line}: byte {data[error.start]:#04x} is not {encoding}; set "
            "data.encoding to what the file has, such as latin-1 or cp1252"
        ) from None
    if is_utf8(encoding):
        return data
    return text.removeprefix("\ufeff").encode()
