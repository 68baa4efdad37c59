"""The counts in a Parquet file, checked before a reader takes memory for what they say.

One changed byte can make the number of values of a page negative or 2^58, and a reader that gets no
memory ends the process instead of raising. The footer and the heads of pages are structs of
Thrift's compact protocol; only their sizes and counts are looked at, pages are not read.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

MOST_VALUES = 1 << 16  # for a byte of a column: long runs of one value pack that well, not better
# Numbers of the fields that are looked at, by struct.
FILE = {"rows": 3, "groups": 4}
GROUP = {"columns": 1, "rows": 3}
META = {"values": 5, "bytes": 7, "data": 9, "dictionary": 11}  # of a ColumnChunk's field 3
PAGE = {"whole": 2, "packed": 3, "data": 5, "dictionary": 7, "data 2": 8}

Bytes = bytes | mmap.mmap


def check_counts(path: Path) -> None:
    """ValueError where counts in a file cannot be those of a Parquet file of this size."""
    size = path.stat().st_size
    if size < 12:
        raise ValueError(f"{path} cannot be read as Parquet: it has {size} bytes")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        length = int.from_bytes(data[-8:-4], "little")
        if data[-4:] != b"PAR1" or length + 12 > size:
            raise ValueError(f"{path} cannot be read as Parquet: its end is missing")
        try:
            wrong = _find_wrong(data, _struct(data, size - 8 - length, 0)[0])
        except (IndexError, KeyError, TypeError, AttributeError, RecursionError):
            wrong = "what stands in the footer or in the head of a page is none"
    if wrong:
        raise ValueError(f"{path} is damaged: not readable as Parquet ({wrong})")


def _find_wrong(data: Bytes, told: dict[int, Any]) -> str | None:
    groups = told.get(FILE["groups"], [])
    rows = [group[GROUP["rows"]] for group in groups]
    if min(rows, default=0) < 0 or sum(rows) != told[FILE["rows"]]:
        return f"{sum(rows)} rows in its groups, which are not those of the file"
    for group in groups:
        for chunk in group[GROUP["columns"]]:
            if wrong := _find_wrong_column(data, chunk[3], group[GROUP["rows"]]):
                return wrong
    return None


def _find_wrong_column(data: Bytes, meta: dict[int, Any], rows: int) -> str | None:
    values, held = meta[META["values"]], meta[META["bytes"]]
    first = min(filter(None, (meta[META["data"]], meta.get(META["dictionary"]))), default=0)
    if first < 0 or held < 0 or first + held > len(data):
        return f"a column of {held} bytes at {first} in a file of {len(data)}"
    if not 0 <= values <= held * MOST_VALUES or rows > held * MOST_VALUES:
        return f"{values} values and {rows} rows in a column of {held} bytes"
    at, found = first, 0
    while at < first + held:
        page, at = _struct(data, at, 0)
        whole, packed = page[PAGE["whole"]], page[PAGE["packed"]]
        if whole < 0 or not 0 <= packed <= first + held - at:
            return f"a page of {packed} bytes, {whole} when unpacked, in a column of {held}"
        at += packed
        if words := page.get(PAGE["dictionary"]):  # may hold words that no row has
            if not 0 <= words[1] <= whole:
                return f"a dictionary of {words[1]} values in {whole} bytes"
        elif counted := page.get(PAGE["data"]) or page.get(PAGE["data 2"]):
            if not 0 <= counted[1] <= values:
                return f"a page of {counted[1]} values in a column of {values}"
            found += counted[1]
    return None if found == values else f"{found} values in the pages of a column of {values}"


# ---- Thrift's compact protocol ------------------------------------------------------------------


def _struct(data: Bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Field number -> value, and where the struct ends."""
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
        return None, at + length  # texts and bytes are not looked at
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
