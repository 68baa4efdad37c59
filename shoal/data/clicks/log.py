"""ClickLog: the files of one phase of a click log, as blocks of samples in order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoal.config.schema import ClicksSection, DataSection
from shoal.data.clicks import criteo, delimited, parquet, pipe, slots
from shoal.data.clicks.lines import (
    BLOCK_BYTES,
    LineBlock,
    LongLine,
    Parser,
    count_lines,
    line_chunks,
)
from shoal.data.clicks.samples import Layout, Samples
from shoal.data.packed import LONGEST_LINE, open_text, plain_name
from shoal.data.sources.files import find_files

FORMATS = ("slots", "criteo", "csv", "parquet", "planted_clicks")
HEAD_BYTES = 1 << 16  # of a file, that tell it from another


class Block(Protocol):
    """Some samples of a file that are not read yet."""

    @property
    def name(self) -> str:
        """Of the file."""

    def __len__(self) -> int: ...

    def samples(self, start: int, stop: int) -> Samples:
        """Samples start to stop - 1."""

    def sound(self) -> tuple[Samples | None, int]:
        """The samples that can be read, None: no one can; and how many cannot."""

    def num_bytes(self, start: int, stop: int) -> int:
        """How many bytes those are."""


class ClickLog:
    """Files of one format. `command`: a program that each file goes through."""

    def __init__(
        self,
        files: list[Path],
        form: str,
        layout: Layout,
        command: str | None = None,
        separator: str = "\t",
    ):
        self.files, self.form, self.layout, self.separator = files, form, layout, separator
        self.command = command

    def part(self, worker: int, workers: int) -> ClickLog:
        """The block of files that one worker reads; the remainder goes to the first ones."""
        each, more = divmod(len(self.files), workers)
        first = worker * each + min(worker, more)
        files = self.files[first : first + each + (worker < more)]
        return ClickLog(files, self.form, self.layout, self.command, self.separator)

    def count(self, file: Path) -> int | None:
        """Samples of one file; None where a program decides."""
        if self.command is not None:
            return None
        if self.form == "parquet":
            return parquet.count(file)
        with open_text(file) as source:
            first = _first_line(source)
            header = self._has_header(first)
            source.seek(0)
            return sum(map(count_lines, _named(line_chunks(source.read), str(file)))) - header

    def blocks(self, file: Path) -> Iterator[Block]:
        """The samples of one file, in order."""
        if self.command is not None:
            yield from self._text(pipe.piped(self.command, file), f"{file}, piped")
        elif self.form == "parquet":
            yield from parquet.blocks(file, self.layout)
        else:
            with open_text(file) as source:
                yield from self._text(line_chunks(source.read), str(file))

    def _text(self, chunks: Iterator[bytes], name: str) -> Iterator[LineBlock]:
        parser: Parser | None = None
        line = 1
        try:
            for chunk in _named(chunks, name):
                if parser is None:
                    first = chunk[: chunk.find(b"\n") + 1 or len(chunk)]
                    if not first.strip(b"\r\n"):  # blank lines before anything else
                        rest = chunk.lstrip(b"\r\n")
                        line += chunk.count(b"\n") - rest.count(b"\n")
                        if not rest:
                            continue
                        chunk, first = rest, rest[: rest.find(b"\n") + 1 or len(rest)]
                    parser = self._parser(first, name)
                    if self._has_header(first):
                        chunk, line = chunk[len(first) :], line + 1
                block = LineBlock(chunk, parser, name, line)
                line += block.num_lines
                yield block
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def _has_header(self, first: bytes) -> bool:
        if self.command is not None or self.form == "slots" or not first.strip(b"\r\n"):
            return False
        return self.form == "csv" or criteo.has_header(first)

    def _parser(self, first: bytes, name: str) -> Parser:
        if self.command is not None or self.form == "slots":
            return slots.parser(self.layout)
        if self.form == "criteo":
            return criteo.parser(self.layout)
        names, between = delimited.header(first, self.separator, name)
        return delimited.parser(self.layout, names, between, name)

    def fingerprint(self) -> list[list[Any]]:
        """Name, size and a digest of the beginning of every file."""
        result: list[list[Any]] = []
        for file in self.files:
            with open(file, "rb") as source:
                digest = hashlib.sha256(source.read(HEAD_BYTES)).hexdigest()
            result.append([file.name, file.stat().st_size, digest])
        return result


def _named(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The chunks; what is wrong with them is told with the file's name."""
    try:
        yield from chunks
    except LongLine as error:
        raise ValueError(f"{name}: {error}") from None


