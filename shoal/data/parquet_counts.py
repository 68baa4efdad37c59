"""The counts in a Parquet file, checked before a reader takes memory for what they say.

Two questions are answered here: whether the counts can be true (`check_counts`), and whether the
columns that are to be read would become too many times the size of the file (`check_content`). A
file may have any number of rows: see shoal/data/bounded_files.py.

One changed byte can make the number of values of a page negative or 2^58, and a reader that gets no
memory ends the process instead of raising. The footer and the heads of pages are structs of
Thrift's compact protocol; only their sizes and counts are looked at, pages are not read. They are
read here because Polars shows no counts of a file but its rows, and pyarrow is no dependency.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.data.bounded_files import (
    MOST_COLUMNS,
    MOST_DEPTH,
    VALUE_BYTES,
    check_columns,
    check_depth,
    check_expansion,
)

MOST_VALUES = 1 << 16  # for a byte of a column: long runs of one value pack that well, not better
# Numbers of the fields that are looked at, by struct.
FILE = {"schema": 2, "rows": 3, "groups": 4}
ELEMENT = {"name": 4, "children": 5}  # of the schema, a tree whose nodes stand depth first
GROUP = {"columns": 1, "rows": 3}
# Of a ColumnChunk's field 3.
META = {"path": 3, "values": 5, "bytes": 7, "data": 9, "dictionary": 11}
PAGE = {"whole": 2, "packed": 3, "data": 5, "dictionary": 7, "data 2": 8}

LONGEST_NAME = 1 << 10  # bytes of a text in the footer that is kept: names of columns

Bytes = bytes | mmap.mmap


@dataclass
class ColumnSize:
    """What a column of a file holds: values, and bytes of pages that are unpacked."""

    values: int = 0
    page_bytes: int = 0

    @property
    def in_memory(self) -> int:
        """Bytes that the column takes when it is read."""
        return max(self.values * VALUE_BYTES, self.page_bytes)


def check_content(path: Path, columns: Collection[str] | None = None) -> None:
    """Refuse a file whose `columns` (None: all) would become too many times its size in memory."""
    sizes = check_counts(path)
    chosen_sizes = [size for name, size in sizes.items() if columns is None or name in columns]
    values, content = (
        sum(one.values for one in chosen_sizes),
        sum(one.in_memory for one in chosen_sizes),
    )
    check_expansion(path, path.stat().st_size, content, f"{values:,} values of its columns")


def check_counts(path: Path, handle: int | None = None) -> dict[str, ColumnSize]:
    """Column -> what it holds; ValueError where the counts cannot be those of such a file.

    handle: a descriptor of the file, where it is open; the path then only names it in errors.
    """
    size = (path.stat() if handle is None else os.fstat(handle)).st_size
    if size < 12:
        raise ValueError(f"{path} cannot be read as Parquet: it has {size} bytes")
    place = path if handle is None else handle
    with (
        open(place, "rb", closefd=handle is None) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        length = int.from_bytes(data[-8:-4], "little")
        if data[-4:] != b"PAR1" or length + 12 > size:
            raise ValueError(f"{path} cannot be read as Parquet: its end is missing")
        sizes: dict[str, ColumnSize] = {}
        wrong: str | None = None
        try:
            start = size - 8 - length
            # The schema stands first: that of too many columns is refused before all are read.
            schema = _struct(data, start, 0, last=FILE["schema"])[0][FILE["schema"]]
            num_columns, depth = _shape(schema)
            if within_bounds := num_columns <= MOST_COLUMNS and depth <= MOST_DEPTH:
                wrong = _find_wrong(data, _struct(data, start, 0)[0], sizes)
        except (IndexError, KeyError, TypeError, AttributeError, RecursionError):
            wrong = "what stands in the footer or in the head of a page is none"
            within_bounds = True
    if within_bounds and wrong:
        raise ValueError(f"{path} is damaged: not readable as Parquet ({wrong})")
    check_columns(path, num_columns)
    check_depth(path, depth)
    return sizes


def _shape(schema: list[dict[int, Any]]) -> tuple[int, int]:
    """The number of columns, and how deep the deepest of them is nested."""
    unseen = [schema[0].get(ELEMENT["children"]) or 0]  # children of each open node
    deepest = 0
    for element in schema[1:]:
        while unseen and not unseen[-1]:
            unseen.pop()
        unseen[-1] -= 1
        deepest = max(deepest, len(unseen))
        unseen.append(element.get(ELEMENT["children"]) or 0)
    return schema[0].get(ELEMENT["children"]) or 0, deepest


def _find_wrong(data: Bytes, footer: dict[int, Any], sizes: dict[str, ColumnSize]) -> str | None:
    """What is wrong with the counts of a file; `sizes` gets those of its columns."""
    groups = footer.get(FILE["groups"], [])
    rows = [group[GROUP["rows"]] for group in groups]
    if min(rows, default=0) < 0 or sum(rows) != footer[FILE["rows"]]:
        return f"{sum(rows)} rows in its groups, which are not those of the file"
    chunks = [chunk[3] for group in groups for chunk in group[GROUP["columns"]]]
    if sum(meta[META["bytes"]] for meta in chunks) > len(data):
        return "columns that lie in each other"  # walking them all would take for ever
    for group in groups:
        for chunk in group[GROUP["columns"]]:
            name = chunk[3][META["path"]][0].decode("utf-8", "replace")
            size = sizes.setdefault(name, ColumnSize())
            if wrong := _find_wrong_column(data, chunk[3], group[GROUP["rows"]], size):
                return wrong
    return None


def _find_wrong_column(
    data: Bytes, meta: dict[int, Any], rows: int, size: ColumnSize
) -> str | None:
    """What is wrong with a column of a row group; its counts are added to `size`."""
    values, held = meta[META["values"]], meta[META["bytes"]]
    first = min(filter(None, (meta[META["data"]], meta.get(META["dictionary"]))), default=0)
    if first < 0 or held < 0 or first + held > len(data):
        return f"a column of {held} bytes at {first} in a file of {len(data)}"
    if not 0 <= values <= held * MOST_VALUES or rows > held * MOST_VALUES:
        return f"{values} values and {rows} rows in a column of {held} bytes"
    at, num_values = first, 0
    while at < first + held:
        page, at = _struct(data, at, 0)
        whole, packed = page[PAGE["whole"]], page[PAGE["packed"]]
        if whole < 0 or not 0 <= packed <= first + held - at:
            return f"a page of {packed} bytes, {whole} when unpacked, in a column of {held}"
        at += packed
        size.page_bytes += whole
        if words := page.get(PAGE["dictionary"]):  # may hold words that no row has
            if not 0 <= words[1] <= whole:
                return f"a dictionary of {words[1]} values in {whole} bytes"
        elif counted := page.get(PAGE["data"]) or page.get(PAGE["data 2"]):
            if not 0 <= counted[1] <= values:
                return f"a page of {counted[1]} values in a column of {values}"
            num_values += counted[1]
    size.values += max(values, rows)
    return (
        None
        if num_values == values
        else f"{num_values} values in the pages of a column of {values}"
    )


# ---- Thrift's compact protocol ------------------------------------------------------------------


def _struct(
    data: Bytes, at: int, depth: int, last: int | None = None
) -> tuple[dict[int, Any], int]:
    """Field number -> value, and where the struct ends; last: no field behind this one is read."""
    if depth > 16:
        raise RecursionError
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        fields[number], at = _value(data, at, head & 15, depth, in_list=False)
        if number == last:
            break
    return fields, at + 1


def _value(data: Bytes, at: int, kind: int, depth: int, in_list: bool) -> tuple[Any, int]:
    if kind in (1, 2):  # a truth value: in the head of its field, or a byte of a list
        return kind == 1, at + in_list
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _signed(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        # Of texts only names of columns are looked at.
        return data[at : at + length] if length <= LONGEST_NAME else None, at + length
    if kind in (9, 10):
        return _list(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise TypeError(f"kind {kind}")  # maps are in no field of a footer


def _list(data: Bytes, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise IndexError
    values = []
    for _ in range(count):
        value, at = _value(data, at, head & 15, depth + 1, in_list=True)
        values.append(value)
    return values, at


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise IndexError


def _signed(data: Bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
