"""Words <-> ids. Id 0 is padding; the rest are numbered from 1 as they first appear.

While rows are read, words get codes in the order of the files; the rows that filters keep are then
numbered in the same way. Neither depends on how the files were cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, overload

import numpy as np

from shoal.data.column_store import Place, Stored, append_to, map_array
from shoal.data.dataset import Column
from shoal.data.passes import kept_values
from shoal.data.raw_columns import RawColumn

PAD = "[PAD]"
MOST_IDS = (1 << 31) - 1


class Words:
    """Word i of a vocabulary, UTF-8 in one array of bytes; ends [n] says where each one ends.

    It stands where a data set has an array of str: indexing gives a word, a slice an array.
    """

    def __init__(self, text: np.ndarray, ends: np.ndarray):
        self.text, self.ends = text, ends

    @classmethod
    def from_list(cls, words: Iterable[str]) -> Words:
        """The vocabulary of a list of words, in its order."""
        encoded = [str(word).encode() for word in words]
        ends = np.cumsum([len(word) for word in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice | np.ndarray) -> np.ndarray: ...

    def __getitem__(self, place: int | slice | np.ndarray) -> str | np.ndarray:
        if isinstance(place, slice | np.ndarray):
            numbers = np.arange(len(self))[place]
            words = np.empty(len(numbers), dtype=object)
            words[:] = [self[int(number)] for number in numbers]
            return words
        if not -len(self) <= place < len(self):
            raise IndexError(f"word {place} of {len(self)}")
        place %= len(self)
        start = int(self.ends[place - 1]) if place else 0
        return bytes(self.text[start : int(self.ends[place])]).decode()

    def tolist(self) -> list[str]:
        """All words."""
        return list(self)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.array(list(self), dtype=object)

    def __iter__(self) -> Iterator[str]:
        data, start = self.text.tobytes(), 0
        text = data.decode() if data.isascii() else None  # bytes and characters then coincide
        for stop in self.ends.tolist():
            yield data[start:stop].decode() if text is None else text[start:stop]
            start = stop


def number(index: dict[str, int], column: RawColumn, field: str, grows: bool = True) -> np.ndarray:
    """Numbers of a column's words, int32; `index`, word -> number, learns those that are new.

    Empty cells are 0; so are unknown words where the vocabulary does not grow.
    """
    assert column.words is not None
    index.setdefault(PAD, 0)
    used = first_appearances(column.values[column.values >= 0], len(column.words))
    words = column.words[used].tolist()
    if PAD in words:
        raise ValueError(f"{field!r} holds the token {PAD!r}, which stands for padding; rename it")
    number_of = np.zeros(len(column.words) + 1, dtype=np.int32)  # the last: code -1, empty
    if grows:
        number_of[used] = [index.setdefault(word, len(index)) for word in words]
    else:
        number_of[used] = [index.get(word, 0) for word in words]
    if len(index) > MOST_IDS:
        raise ValueError(f"{field!r} has more than {MOST_IDS} different values; hash them first")
    return number_of[column.values]


def first_appearances(codes: np.ndarray, size: int) -> np.ndarray:
    """The codes (0 to size - 1) that occur, in the order in which they first do."""
    place = np.empty(size, dtype=np.int64)
    # Of repeated indices the last assignment counts: written backwards, that is the first one.
    place[codes[::-1]] = np.arange(len(codes))[::-1]
    return codes[place[codes] == np.arange(len(codes))]


def number_kept(
    column: Column, keep: np.ndarray | None, num_known: int, index: dict[str, int]
) -> tuple[np.ndarray, dict[str, int]]:
    """Number the words of the rows that stay: code -> id, int32, and word -> id.

    The first num_known codes keep their ids; new ones follow in the order of the rows. The id is 0
    where no row that stays has the code.
    """
    size = len(index)
    if keep is None:
        return np.arange(size, dtype=np.int32), index
    numbers = np.zeros(size, dtype=np.int32)
    numbers[:num_known] = np.arange(num_known)
    following = num_known
    for codes, _ in kept_values(column, keep):
        new = first_appearances(codes[(numbers[codes] == 0) & (codes > 0)], size)
        numbers[new] = np.arange(following, following + len(new))
        following += len(new)
    names, code_of = list(index), np.zeros(following, dtype=np.int64)
    code_of[numbers] = np.arange(size)
    code_of[0] = 0
    return numbers, {names[code]: number for number, code in enumerate(code_of.tolist())}


def stored_words(place: Place, entry: dict[str, Any]) -> Words:
    """The vocabulary that a manifest's entry names."""
    return Words(*(map_array(place, Stored.from_entry(entry[part])) for part in ("text", "ends")))


def known_words(place: Place, entry: dict[str, Any] | None) -> dict[str, int]:
    """Word -> id of those that a manifest's entry names."""
    if entry is None:
        return {PAD: 0}
    return {word: number for number, word in enumerate(stored_words(place, entry))}


def append_words(
    place: Place, entry: dict[str, Any] | None, name: str, ids: dict[str, int]
) -> dict[str, Any]:
    """Write the words that are new, of word -> id in order (`entry` None: all); their entry."""
    if entry is None:
        text, ends = Stored(f"words-{name}.bin", "|u1"), Stored(f"ends-{name}.bin", "<i8")
    else:
        text, ends = Stored.from_entry(entry["text"]), Stored.from_entry(entry["ends"])
    new = Words.from_list(islice(ids, len(ends), None))
    for stored, values in ((text, new.text), (ends, len(text) + new.ends)):
        writer = append_to(place, stored)
        writer.write(values)
        writer.close()
    return {"text": text.entry(), "ends": ends.entry()}
