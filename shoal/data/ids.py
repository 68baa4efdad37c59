"""Ids: the words of users, items or values, by number, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

Words = Sequence[str] | np.ndarray


class Ids:
    """Words by number, in the type that the data has for them (int, float or str); 0 is padding.

    >>> users = Ids(["[PAD]", "34", "x"])
    >>> users.find([34.0, "34", "nobody"]).tolist()
    [1, 1, 0]
    """

    def __init__(
        self, words: Words | Callable[[], Words], kind: type = str, size: int | None = None
    ):
        """`words`: all of them, or what makes them when they are needed, and how many it makes."""
        self._given, self.kind, self._size = words, kind, size

    @cached_property
    def words(self) -> Words:
        """Every word; that of the padding first."""
        return self._given() if callable(self._given) else self._given

    def __len__(self) -> int:
        return len(self.words) if self._size is None else self._size

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        numbers = {word: number for number, word in enumerate(self.words)}
        numbers.pop(self.words[0], None)  # padding is nobody
        return numbers

    @cached_property
    def values(self) -> np.ndarray:
        """Every id in its type, objects [n]; that of the padding is None."""
        made = np.empty(len(self.words), dtype=object)
        made[1:] = [self.kind(word) for word in self.words[1:]]
        return made

    def find(self, given: Iterable[Any]) -> np.ndarray:
        """Numbers of ids, int64 [n]; 0 where there is no such id. 34, 34.0 and "34" are one."""
        known, other = self._numbers, self._otherwise
        return np.array([known.get(one) or other(one) for one in given], dtype=np.int64)

    def _otherwise(self, value: Any) -> int:
        word = word_of(value)
        other = word[:-2] if word.endswith(".0") else f"{word}.0"
        return self._numbers.get(word) or self._numbers.get(other) or 0

    def need(self, given: Sequence[Any], what: str) -> np.ndarray:
        """The same; an id that is not known is refused."""
        found = self.find(given)
        if not found.all():
            odd = str(given[int((found == 0).argmax())])[:80]
            raise ValueError(f"{what} {odd!r} is not known to this model; it knows {len(self) - 1}")
        return found


def word_of(value: Any) -> str:
    """The text of an id; that of 34.0 is 34."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
