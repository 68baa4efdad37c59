"""Wire: messages between workers and servers, checked before anything is touched.

    frame 0   header, 40 bytes, little endian: magic, version, kind, worker, flags, sequence number,
              step, session (a number that the worker drew for this run)
    others    raw arrays or JSON text, as the kind says

Nothing is unpickled or evaluated. Ids and rows of several tables travel as one frame each, and
`parts` says how they divide:

    parts   int64 [k, 2]       number of the table, number of its ids
    ids     int64 [sum]        table after table
    rows    float32 or bfloat16 [sum of n * dim], table after table
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAGIC, VERSION = b"SHOL", 1
HEADER = struct.Struct("<4sHHIIQqQ")
MOST_FRAMES = 8
MOST_IDS = 1 << 28  # ids in one message
MOST_EXPANDED = 1 << 31  # bytes that a compressed frame may hold
MOST_JSON = 64 << 20
FAST = 1  # level of compression

BFLOAT16, COMPRESSED, WITH_DENSE = 1, 2, 4
FLAGS = BFLOAT16 | COMPRESSED | WITH_DENSE


class WireError(ValueError):
    """A message that does not keep to the protocol; whoever sent it is told, and no more."""


class Kind(IntEnum):
    """What a message asks, or answers."""

    HELLO = 1  # JSON of the model; registers the worker's session
    PULL = 2  # parts, ids -> parts, rows
    PUSH = 3  # numbers, parts, ids, rows, dense gradients
    DENSE = 4  # -> this server's dense parameters
    SET_DENSE = 5  # dense parameters, their optimizer's state
    SAVE = 6  # JSON: folder; the rows as they are now are written there
    SAVED = 7  # is it written? -> JSON: files
    LOAD = 8  # JSON: folder, files; takes over the rows that belong here
    STATE = 9  # -> the dense optimizer's state
    STATS = 10  # -> JSON: rows and bytes held, messages handled
    PING = 11
    BYE = 12  # this worker is done
    OK = 100
    ERROR = 101  # JSON: message


@dataclass(frozen=True)
class Header:
    """The fixed part of a message."""

    kind: Kind
    worker: int
    flags: int = 0
    sequence: int = 0
    step: int = -1
    session: int = 0

    def pack(self) -> bytes:
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.worker,
            self.flags,
            self.sequence,
            self.step,
            self.session,
        )

    def answer(self, kind: Kind, flags: int = 0) -> Header:
        return replace(self, kind=kind, flags=flags)


def parse_header(frame: memoryview | bytes) -> Header:
    """The header, or an error that says what is wrong with it."""
    if len(frame) != HEADER.size:
        raise WireError(f"a header of {len(frame)} bytes; it must be {HEADER.size}")
    magic, version, kind, worker, flags, sequence, step, session = HEADER.unpack(frame)
    if magic != MAGIC:
        raise WireError("not a message of shoal")
    if version != VERSION:
        raise WireError(
            f"protocol version {version}; this server speaks {VERSION}: install the same version "
            "of shoal on all hosts"
        )
    if flags & ~FLAGS:
        raise WireError(f"unknown flags {flags:#x}")
    try:
        kind = Kind(kind)
    except ValueError:
        raise WireError(f"unknown kind of message {kind}") from None
    return Header(kind, worker, flags, sequence, step, session)


def array(
    frame: memoryview | bytes | bytearray, dtype: Any, count: int | None = None
) -> np.ndarray:
    """A frame as a flat array of `count` (any) values; refused when its size does not fit."""
    size = np.dtype(dtype).itemsize
    if len(frame) % size or (count is not None and len(frame) != count * size):
        wanted = "whole values" if count is None else f"{count} values"
        raise WireError(f"a frame of {len(frame)} bytes; expected {wanted} of {size} bytes")
    found = np.frombuffer(frame, dtype=dtype)
    return found if found.flags.aligned else found.copy()


def parse_json(frame: memoryview | bytes) -> dict[str, Any]:
    """A frame of JSON text; always an object."""
    if len(frame) > MOST_JSON:
        raise WireError(f"{len(frame)} bytes of text; at most {MOST_JSON} are taken")
    try:
        found = json.loads(bytes(frame))
    except (ValueError, RecursionError):
        raise WireError("a frame that is no JSON text") from None
    if not isinstance(found, dict):
        raise WireError("JSON text that is no object")
    return found


def parse_parts(frame: memoryview | bytes, dims: Sequence[int]) -> list[tuple[int, int]]:
    """(table, number of ids) of every part: known tables, each once."""
    numbers = array(frame, "<i8")
    if len(numbers) % 2 or len(numbers) > 2 * len(dims):
        raise WireError(f"{len(numbers)} numbers do not say which tables are meant")
    pairs = [(int(t), int(n)) for t, n in numbers.reshape(-1, 2)]
    for table, count in pairs:
        if not 0 <= table < len(dims):
            raise WireError(f"table {table}; there are {len(dims)}")
        if count < 0:
            raise WireError(f"{count} ids of table {table}")
    total = sum(count for _, count in pairs)
    if total > MOST_IDS:
        raise WireError(f"{total} ids in one message; at most {MOST_IDS} are taken")
    if len({table for table, _ in pairs}) < len(pairs):
        raise WireError("a table is named twice")
    return pairs


def parts_frame(pairs: Sequence[tuple[int, int]]) -> bytes:
    return np.array(pairs, dtype="<i8").reshape(-1).tobytes()


def numbers_frame(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


# ---- tensors ------------------------------------------------------------------------------------


def send_ids(pieces: Sequence[Tensor], flags: int) -> Any:
    """Ids of several tables as one frame."""
    if not pieces:
        return _send(np.empty(0, "<i8"), flags)
    joined = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
    return _send(joined.contiguous().numpy(), flags)


def send_rows(pieces: Sequence[Tensor], flags: int) -> Any:
    """Rows of several tables as one frame."""
    flat = [piece.reshape(-1) for piece in pieces]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat) if flat else torch.empty(0)
    if flags & BFLOAT16:
        return _send(joined.to(torch.bfloat16).view(torch.int16).numpy(), flags)
    return _send(joined.contiguous().numpy(), flags)


def _send(values: np.ndarray, flags: int) -> Any:
    if flags & COMPRESSED:
        return zlib.compress(values.data if values.size else b"", FAST)
    return values.data.cast("B") if values.size else b""


def receive_ids(frame: memoryview, counts: Sequence[int], flags: int) -> list[Tensor]:
    """The ids of each table: [n] each."""
    data = _expand(frame, sum(counts) * 8, flags)
    return list(_tensor(array(data, "<i8", sum(counts))).split(list(counts)))


def receive_rows(
    frame: memoryview, counts: Sequence[int], dims: Sequence[int], flags: int
) -> list[Tensor]:
    """The rows of each table: [n, dim] each."""
    sizes = [n * dim for n, dim in zip(counts, dims)]
    half = bool(flags & BFLOAT16)
    data = _expand(frame, sum(sizes) * (2 if half else 4), flags)
    if half:
        flat = _tensor(array(data, "<i2", sum(sizes))).view(torch.bfloat16).to(torch.float32)
    else:
        flat = _tensor(array(data, "<f4", sum(sizes)))
    return [piece.view(-1, dim) for piece, dim in zip(flat.split(sizes), dims)]


def _expand(frame: memoryview, size: int, flags: int) -> memoryview | bytes | bytearray:
    """Decompressed where it is compressed, never beyond the size that is stated."""
    if not flags & COMPRESSED:
        return frame
    if size > MOST_EXPANDED:
        raise WireError(f"{size} bytes in a compressed frame; at most {MOST_EXPANDED} are taken")
    worker = zlib.decompressobj()
    try:
        found = worker.decompress(frame, size or 1)  # 0 would stand for any number
        rest = worker.decompress(worker.unconsumed_tail, 1)
    except zlib.error:
        raise WireError("a compressed frame is damaged") from None
    if len(found) != size or rest or not worker.eof or worker.unused_data:
        raise WireError(f"a compressed frame that does not hold {size} bytes")
    return bytearray(found)  # torch wants memory that could be written to


def _tensor(values: np.ndarray) -> Tensor:
    if len(values) == 0:
        return torch.from_numpy(values.copy())
    return torch.frombuffer(values.data, dtype=_TORCH[values.dtype.str])


_TORCH = {"<i8": torch.int64, "<f4": torch.float32, "<i2": torch.int16}
