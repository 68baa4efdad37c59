"""Blocks of whole lines, and the cells of separated text as numbers and ids, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from shoal.data.clicks.samples import Layout, Samples
from shoal.data.random import hash64

BLOCK_BYTES = 4 << 20  # read at a time
NEWLINE, RETURN, DIGIT = 10, 13, 48
SHOWN = 60  # bytes of a line that an error shows

# (bytes, starts, stops) of some lines -> their samples
Parser = Callable[[np.ndarray, np.ndarray, np.ndarray], Samples]


class BadLine(ValueError):
    """Line `index` of those that were given cannot be read."""

    def __init__(self, index: int, text: str):
        super().__init__(text)
        self.index = index


class LineBlock:
    """Some whole lines of a file: blank ones are left out."""

    def __init__(self, data: bytes, parser: Parser, name: str, first_line: int):
        self.bytes = np.frombuffer(data, np.uint8)
        self.parser, self.name, self.first_line = parser, name, first_line
        starts, stops = line_bounds(data)
        self.num_lines = len(stops)
        kept = stops > starts
        self.numbers: np.ndarray | None = None  # of the lines, from 0; None: no line was left out
        if not kept.all():
            self.numbers = np.flatnonzero(kept)
            starts, stops = starts[kept], stops[kept]
        self.starts, self.stops = starts, stops

    def __len__(self) -> int:
        return len(self.starts)

    def samples(self, start: int, stop: int) -> Samples:
        """The samples of lines start to stop - 1 (blank ones not counted)."""
        try:
            return self.parser(self.bytes, self.starts[start:stop], self.stops[start:stop])
        except BadLine as error:
            index = start + error.index
            number = index if self.numbers is None else int(self.numbers[index])
            raise ValueError(f"{self.name}, line {self.first_line + number}: {error}") from None

    def num_bytes(self, start: int, stop: int) -> int:
        """How many bytes those lines have."""
        return int(self.stops[stop - 1] - self.starts[start]) + 1 if stop > start else 0


def line_chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """What `read(size)` gives, cut after line ends, until it gives nothing."""
    rest: list[bytes] = []
    while piece := read(BLOCK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = [piece[cut:]] if cut < len(piece) else []
        else:
            rest.append(piece)
    if rest:
        yield b"".join(rest)


def count_lines(file: BinaryIO) -> int:
    """Lines of a file that are not blank."""
    count = 0
    for chunk in line_chunks(file.read):
        starts, stops = line_bounds(chunk)
        count += int(np.count_nonzero(stops > starts))
    return count


def line_bounds(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line starts and stops, int64 [n] each; `\\r` before a line's end is left out."""
    array = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(array == NEWLINE)
    if len(data) and data[-1] != NEWLINE:
        stops = np.append(stops, len(data))
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    if b"\r" in data:
        stops = stops - ((stops > starts) & (array[np.maximum(stops - 1, 0)] == RETURN))
    return starts.astype(np.int64), stops.astype(np.int64)


def words_of(data: np.ndarray) -> np.ndarray:
    """The eight bytes from every position on, as little-endian uint64."""
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    return np.ndarray((len(data) + 1,), "<u8", padded.tobytes(), strides=(1,))


