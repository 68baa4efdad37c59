"""Words <-> ids. Id 0 is padding; the rest are numbered from 1 as they first appear.

While rows are read, words get codes in the order of the files; the rows that filters keep are then
numbered in the same way. Neither depends on how the files were cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from shoal.data.column_store import Place, Stored, append_to, kept_values, map_array
from shoal.data.dataset import Column
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

    def followed_by(self, words: Iterable[str]) -> Words:
        """This vocabulary with more words behind."""
        more = Words.from_list(words)
        start = int(self.ends[-1]) if len(self.ends) else 0
        text = np.concatenate([self.text[:start], more.text])
        return Words(text, np.concatenate([self.ends, start + more.ends]))

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


@dataclass
class StoredWords:
    """The files of a vocabulary: the text of its words, and where each of them ends."""

    text: Stored
    ends: Stored

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> StoredWords:
        """The vocabulary that an entry of a manifest names."""
        return cls(Stored.from_entry(entry["text"]), Stored.from_entry(entry["ends"]))

    def entry(self) -> dict[str, Any]:
        """The entry of the manifest for this vocabulary."""
        return {"text": self.text.entry(), "ends": self.ends.entry()}

    def __len__(self) -> int:
        return len(self.ends)

    def map(self, place: Place) -> Words:
        """Its words; those of a folder are memory-mapped."""
        return Words(map_array(place, self.text), map_array(place, self.ends))


def known_words(place: Place, stored: StoredWords | None) -> dict[str, int]:
    """Word -> id of the words that are kept; None: there are none yet but the padding."""
    if stored is None:
        return {PAD: 0}
    return {word: number for number, word in enumerate(stored.map(place))}


def append_words(
    place: Place, stored: StoredWords | None, name: str, ids: dict[str, int]
) -> StoredWords:
    """Write the words that are new, of word -> id in order (`stored` None: all of them)."""
    if stored is None:
        stored = StoredWords(Stored(f"words-{name}.bin", "|u1"), Stored(f"ends-{name}.bin", "<i8"))
    new = Words.from_list(islice(ids, len(stored), None))
    for part, values in ((stored.text, new.text), (stored.ends, len(stored.text) + new.ends)):
        writer = append_to(place, part)
        writer.write(values)
        writer.close()
    return stored


def pack_words(words: Iterable[str]) -> dict[str, Tensor]:
    """All words in one run of `bytes`, and `offsets`: where each begins, and the last ends."""
    packed = Words.from_list(words)
    offsets = np.concatenate([np.zeros(1, np.int64), packed.ends])
    return {"bytes": torch.from_numpy(packed.text.copy()), "offsets": torch.from_numpy(offsets)}


def unpack_words(packed: Mapping[str, Tensor]) -> Words:
    """The words that `pack_words` packed; ValueError where they are damaged."""
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
    return Words(text, offsets[1:])
