"""Tokens -> ids. Id 0 is padding; the rest are numbered from 1 as they first appear."""

from __future__ import annotations

import numpy as np

from shoal.data.raw import RawColumn

PAD = "[PAD]"


def number(
    columns: list[RawColumn], extends: list[bool], field: str
) -> tuple[np.ndarray, list[np.ndarray]]:
    """One vocabulary for several columns: its words (object array of str), and each column's ids.

    Words are numbered column by column, each in order of first appearance in its rows. A column
    that does not extend the vocabulary gives unknown words the id 0, as empty cells have.
    """
    index: dict[str, int] = {}
    ids = extend(index, columns, extends, field)
    vocab = np.empty(len(index), dtype=object)
    vocab[:] = list(index)
    return vocab, ids


def extend(
    index: dict[str, int], columns: list[RawColumn], extends: list[bool], field: str
) -> list[np.ndarray]:
    """Each column's ids; `index`, word -> id, learns the new words of columns that extend it."""
    index.setdefault(PAD, 0)
    ids = []
    for column, extend in zip(columns, extends):
        assert column.words is not None
        used = _first_appearance(column.values, len(column.words))
        words = column.words[used].tolist()
        if PAD in words:
            raise ValueError(
                f"{field!r} holds the token {PAD!r}, which stands for padding; rename it"
            )
        if extend:
            new = [index.setdefault(word, len(index)) for word in words]
        else:
            new = [index.get(word, 0) for word in words]
        id_of_code = np.zeros(len(column.words) + 1, dtype=np.int64)  # the last: code -1, empty
        id_of_code[used] = new
        ids.append(id_of_code[column.values])
    return ids


def _first_appearance(codes: np.ndarray, size: int) -> np.ndarray:
    """Codes that occur, in the order in which they first do."""
    first = np.full(size + 1, len(codes), dtype=np.int64)
    # Of repeated indices the last assignment counts: written backwards, that is the first row.
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    first[size] = len(codes)
    used = np.flatnonzero(first < len(codes))
    return used[np.argsort(first[used], kind="stable")]
