"""How much memory a data file may ask for, before anything of it is read.

A table may be as large as memory allows: what is bounded is how much more than its own size a file
becomes. Real tables hold something new in every row, so they shrink to a third or a twentieth; a
file that claims 60 million rows in 367 KB was made to fill memory. SECURITY.md lists these bounds.
"""

from __future__ import annotations

from pathlib import Path

from shoal.config.data_section import MOST_COLUMNS

EXPANSION = 200  # times the size of a file that its content may take; gzip's most is 1032
EXPANSION_FREE = 64 << 20  # bytes that any file may become
VALUE_BYTES = 8  # a value of Parquet or Arrow in memory: what columns of numbers and ids take
LONGEST_LINE = 16 << 20  # bytes: what a reader of lines holds is bounded by it
MOST_DEPTH = 64  # levels of lists and objects inside each other, in JSON, Parquet and Arrow


def most_bytes(size: int) -> int:
    """The bytes that a file of `size` bytes may become in memory.

    >>> most_bytes(1_000) == 64 << 20, most_bytes(1 << 30) == 200 << 30
    (True, True)
    """
    return max(EXPANSION_FREE, EXPANSION * size)


def check_expansion(name: str | Path, size: int, content: int, content_name: str) -> None:
    """Refuse a file whose content takes too many times its size; content_name: for errors."""
    if content > (most := most_bytes(size)):
        raise ValueError(
            f"{name} has {size:,} bytes and would become {content:,} in memory ({content_name}); "
            "at most "
            f"{most:,} are read, {EXPANSION} times the file or 64 MiB, because no real table "
            "shrinks so much. If it is sound, read fewer of its columns (data.load.inter), or "
            "write it as csv"
        )


def check_columns(name: str | Path, count: int) -> None:
    """Refuse a table with too many columns."""
    if count > MOST_COLUMNS:
        raise ValueError(
            f"{name} has {count:,} columns; at most {MOST_COLUMNS:,} are read: write a file with "
            "those that are needed, and put many numbers of a row into one column of lists"
        )


def check_depth(name: str | Path, depth: int) -> None:
    """Refuse values that are nested too deep."""
    if depth > MOST_DEPTH:
        raise ValueError(
            f"{name} holds lists or objects {depth:,} levels deep; at most {MOST_DEPTH} are read: "
            "write the values that are needed as columns of their own"
        )
