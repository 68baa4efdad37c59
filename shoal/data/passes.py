"""Rows brought together by user, however many there are: an external sort of bounded memory.

Users are cut into ranges of about as many rows as memory may hold. One pass over the rows writes
each to the file of its range; then a range at a time is read and worked on. Ranges come in the
order of the users, and the rows of a range in the order of the file, so that what is written range
after range does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from shoal.data.dataset import Column, Ragged

EVERYTHING = 1 << 62  # bytes of memory: all is in one piece
CHUNK = 1 << 20  # rows at a time where rows are passed over


def chunks(rows: int) -> Iterator[slice]:
    """All rows, some at a time."""
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))


def kept_values(
    column: Column, keep: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Values of the rows that are kept, some rows at a time; of lists also how long each is."""
    for part in chunks(len(column)):
        if not isinstance(column, Ragged):
            yield column[part] if keep is None else column[part][keep[part]], None
            continue
        offsets = column.offsets[part.start : part.stop + 1]
        values, lengths = column.values[offsets[0] : offsets[-1]], np.diff(offsets)
        if keep is not None:
            values, lengths = values[np.repeat(keep[part], lengths)], lengths[keep[part]]
        yield values, lengths


def count_ids(ids: np.ndarray, size: int, keep: np.ndarray | None = None) -> np.ndarray:
    """How often each id below `size` stands in a mapped column (in the rows that are kept)."""
    counts = np.zeros(size, dtype=np.int64)
    for part in chunks(len(ids)):
        part_ids = ids[part] if keep is None else ids[part][keep[part]]
        counts += np.bincount(part_ids, minlength=size)
    return counts


def ranges(counts: np.ndarray, memory: int) -> np.ndarray:
    """Where ranges of users begin, and where the last one ends: [ranges + 1]."""
    most = max(1, memory // 160)  # bytes that a row costs while its range is sorted
    ends = np.cumsum(counts)
    bounds = [0]
    while bounds[-1] < len(counts):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        stop = int(np.searchsorted(ends, before + most, side="right"))
        bounds.append(max(stop, bounds[-1] + 1))
    return np.array(bounds)


def by_user(
    columns: Mapping[str, np.ndarray],
    user: str,
    counts: np.ndarray,
    memory: int,
    scratch: Path | None,
) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """(users first to last - 1, their rows of all columns and `row`, their numbers) by ranges.

    The rows of a range come in the order of the file.
    """
    # Where memory holds all rows, there is one range and nothing is sorted.
    bounds = ranges(counts, memory)
    users, rows = columns[user], len(columns[user])
    if len(bounds) <= 2:
        whole = {name: np.asarray(column) for name, column in columns.items()}
        yield slice(0, len(counts)), {**whole, "row": np.arange(rows)}
        return
    # Write each row to the file of its range, in the order of the rows.
    assert scratch is not None, "rows that memory holds need none"
    kinds = {**{name: column.dtype for name, column in columns.items()}, "row": np.dtype("<i8")}
    record = np.dtype(list(kinds.items()))
    names = [scratch / f"range-{number}" for number in range(len(bounds) - 1)]
    with ExitStack() as stack:
        files = [stack.enter_context(open(name, "wb")) for name in names]
        for part in chunks(rows):
            records = np.empty(part.stop - part.start, record)
            for name, column in columns.items():
                records[name] = column[part]
            records["row"] = np.arange(part.start, part.stop)
            where = np.searchsorted(bounds, users[part], side="right") - 1
            order = np.argsort(where, kind="stable")
            stops = np.cumsum(np.bincount(where, minlength=len(names)))
            for number, stop in enumerate(stops):
                start = stops[number - 1] if number else 0
                if stop > start:
                    files[number].write(records[order[start:stop]].data)
    # Read one range after the other.
    for number, path in enumerate(names):
        records = np.fromfile(path, record)
        path.unlink()
        parts = {key: np.ascontiguousarray(records[key]) for key in kinds}
        del records
        yield slice(int(bounds[number]), int(bounds[number + 1])), parts
