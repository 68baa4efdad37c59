"""Blocks of samples that are not read yet, and those of them that are whole lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from shoal.clicks.samples import Samples, join
from shoal.data.bounded_files import LONGEST_LINE

BLOCK_BYTES = 4 << 20  # read at a time

# (bytes, starts, stops) of some lines -> their samples
Parser = Callable[[np.ndarray, np.ndarray, np.ndarray], Samples]


class BadLine(ValueError):
    """Line, or row, `index` of those that were given cannot be read."""

    def __init__(self, index: int, text: str):
        super().__init__(text)
        self.index = index


Rows = slice | np.ndarray  # numbers of samples of a block, ascending


class Block:
    """A block of samples of a file that are not read yet."""

    name: str  # of the file

    def __len__(self) -> int:
        raise NotImplementedError  # every kind of block writes its own

    def parse(self, rows: Rows) -> Samples:
        """The samples of `rows`; the index of a BadLine counts within them."""
        raise NotImplementedError  # every kind of block writes its own

    def where(self, index: int) -> str:
        """The line or row of a sample, in messages."""
        raise NotImplementedError  # every kind of block writes its own

    def num_bytes(self, rows: Rows) -> int:
        """About how many bytes those samples have."""
        raise NotImplementedError  # every kind of block writes its own

    def samples(self, rows: Rows) -> Samples:
        """The samples of `rows`; ValueError names the line that cannot be read."""
        try:
            return self.parse(rows)
        except BadLine as error:
            where = self.where(int(np.arange(len(self))[rows][error.index]))
            remedy = "correct it, or prepare the log with data.bad_rows=skip to leave it out"
            raise ValueError(f"{self.name}, {where}: {error}; {remedy}") from None

    def sound(self) -> tuple[Samples | None, int]:
        """The samples that can be read, None: no one can; and how many cannot."""
        parts, bad = self._sound(0, len(self))
        return (join(parts) if parts else None), bad

    def _sound(self, start: int, stop: int) -> tuple[list[Samples], int]:
        """The samples of a range that can be read, found by halving it; and how many cannot."""
        if start >= stop:
            return [], 0
        try:
            return [self.parse(slice(start, stop))], 0
        except BadLine:
            if stop - start == 1:
                return [], 1
        middle = (start + stop) // 2
        first, before = self._sound(start, middle)
        second, after = self._sound(middle, stop)
        return first + second, before + after


class LineBlock(Block):
    """A block of whole lines of a file; blank ones are left out."""

    def __init__(self, data: bytes, parser: Parser, name: str, first_line: int):
        self.bytes = np.frombuffer(data, np.uint8)
        self.parser = parser
        self.name = name
        self.first_line = first_line
        starts, stops = line_bounds(data)
        self.num_lines = len(stops)
        self.numbers = np.flatnonzero(stops > starts)  # of the lines, from 0
        self.starts, self.stops = starts[self.numbers], stops[self.numbers]

    def __len__(self) -> int:
        return len(self.starts)

    def parse(self, rows: Rows) -> Samples:
        starts, stops = self.starts[rows], self.stops[rows]
        first, last = (int(starts[0]), int(stops[-1])) if len(starts) else (0, 0)
        return self.parser(self.bytes[first:last], starts - first, stops - first)

    def where(self, index: int) -> str:
        return f"line {self.first_line + int(self.numbers[index])}"

    def num_bytes(self, rows: Rows) -> int:
        return int((self.stops[rows] + 1 - self.starts[rows]).sum())


def line_chunks(read: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    """What `read(size)` gives of the file `name`, cut after line ends, until it gives nothing."""
    rest: list[bytes] = []
    held = 0
    while piece := read(BLOCK_BYTES):
        first, cut = piece.find(b"\n"), piece.rfind(b"\n") + 1
        if held + (first if cut else len(piece)) > LONGEST_LINE:
            raise ValueError(f"{name}: a line is longer than {LONGEST_LINE} bytes; is it a log?")
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = [piece[cut:]] if cut < len(piece) else []
            held = len(piece) - cut
        else:
            rest.append(piece)
            held += len(piece)
    if rest:
        yield b"".join(rest)


def count_lines(chunk: bytes) -> int:
    """Lines of some text that are not blank."""
    starts, stops = line_bounds(chunk)
    return int(np.count_nonzero(stops > starts))


def line_bounds(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line starts and stops, int64 [n] each; `\\r` before a line's end is left out."""
    array = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(array == ord("\n"))
    if len(data) and data[-1] != ord("\n"):
        stops = np.append(stops, len(data))
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    if b"\r" in data:
        stops = stops - ((stops > starts) & (array[np.maximum(stops - 1, 0)] == ord("\r")))
    return starts.astype(np.int64), stops.astype(np.int64)


def show(text: bytes) -> str:
    """Bytes of a file as an error shows them: quoted, and not too long."""
    return repr(text[:60].decode("utf-8", "replace")) + ("…" if len(text) > 60 else "")
