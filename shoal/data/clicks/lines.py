"""Blocks of whole lines, and the cells of separated text as numbers and ids, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shoal.data.clicks.samples import Layout, Samples, join
from shoal.data.packed import LONGEST_LINE
from shoal.data.random import hash64

BLOCK_BYTES = 4 << 20  # read at a time
LONGEST_CELL = 1 << 16  # bytes of a token; a number has at most LONGEST_NUMBER
LONGEST_NUMBER = 400
SHORT = 64  # bytes of tokens that are hashed all together
PARSED = 1 << 16  # numbers that are not whole, parsed at a time
NEWLINE, RETURN = 10, 13
SHOWN = 60  # bytes of a line that an error shows
_NUMERIC = np.frombuffer(b"\x000123456789+-.eE", np.uint8)
# The same byte eight times: the digit 0, the upper and lower half of a byte, six; and of pairs.
_ZEROS, _HIGH = np.uint64(0x3030303030303030), np.uint64(0xF0F0F0F0F0F0F0F0)
_LOW, _SIX = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0606060606060606)
_PAIRS = np.uint64(0x000000FF000000FF)

# (bytes, starts, stops) of some lines -> their samples
Parser = Callable[[np.ndarray, np.ndarray, np.ndarray], Samples]


class BadLine(ValueError):
    """Line `index` of those that were given cannot be read."""

    def __init__(self, index: int, text: str):
        super().__init__(text)
        self.index = index


class LongLine(ValueError):
    """A line of which no reader holds so much."""


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

    def sound(self) -> tuple[Samples | None, int]:
        """The samples of lines that can be read, None: of none; and how many cannot."""
        parts, bad = self._sound(0, len(self))
        return (join(parts) if parts else None), bad

    def _sound(self, start: int, stop: int) -> tuple[list[Samples], int]:
        """Found by halving."""
        if start >= stop:
            return [], 0
        try:
            return [self.samples(start, stop)], 0
        except ValueError:
            if stop - start == 1:
                return [], 1
        middle = (start + stop) // 2
        first, before = self._sound(start, middle)
        second, after = self._sound(middle, stop)
        return first + second, before + after

    def num_bytes(self, start: int, stop: int) -> int:
        """How many bytes those lines have."""
        return int(self.stops[stop - 1] - self.starts[start]) + 1 if stop > start else 0


def line_chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """What `read(size)` gives, cut after line ends, until it gives nothing."""
    rest: list[bytes] = []
    held = 0
    while piece := read(BLOCK_BYTES):
        first, cut = piece.find(b"\n"), piece.rfind(b"\n") + 1
        if held + (first if cut else len(piece)) > LONGEST_LINE:
            raise LongLine(
                f"a line is longer than {LONGEST_LINE} bytes; is this the file that you mean?"
            )
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

    def __init__(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        stops: np.ndarray,
        words: np.ndarray | None = None,
    ):
        self.data, self.starts, self.stops = data, starts, stops
        self.words = words_of(data) if words is None else words

    def pick(self, columns: list[int]) -> Cells:
        """Some columns, in the given order."""
        return Cells(self.data, self.starts[:, columns], self.stops[:, columns], self.words)

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

    def integers(self, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """int64 [n, c], and which cells are whole numbers that fit: bool [n, c]."""
        starts, stops = self.starts[:, columns], self.stops[:, columns]
        first = (self.words[starts] & np.uint64(0xFF)).astype(np.uint8)
        negative = (first == ord("-")) & (stops > starts)
        lengths = stops - starts - negative
        sound = (lengths > 0) & (lengths <= 19)
        value = np.zeros(starts.shape, np.uint64)
        for place in range(0, min(int(lengths.max(initial=0)), 19), 8):
            count = np.clip(lengths - place, 0, 8)
            part, fine = self._digits(stops - place - count, count)
            value += part * np.uint64(10**place)
            sound &= fine
        sound &= value <= np.uint64(2**63 - 1)
        signed = np.where(sound, value, 0).astype(np.int64)
        return np.where(negative, -signed, signed), sound

    def _digits(self, starts: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of `count` <= 8 digits from `starts` on, and which are digits throughout.

        Eight digits at once in a 64-bit word: neighbours become pairs, pairs fours, fours eights.
        """
        missing = (np.uint64(8) * (8 - count).astype(np.uint64)) & np.uint64(63)
        word = np.where(count > 0, self.words[starts] << missing, 0)
        filled = word | np.where(count > 0, _ZEROS >> (np.uint64(64) - missing), 0)
        filled = np.where(missing == 0, word, filled)
        fine = (filled & _HIGH) == _ZEROS
        fine &= ((filled + _SIX) & _HIGH) == _ZEROS
        digits = filled & _LOW
        digits = digits * np.uint64(10) + (digits >> np.uint64(8))
        low = (digits & _PAIRS) * np.uint64(100 + (1_000_000 << 32))
        high = ((digits >> np.uint64(16)) & _PAIRS) * np.uint64(1 + (10_000 << 32))
        result = (low + high) >> np.uint64(32)
        return np.where(count > 0, result, 0), fine | (count == 0)

    def floats(self, columns: slice, names: Sequence[str]) -> np.ndarray:
        """float32 [n, c]; 0 where a cell is empty."""
        whole, sound = self.integers(columns)
        values = whole.astype(np.float64)
        starts, stops = self.starts[:, columns], self.stops[:, columns]
        rest = ~sound & (stops > starts)
        if rest.any():
            values[rest] = self._parse(starts[rest], stops[rest])
        with np.errstate(over="ignore"):
            result = values.astype(np.float32)
        self._first_odd(~np.isfinite(result), columns, names, "it must be a finite number")
        return result

    def _parse(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """float64 [n] of cells that are no whole numbers; nan where they are no numbers at all."""
        values = np.full(len(starts), np.nan)
        # By length, and some at a time: a long cell must not make all others wide.
        fits = np.flatnonzero(stops - starts <= LONGEST_NUMBER)
        order = fits[np.argsort((stops - starts)[fits], kind="stable")]
        for first in range(0, len(order), PARSED):
            some = order[first : first + PARSED]
            values[some] = self._parse_some(starts[some], stops[some])
        return values

    def _parse_some(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        width = int((stops - starts).max())
        places = starts[:, None] + np.arange(width)
        grid = np.where(
            places < stops[:, None], self.data[np.minimum(places, len(self.data) - 1)], 0
        )
        plain = np.isin(grid, _NUMERIC).all(axis=1)
        texts = np.ascontiguousarray(grid.astype(np.uint8)).view(f"S{width}").reshape(-1)
        values = np.full(len(starts), np.nan)
        try:
            values[plain] = texts[plain].astype(np.float64)
        except ValueError:  # some of them are not: one after the other
            values[plain] = [_number(text) for text in texts[plain].tolist()]
        return values

    def ids(
        self, columns: slice, slots: np.ndarray, layout: Layout, keep_integers: bool
    ) -> np.ndarray:
        """int64 [n, c]: 0 where a cell is empty, whole numbers as they are, other text hashed."""
        starts = self.starts[:, columns]
        lengths = self.stops[:, columns] - starts
        if len(long := np.argwhere(lengths > LONGEST_CELL)):
            line, column = (int(x) for x in long[0])
            begin = int(starts[line, column])
            shown = show(self.data, begin, begin + int(lengths[line, column]))
            raise BadLine(line, f"a cell has more than {LONGEST_CELL} bytes: {shown}")
        hashed = fold_hash(hash_tokens(self.words, starts, lengths, slots), lengths, layout)
        if not keep_integers:
            return hashed
        whole, sound = self.integers(columns)
        return np.where(sound, layout.fold(whole), hashed)

    def labels(self, column: int, name: str) -> np.ndarray:
        """float32 [n] of zeros and ones."""
        chosen = slice(column, column + 1)
        labels = self.floats(chosen, [name])
        empty = self.stops[:, chosen] == self.starts[:, chosen]
        odd = empty | ((labels != 0) & (labels != 1))
        self._first_odd(odd, chosen, [name], "a label is 0 or 1")
        return labels[:, 0]

    def check(self, sound: np.ndarray, columns: slice, names: Sequence[str], remedy: str) -> None:
        """Raise about the first cell that is neither sound nor empty."""
        empty = self.starts[:, columns] == self.stops[:, columns]
        self._first_odd(~sound & ~empty, columns, names, remedy)

    def _first_odd(
        self, odd: np.ndarray, columns: slice, names: Sequence[str], remedy: str
    ) -> None:
        """Raise about the first cell that is odd, if there is one."""
        if odd.any():
            line, column = (int(x) for x in np.argwhere(odd)[0])
            start = int(self.starts[:, columns][line, column])
            stop = int(self.stops[:, columns][line, column])
            raise BadLine(line, f"{names[column]} is {show(self.data, start, stop)}; {remedy}")


def hash_tokens(
    words: np.ndarray, starts: np.ndarray, lengths: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """uint64 [n, c], a pure function of (slot, bytes of the token); slots [c]."""
    shape = lengths.shape
    state = hash64(slots, lengths).reshape(-1)
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    for place in range(0, min(int(lengths.max(initial=0)), SHORT), 8):
        left = lengths - place
        word = _leading(words[np.where(left > 0, starts + place, 0)], left)
        state = np.where(left > 0, hash64(state, word), state)
    # Longer ones, longest first: a single long token must not cost a pass over all others.
    longer = np.flatnonzero(lengths > SHORT)
    longer = longer[np.argsort(-lengths[longer], kind="stable")]
    for place in range(SHORT, int(lengths.max(initial=0)), 8):
        longer = longer[: np.searchsorted(-lengths[longer], -place)]
        word = _leading(words[starts[longer] + place], lengths[longer] - place)
        state[longer] = hash64(state[longer], word)
    return state.reshape(shape)


def _leading(words: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Words without what follows their first `count` bytes, if those are fewer than eight."""
    bits = np.uint64(8) * np.clip(8 - count, 0, 7).astype(np.uint64)
    return (words << bits) >> bits


def fold_hash(hashed: np.ndarray, lengths: np.ndarray, layout: Layout) -> np.ndarray:
    """Hashes as ids, below `rows` where there is a bound; 0 for empty tokens alone."""
    rows = layout.rows or 2**63 - 1
    ids = (hashed % np.uint64(max(rows - 1, 1))).astype(np.int64) + (rows > 1)
    return np.where(lengths > 0, ids, 0)


def show(data: np.ndarray, start: int, stop: int) -> str:
    """Some bytes for an error: quoted, and not too long."""
    text = data[start : min(stop, start + SHOWN)].tobytes().decode("utf-8", "replace")
    return repr(text) + ("…" if stop - start > SHOWN else "")


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
