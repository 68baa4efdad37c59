"""Ids: the words of users, items or values, by number, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shoal.data import vocabulary

Words = Sequence[str] | np.ndarray | vocabulary.Words


class UnknownName(ValueError):
    """A user, an item or a value was named that a model does not know.

    public: the sentence for strangers, who do not learn how many names the model knows.
    """

    def __init__(self, public: str, num_known: int):
        super().__init__(public, num_known)
        self.public = public
        self.num_known = num_known

    def __str__(self) -> str:
        return f"{self.public}; it knows {self.num_known}"


class Ids:
    """Words by number, in the type that the data has for them (int, float or str); 0 is padding.

    >>> users = Ids(["[PAD]", "34", "x"])
    >>> users.find([34.0, "34", "nobody"]).tolist()
    [1, 1, 0]
    """

    def __init__(self, words: Words, kind: type = str):
        self.words, self.kind = words, kind

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        numbers = {word: number for number, word in enumerate(self.words)}
        numbers.pop(self.words[0], None)  # the padding is no id
        return numbers

    @cached_property
    def values(self) -> np.ndarray:
        """Every id in its type, objects [n]; that of the padding is None."""
        values = np.empty(len(self.words), dtype=object)
        values[1:] = [self.kind(word) for word in self.words[1:]]
        return values

    def followed_by(self, words: Sequence[str]) -> Ids:
        """These ids and new ones behind, each of the same type; ValueError where one is not.

        >>> Ids(["[PAD]", "34"], int).followed_by(["35"]).values.tolist()
        [None, 34, 35]
        """
        values = np.empty(len(words), dtype=object)
        values[:] = [self._typed(word) for word in words]
        before = self.words
        if not isinstance(before, vocabulary.Words):
            before = vocabulary.Words.from_list(before)
        longer = Ids(before.followed_by(words), self.kind)
        # What was made of all words is copied, which is quicker than to make it again.
        longer._numbers = self._numbers.copy()
        longer._numbers.update(zip(words, range(len(self), len(longer))))
        longer.values = np.concatenate([self.values, values])
        return longer

    def _typed(self, word: str) -> Any:
        try:
            return self.kind(word)
        except ValueError:
            kind = self.kind.__name__
            raise ValueError(f"the id {word[:80]!r} is no {kind}, as those of others are") from None

    def find(self, ids: Iterable[Any]) -> np.ndarray:
        """Numbers of ids, int64 [n]; 0 where there is no such id. 34, 34.0 and "34" are one."""
        numbers, find_variant = self._numbers, self._find_variant
        return np.array(
            [numbers.get(value) or find_variant(value) for value in ids], dtype=np.int64
        )

    def _find_variant(self, value: Any) -> int:
        word = word_of(value)
        variant = word[:-2] if word.endswith(".0") else f"{word}.0"
        return self._numbers.get(word) or self._numbers.get(variant) or 0

    def need(self, ids: Sequence[Any], noun: str) -> np.ndarray:
        """Numbers of ids, int64 [n]; raises UnknownName where there is no such id."""
        numbers = self.find(ids)
        if not numbers.all():
            odd = str(ids[int((numbers == 0).argmax())])[:80]
            raise UnknownName(f"{noun} {odd!r} is not known to this model", len(self) - 1)
        return numbers


def word_of(value: Any) -> str:
    """The text of an id; that of 34.0 is 34."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
