"""The counts in an Arrow file or stream, checked before a reader takes memory for what they say.

An Arrow file is a row of messages: each has a head, a table of FlatBuffers that says how many rows
and bytes follow, and a body, whose buffers may be packed. A file that ends with a footer is read by
the places that stand there, and one place may be named many times. Bodies are not read, but for the
eight bytes before a packed buffer, which say how long it becomes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from shoal.data.bounded_files import (
    MOST_COLUMNS,
    MOST_DEPTH,
    VALUE_BYTES,
    check_columns,
    check_depth,
    check_expansion,
    most_bytes,
)

MAGIC = b"ARROW1"
CONTINUES = 0xFFFFFFFF  # stands before the length of a message
SCHEMA, DICTIONARY, RECORDS = 1, 2, 3  # kinds of messages
# What a column of a batch costs beside its values: a place that is named very often adds up, too.
COLUMN_BYTES = 64

Bytes = bytes | mmap.mmap


class FlatTable:
    """A table of FlatBuffers at a place: its fields by number."""

    def __init__(self, data: Bytes, at: int):
        self.data, self.at = data, at
        self.fields = at - _int(data, at, "<i")
        self.size = _int(data, self.fields, "<H")

    def place(self, number: int) -> int | None:
        """Where a field stands; None: the table does not have it."""
        entry = 4 + 2 * number
        offset = _int(self.data, self.fields + entry, "<H") if entry < self.size else 0
        return self.at + offset if offset else None

    def number(self, number: int, form: str, default: int = 0) -> int:
        """A field that is a number; form: as `struct` names its type."""
        place = self.place(number)
        return default if place is None else _int(self.data, place, form)

    def table(self, number: int) -> FlatTable | None:
        """A field that is a table."""
        place = self.place(number)
        return None if place is None else FlatTable(self.data, _target(self.data, place))

    def entries(self, number: int, width: int) -> range:
        """Where each entry of a list stands; width: the bytes of one."""
        place = self.place(number)
        if place is None:
            return range(0)
        start = _target(self.data, place)
        count = _int(self.data, start, "<I")
        if start + 4 + count * width > len(self.data):
            raise IndexError(f"a list of {count} entries")
        return range(start + 4, start + 4 + count * width, width)

    def tables(self, number: int) -> Iterator[FlatTable]:
        """A field that is a list of tables."""
        for place in self.entries(number, 4):
            yield FlatTable(self.data, _target(self.data, place))


def check_content(path: Path) -> None:
    """Refuse a file that would become too many times its size in memory, or that is damaged."""
    size = path.stat().st_size
    if size < 8:
        raise ValueError(f"{path} cannot be read as Arrow: it has {size} bytes")
    rows = content = 0
    most = most_bytes(size)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            for kind, head, body in _messages(data):
                if kind == SCHEMA:
                    check_columns(path, len(head.entries(1, 4)))
                    check_depth(path, _depth(head))
                    continue
                records = head.table(1) if kind == DICTIONARY else head
                if records is None:
                    raise IndexError("a dictionary without values")
                rows += records.number(0, "<q")
                content += _content(data, records, body)
                if content > most:
                    break
        except (IndexError, struct.error) as error:
            raise ValueError(f"{path} is damaged: not readable as Arrow ({error})") from None
    check_expansion(path, size, content, f"{rows:,} rows")


def _messages(data: Bytes) -> Iterator[tuple[int, FlatTable, range]]:
    """Kind, head and place of the body of every message that a reader would read."""
    if data[: len(MAGIC)] != MAGIC:
        at = 0
        while (message := _message(data, at)) is not None:
            yield message
            at = message[2].stop
        return
    end = len(data) - len(MAGIC) - 4
    length = _int(data, end, "<i")
    if data[-len(MAGIC) :] != MAGIC or not 0 < length <= end - len(MAGIC):
        raise IndexError("its end is missing")
    footer = FlatTable(data, _target(data, end - length))
    schema = footer.table(1)
    if schema is None:
        raise IndexError("its end names no columns")
    yield SCHEMA, schema, range(0)
    for number in (2, 3):  # dictionaries, and records
        for place in footer.entries(number, 24):
            message = _message(data, _int(data, place, "<q"))
            if message is None or message[0] not in (DICTIONARY, RECORDS):
                raise IndexError("its end names a place without records")
            yield message


def _message(data: Bytes, at: int) -> tuple[int, FlatTable, range] | None:
    """The message at a place; None at the end of a stream."""
    if at == len(data):
        return None
    if at < 0:
        raise IndexError(f"a message at {at}")
    length = _int(data, at, "<I")
    at += 4
    if length == CONTINUES:
        length = _int(data, at, "<I")
        at += 4
    if not length:
        return None
    if at + length > len(data):
        raise IndexError(f"a message of {length} bytes at {at}")
    message = FlatTable(data, _target(data, at))
    body = message.number(3, "<q")
    head = message.table(2)
    if head is None or body < 0 or at + length + body > len(data):
        raise IndexError(f"a body of {body} bytes at {at + length}")
    return message.number(1, "<B"), head, range(at + length, at + length + body)


def _content(data: Bytes, records: FlatTable, body: range) -> int:
    """Bytes that a batch of records takes in memory."""
    values = unpacked = columns = 0
    for place in records.entries(1, 16):
        length = _int(data, place, "<q")
        if length < 0:
            raise IndexError(f"a column of {length} values")
        values += length
        columns += 1
    packed = records.table(3) is not None
    for place in records.entries(2, 16):
        start, length = _int(data, place, "<q"), _int(data, place + 8, "<q")
        if start < 0 or length < 0 or start + length > len(body):
            raise IndexError(f"a buffer of {length} bytes at {start}")
        if packed and length >= 8:
            whole = _int(data, body.start + start, "<q")  # -1: this one is not packed
            if whole < -1:
                raise IndexError(f"a buffer of {whole} bytes")
            length = max(whole, length)
        unpacked += length
    return max(values * VALUE_BYTES, unpacked) + (1 + columns) * COLUMN_BYTES


def _depth(schema: FlatTable) -> int:
    """How deep the deepest column of a schema is nested; too deep or too many end the search."""
    level, depth, count = list(schema.tables(1)), 0, 0
    while level and depth <= MOST_DEPTH:
        depth += 1
        inner: list[FlatTable] = []
        for column in level:
            inner += column.tables(5)
            if count + len(inner) > 2 * MOST_COLUMNS:  # columns that name each other
                raise IndexError("more columns within columns than are read")
        count += len(inner)
        level = inner
    return depth


def _int(data: Bytes, at: int, form: str) -> int:
    if at < 0:
        raise IndexError(f"a place {at}")
    return struct.unpack_from(form, data, at)[0]


def _target(data: Bytes, at: int) -> int:
    """The place that an offset points to."""
    return at + _int(data, at, "<I")
