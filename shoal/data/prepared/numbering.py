"""Words -> codes -> ids: which number a user or an item has.

Codes count words as they are read, ids as the rows that stay have them; both in order of first
appearance, so that neither depends on how the files were cut into pieces. Ids that a folder has
keep their number, new ones follow. The words are in memory while a folder is prepared.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.dataset import Column
from shoal.data.prepared.files import Appender, Stored, map_array
from shoal.data.prepared.partition import kept_values
from shoal.data.prepared.vocabulary import Words, pack
from shoal.data.vocabulary import PAD

MOST_IDS = (1 << 31) - 1


def stored_words(folder: Path, entry: dict[str, Any]) -> Words:
    """The vocabulary that a manifest's entry names."""
    text, ends = (map_array(folder, Stored.of(entry[part])) for part in ("text", "ends"))
    return Words(text, ends)


def known_words(folder: Path, manifest: dict[str, Any], name: str) -> dict[str, int]:
    """Word -> code of those that a folder has."""
    if name not in manifest["words"]:
        return {PAD: 0}
    words = stored_words(folder, manifest["words"][name])
    return {word: number for number, word in enumerate(words)}


def code_words(index: dict[str, int], words: list[str], name: str) -> np.ndarray:
    """Codes of words, and behind them that of no word; new ones come after those that are known."""
    codes = np.array([index.setdefault(word, len(index)) for word in words], dtype=np.int32)
    if not codes.all():
        raise ValueError(f"{name!r} holds the token {PAD!r}, which stands for padding; rename it")
    if len(index) > MOST_IDS:
        raise ValueError(f"{name!r} has more than {MOST_IDS} different values; hash them first")
    return np.append(codes, np.int32(0))


def number_codes(
    column: Column, keep: np.ndarray | None, known: int, index: dict[str, int]
) -> tuple[np.ndarray, dict[str, int]]:
    """Code -> id, int32: known ones keep theirs, new ones follow as the rows have them; word -> id.

    0 where no row that stays has the code.
    """
    size = len(index)
    if keep is None:
        return np.arange(size, dtype=np.int32), index
    numbers = np.zeros(size, dtype=np.int32)
    numbers[:known] = np.arange(known)
    following = known
    for some, _ in kept_values(column, keep):
        some = some[(numbers[some] == 0) & (some > 0)]
        distinct, first = np.unique(some, return_index=True)
        distinct = distinct[np.argsort(first)]
        numbers[distinct] = np.arange(following, following + len(distinct))
        following += len(distinct)
    names, code_of = list(index), np.zeros(following, dtype=np.int64)
    code_of[numbers] = np.arange(size)
    code_of[0] = 0
    return numbers, {names[code]: number for number, code in enumerate(code_of.tolist())}


def append_words(
    folder: Path, entry: dict[str, Any] | None, place: int, ids: dict[str, int]
) -> dict[str, Any]:
    """Write the words that are new, of word -> id in order (`entry` None: all); their entry."""
    if entry is None:
        text, ends = Stored(f"words-{place}.bin", "|u1"), Stored(f"ends-{place}.bin", "<i8")
    else:
        text, ends = Stored.of(entry["text"]), Stored.of(entry["ends"])
    packed = pack(list(islice(ids, len(ends), None)), len(text))
    for stored, values in zip((text, ends), packed):
        writer = Appender(folder, stored)
        writer.write(values)
        writer.close()
    return {"text": text.entry(), "ends": ends.entry()}
