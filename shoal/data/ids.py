"""Ids: the words of users, items or values, by number, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data import vocabulary

Words = Sequence[str] | np.ndarray | vocabulary.Words


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


def pack_words(words: Iterable[str]) -> dict[str, Tensor]:
    """All words in one run of `bytes`, and `offsets`: where each begins, and the last ends."""
    packed = vocabulary.Words.of(words)
    offsets = np.concatenate([np.zeros(1, np.int64), packed.ends])
    return {"bytes": torch.from_numpy(packed.text.copy()), "offsets": torch.from_numpy(offsets)}


def unpack_words(packed: Mapping[str, Tensor]) -> vocabulary.Words:
    """The same back; ValueError where they are damaged."""
    text, offsets = packed["bytes"].numpy(), packed["offsets"].numpy()
    if not (
        text.dtype == np.uint8
        and offsets.dtype == np.int64
        and text.ndim == offsets.ndim == 1
        and len(offsets) >= 2
        and offsets[0] == 0
        and offsets[-1] == len(text)
        and bool((np.diff(offsets) >= 0).all())
    ):
        raise ValueError("words that do not lie within their text")
    return vocabulary.Words(text, offsets[1:])


def word_of(value: Any) -> str:
    """The text of an id; that of 34.0 is 34."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