class Cells:
    """Cells of text: cell (i, j) is data[starts[i, j]:stops[i, j]]."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray):
        self.data, self.starts, self.stops = data, starts, stops
        self.words = words_of(data)

    @classmethod
    def split(
        cls, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, separator: int, width: int
    ) -> Cells:
        """The cells of lines, each of which must have `width` of them."""
        first, last = (int(starts[0]), int(stops[-1])) if len(starts) else (0, 0)
        data, starts, stops = data[first:last], starts - first, stops - first
        cuts = np.flatnonzero(data == separator)
        counts = np.searchsorted(cuts, stops) - np.searchsorted(cuts, starts)
        if len(odd := np.flatnonzero(counts != width - 1)):
            index = int(odd[0])
            shown = show(data, int(starts[index]), int(stops[index]))
            raise BadLine(index, f"has {counts[index] + 1} cells, not {width}: {shown}")
        inner = cuts.reshape(len(starts), width - 1)
        return cls(
            data,
            np.concatenate([starts[:, None], inner + 1], axis=1),
            np.concatenate([inner, stops[:, None]], axis=1),
        )

    @classmethod
    def of(cls, tokens: list[bytes]) -> Cells:
        """One column of tokens."""
        stops = np.cumsum([len(token) for token in tokens], dtype=np.int64)
        starts = np.concatenate([[0], stops[:-1]]) if tokens else stops
        data = np.frombuffer(b"".join(tokens), np.uint8)
        return cls(data, starts[:, None], stops[:, None])

    def text(self, line: int, column: int) -> str:
        return show(self.data, int(self.starts[line, column]), int(self.stops[line, column]))

    def integers(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 [n], and which cells are whole numbers that fit: bool [n]."""
        starts, lengths = self._at(column)
        padded = np.append(self.data, np.uint8(0))
        negative = (padded[starts] == ord("-")) & (lengths > 0)
        starts, lengths = starts + negative, lengths - negative
        sound = (lengths > 0) & (lengths <= 19)
        value = np.zeros(len(starts), np.uint64)
        for place in range(int(lengths[sound].max(initial=0))):
            inside = sound & (place < lengths)
            digit = padded[np.where(inside, starts + place, 0)] - np.uint8(DIGIT)  # wraps around
            sound &= ~inside | (digit < 10)
            value = np.where(inside, value * np.uint64(10) + digit, value)
        sound &= value <= np.uint64(2**63 - 1)
        signed = np.where(sound, value, 0).astype(np.int64)
        return np.where(negative, -signed, signed), sound

    def floats(self, column: int, name: str) -> np.ndarray:
        """float32 [n]; 0 where a cell is empty."""
        whole, sound = self.integers(column)
        values = whole.astype(np.float64)
        starts, lengths = self._at(column)
        rest = np.flatnonzero(~sound & (lengths > 0))
        if len(rest):
            width = int(lengths[rest].max())
            places = np.arange(width)
            inside = places < lengths[rest, None]
            grid = np.where(inside, self.data[np.where(inside, starts[rest, None] + places, 0)], 0)
            plain = np.isin(grid, np.frombuffer(b"\x000123456789+-.eE", np.uint8)).all(axis=1)
            texts = np.ascontiguousarray(grid.astype(np.uint8)).view(f"S{width}").reshape(-1)
            try:
                with np.errstate(over="ignore"):
                    values[rest[plain]] = texts[plain].astype(np.float64)
            except ValueError:  # find the first that is at fault
                plain &= np.array([_is_number(text) for text in texts])
            values[rest[~plain]] = np.nan
        with np.errstate(over="ignore"):
            result = values.astype(np.float32)
        if len(odd := np.flatnonzero(~np.isfinite(result))):
            index = int(odd[0])
            raise BadLine(
                index, f"{name} is {self.text(index, column)}; it must be a finite number"
            )
        return result

    def ids(self, column: int, slot: int, layout: Layout, keep_integers: bool) -> np.ndarray:
        """int64 [n]: 0 where a cell is empty, whole numbers as they are, other text hashed."""
        starts, lengths = self._at(column)
        hashed = hash_tokens(self.words, starts, lengths, slot)
        if keep_integers:
            whole, sound = self.integers(column)
            return layout.fold(np.where(sound, whole, fold_hash(hashed, lengths, layout)))
        return fold_hash(hashed, lengths, layout)

    def labels(self, column: int, name: str) -> np.ndarray:
        """float32 [n] of zeros and ones."""
        labels = self.floats(column, name)
        empty = self.stops[:, column] == self.starts[:, column]
        if len(odd := np.flatnonzero(empty | ((labels != 0) & (labels != 1)))):
            index = int(odd[0])
            raise BadLine(index, f"{name} is {self.text(index, column)}; a label is 0 or 1")
        return labels

    def _at(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        starts = self.starts[:, column]
        return starts, self.stops[:, column] - starts


def hash_tokens(
    words: np.ndarray, starts: np.ndarray, lengths: np.ndarray, slot: int
) -> np.ndarray:
    """uint64 [n], a pure function of (slot, bytes of the token)."""
    state = hash64(slot, lengths)
    for place in range(0, int(lengths.max(initial=0)), 8):
        left = lengths - place
        word = words[np.where(left > 0, starts + place, 0)]
        bits = np.uint64(8) * np.clip(8 - left, 0, 7).astype(np.uint64)
        word = (word << bits) >> bits  # what follows the token is no part of it
        state = np.where(left > 0, hash64(state, word), state)
    return state


def fold_hash(hashed: np.ndarray, lengths: np.ndarray, layout: Layout) -> np.ndarray:
    """Hashes as ids, below `rows` where there is a bound; 0 for empty tokens alone."""
    rows = layout.rows or 2**63 - 1
    ids = (hashed % np.uint64(max(rows - 1, 1))).astype(np.int64) + (rows > 1)
    return np.where(lengths > 0, ids, 0)


def show(data: np.ndarray, start: int, stop: int) -> str:
    """Some bytes for an error: quoted, and not too long."""
    text = data[start : min(stop, start + SHOWN)].tobytes().decode("utf-8", "replace")
    return repr(text) + ("…" if stop - start > SHOWN else "")


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