def _first_line(source: BinaryIO) -> bytes:
    """The first line that is not blank; of a longer one than is read, its beginning."""
    found = b""
    while b"\n" not in found and len(found) < LONGEST_LINE and (piece := source.read(BLOCK_BYTES)):
        found = (found + piece).lstrip(b"\r\n")  # a file may begin with any number of blank lines
    return found[: found.find(b"\n") + 1 or len(found)]


def pick_format(data: DataSection) -> str:
    """data.format; where it is auto, what the first file looks like."""
    if data.format in FORMATS:
        return data.format
    if data.format != "auto":
        raise ValueError(
            f"data.format is {data.format}, which has no clicks; click models read "
            f"{', '.join(FORMATS)}"
        )
    assert data.clicks.train is not None, "named_data sees to it"
    if data.clicks.pipe_command is not None or data.clicks.reader == "custom":
        return "slots"
    return looks_like(find_files(data.clicks.train, data.path, "data.clicks.train")[0])


def looks_like(file: Path) -> str:
    """The format of a file, by its name and its first line."""
    if file.suffix == ".parquet":
        return "parquet"
    with open_text(file) as source:
        first = _first_line(source)
    if first.count(b"\t") == criteo.WIDTH - 1 and not criteo.has_header(first):
        return "criteo"
    if b":" in first.split(b" ")[0]:
        return "slots"
    if plain_name(file).suffix == ".csv":
        return "csv"
    raise ValueError(
        f"{file} does not say which format it has; set data.format to slots, criteo, csv or parquet"
    )


def make_layout(section: ClicksSection, form: str) -> Layout:
    """Which columns there are, by the config and the format."""
    piped = section.pipe_command is not None or section.reader == "custom"
    if form == "criteo" and not piped:
        for key, given in [("slots", section.slots), ("dense", section.dense)]:
            size = {"slots": criteo.NUM_SLOTS, "dense": criteo.NUM_DENSE}[key]
            if given is not None and given != size:
                raise ValueError(
                    f"data.clicks.{key} is {given}, but raw Criteo has {size} of them; leave it out"
                )
        return Layout(criteo.SLOTS, criteo.DENSE, criteo.LABEL, section.rows)
    if form == "slots" or piped:
        count = slots.NUM_SLOTS if section.slots is None else section.slots
        names = [str(k + 1) for k in range(count)] if isinstance(count, int) else count
        width = slots.NUM_DENSE if section.dense is None else section.dense
        dense = [slots.DENSE] * width if isinstance(width, int) else width
        others = isinstance(section.slots, list)
        label = section.label or slots.LABEL
    else:
        if section.slots is None:
            raise ValueError(
                f"data.clicks.slots must name the columns with ids of {form} files; a number n "
                "stands for C1 to Cn"
            )
        names = _numbered("C", section.slots)
        dense = _numbered("I", section.dense or 0)
        others, label = True, section.label or "label"
    every = [*names, *dict.fromkeys(dense), label]
    twice = [name for name, count in Counter(every).items() if count > 1]
    if twice:
        raise ValueError(f"data.clicks: {twice[0]!r} is named twice among slots, dense and label")
    if not names and not dense:
        raise ValueError("data.clicks has neither slots nor dense values; name at least one")
    return Layout(tuple(names), tuple(dense), label, section.rows, others)


def _numbered(prefix: str, names: list[str] | int) -> list[str]:
    return [f"{prefix}{k + 1}" for k in range(names)] if isinstance(names, int) else names
