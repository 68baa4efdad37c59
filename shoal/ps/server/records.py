"""Records: what a segment of a journal consists of, each a head with checksums and some frames.

A record's checksum goes on from that of the record before, and the first one's from the name of the
segment, so that none can be left out or change places. A record that was being written when its
process was killed is shorter than its head says.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import Any

from shoal.ps.wire import MOST_FRAMES, WireError

HEAD = struct.Struct(f"<4sHHI{MOST_FRAMES}Q")  # magic, kind, frames, their checksum, their sizes
CHECK = struct.Struct("<I")  # of the head
MAGIC = b"SHJ1"
REQUEST, STATE, FILES = 1, 2, 3


def first_check(name: str) -> int:
    """What the checksums of a segment begin with."""
    return zlib.crc32(name.encode())


def checked(frames: Sequence[Any], check: int) -> int:
    """The checksum of a record, after the one before it."""
    for frame in frames:
        check = zlib.crc32(frame, check)
    return check


def write(file: int, what: int, frames: Sequence[Any], check: int) -> int:
    """Write a record at the end of a file; its bytes."""
    sizes = [len(frame) for frame in frames]
    head = HEAD.pack(MAGIC, what, len(sizes), check, *sizes, *[0] * (MOST_FRAMES - len(sizes)))
    parts = [head + CHECK.pack(zlib.crc32(head)), *frames]
    left = [memoryview(part) for part in parts if len(part)]
    while left:  # the system may take a part of it at a time
        done = os.writev(file, left)
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    return HEAD.size + CHECK.size + sum(sizes)


def heads(file: BufferedReader, name: str, last: bool) -> Iterator[tuple[int, list[int], int]]:
    """Kind, sizes of frames and checksum of every whole record; whoever asks reads the frames.

    last: the file may end with a part of a record.
    """
    total = os.fstat(file.fileno()).st_size
    while (left := total - file.tell()) > 0:
        data = file.read(HEAD.size + CHECK.size)
        if len(data) == HEAD.size + CHECK.size:
            magic, what, count, check, *sizes = HEAD.unpack_from(data)
            (own,) = CHECK.unpack_from(data, HEAD.size)
            if own != zlib.crc32(data[: HEAD.size]) or magic != MAGIC:
                raise damaged(name, "the head of a record fails its checksum")
            if what not in (REQUEST, STATE, FILES) or not 1 <= count <= MOST_FRAMES:
                raise damaged(name, f"a record of kind {what} and {count} frames")
            if sum(sizes[:count]) <= left - len(data):
                yield what, sizes[:count], check
                continue
        if not last:
            raise damaged(name, "it was cut")
        return


def damaged(name: str, how: str) -> WireError:
    return WireError(f"the journal's {name} is damaged: {how}")
