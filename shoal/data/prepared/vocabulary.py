"""Words: a vocabulary on disk, read a word at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import numpy as np


class Words:
    """Word i of a vocabulary, UTF-8 in one file of bytes; ends [n] says where each one ends.

    It stands where a data set has an array of str: indexing gives a word, a slice an array.
    """

    def __init__(self, text: np.ndarray, ends: np.ndarray):
        self.text, self.ends = text, ends

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
        return self[:]

    def __iter__(self) -> Iterator[str]:
        data, start = self.text.tobytes(), 0
        for stop in self.ends.tolist():
            yield data[start:stop].decode()
            start = stop


def pack(words: list[str], start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Words as bytes, one after the other, and where each ends when `start` bytes come before."""
    encoded = [word.encode() for word in words]
    ends = start + np.cumsum([len(word) for word in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends
