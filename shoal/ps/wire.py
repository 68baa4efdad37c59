"""Wire: messages between workers and servers, checked before anything is touched.

    frame 0   header, 40 bytes, little endian: magic, version, kind, worker, flags, sequence number,
              step, session (a number that the worker drew for this run)
    others    raw arrays or JSON text, as the kind says

Nothing is unpickled or evaluated. Ids and rows of several tables travel as one frame each, and
`parts` says how they divide:

    parts   int64 [k, 2]       number of the table, number of its ids
    ids     int64 [sum]        table after table
    rows    float32 or bfloat16 [sum of n * dim], table after table

Rows are requested so often that every frame counts: a PULL is one frame, and so is its answer. A
worker asks for many rows by several requests: some travel while others are read.

    PULL    header, int64 number of parts, parts, ids
    OK      header, rows

A server takes frames of at most PIECE bytes. A request with a larger one has the flag IN_PIECES;
its frame 1 is int64 [k], the bytes of each of its frames, which follow one after the other in
pieces.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from ctypes import string_at
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from shoal.config.section import Section

MAGIC, VERSION = b"SHOL", 7
HEADER = struct.Struct("<4sHHIIQqQ")
COUNT = struct.Struct("<q")
MOST_FRAMES = 8
MOST_IDS = 1 << 28  # ids in one message
MOST_JSON = 16 << 20
# A server takes no larger frame: what somebody may send before it is known who that is, is so
# bounded. A worker cuts larger ones.
PIECE = 4 << 20
COPY_BELOW = 1 << 16  # smaller frames are copied into zmq's own memory, which is cheaper

# In a hello, where workers join and leave: server 0 gives the worker a number.
ANY_NUMBER = (1 << 32) - 1
MOST_WORKERS = 1 << 16
PLACE = struct.Struct("<5q")  # of a push: epoch, first and last batch, lease, what is done of it

# A request for rows of each table: its number, ids [n], and the range of them, first to last.
Wanted = Sequence[tuple[int, Tensor, int, int]]

BFLOAT16, COMPRESSED, WITH_DENSE, IN_PIECES = 1, 2, 4, 8
FLAGS = BFLOAT16 | COMPRESSED | WITH_DENSE | IN_PIECES


S = TypeVar("S", bound=Section)


class WireError(ValueError):
    """A message that breaks the protocol; its sender gets an error, and nothing else happens."""


class Kind(IntEnum):
    """The kind of a request or an answer."""

    HELLO = 1  # JSON of the model; registers the worker's session
    PULL = 2  # parts, ids -> rows; each in one frame with its header
    PUSH = 3  # numbers, parts, ids, rows, dense gradients; counts, place (where there are any)
    DENSE = 4  # -> this server's dense parameters
    SET_DENSE = 5  # dense parameters, their optimizer's state
    SAVE = 6  # JSON: name of a folder; the rows as they are now are written there, or held
    SAVED = 7  # is it written? -> JSON: files; with JSON: a replica has written these
    LOAD = 8  # JSON: name of a folder, files; takes over the rows that belong here
    STATE = 9  # -> the dense optimizer's state
    STATS = 10  # -> JSON: rows and bytes held, messages handled
    PING = 11
    BYE = 12  # this worker is done
    LEASE = 13  # JSON -> JSON: which batches to compute, where workers join and leave
    TURN = 14  # JSON: what is to be done next
    OK = 100
    ERROR = 101  # JSON: message


KINDS = {int(kind): kind for kind in Kind}
WITH_BODY = (Kind.PULL, Kind.OK)  # more than the header may stand in their frame 0


class MessageHeader(NamedTuple):
    """The fixed part of a message."""

    kind: Kind
    worker: int
    flags: int = 0
    sequence: int = 0
    step: int = -1
    session: int = 0

    def pack(self) -> bytes:
        """The bytes that frame 0 begins with."""
        return HEADER.pack(MAGIC, VERSION, *self)

    def answer(self, kind: Kind, flags: int = 0) -> MessageHeader:
        """The header of an answer to this message."""
        return MessageHeader(kind, self.worker, flags, self.sequence, self.step, self.session)


def parse_header(frame: memoryview | bytes) -> MessageHeader:
    """Parse a header; WireError where it is wrong."""
    if len(frame) < HEADER.size:
        raise WireError(f"a header of {len(frame)} bytes; it must be {HEADER.size}")
    magic, version, kind, worker, flags, sequence, step, session = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise WireError("not a message of shoal")
    if version != VERSION:
        raise WireError(
            f"protocol version {version}; this server speaks {VERSION}: install the same version "
            "of shoal on all hosts"
        )
    if flags & ~FLAGS:
        raise WireError(f"unknown flags {flags:#x}")
    if kind not in KINDS:
        raise WireError(f"unknown kind of message {kind}")
    if len(frame) > HEADER.size and kind not in WITH_BODY:
        raise WireError(f"a header of {len(frame)} bytes; it must be {HEADER.size}")
    return MessageHeader(KINDS[kind], worker, flags, sequence, step, session)


def numbers(frame: memoryview | bytes, count: int) -> tuple[float, ...]:
    """A frame of so many float64."""
    if len(frame) != 8 * count:
        raise WireError(f"a frame of {len(frame)} bytes; expected {count} numbers of 8 bytes")
    return struct.unpack(f"<{count}d", frame)


def parse_json(frame: memoryview | bytes, max_bytes: int = MOST_JSON) -> dict[str, Any]:
    """A frame of JSON text; always an object."""
    if len(frame) > max_bytes:
        raise WireError(f"{len(frame)} bytes of text; at most {max_bytes} are taken")
    try:
        values = json.loads(bytes(frame))
    except (ValueError, RecursionError):
        raise WireError("a frame that is not JSON text") from None
    if not isinstance(values, dict):
        raise WireError("JSON text that is not an object")
    return values


def validated(kind: type[S], values: dict[str, Any], wrong: str) -> S:
    """Typed values of JSON text; wrong: the beginning of an error that names the wrong place."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise WireError(f"{wrong}: {place}: {first['msg']}") from None


def json_frame(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


def parse_place(frame: memoryview | bytes) -> tuple[int, int, int, int, int]:
    """The batches of gradients: epoch, first, last (exclusive), lease, done of the lease."""
    if len(frame) != PLACE.size:
        raise WireError(f"a frame of {len(frame)} bytes; the place of a push has {PLACE.size}")
    place = PLACE.unpack(frame)
    if min(place) < 0 or place[1] > place[2] or max(place) > 1 << 53:
        raise WireError(f"gradients of the batches {place[1]} to {place[2]} of epoch {place[0]}")
    return place


def parse_parts(frame: memoryview | bytes, num_tables: int) -> list[tuple[int, int]]:
    """(table, number of ids) of every part: known tables, each once."""
    if len(frame) % 16 or len(frame) > 16 * num_tables:
        raise WireError(f"{len(frame)} bytes do not say which of {num_tables} tables are meant")
    flat = struct.unpack(f"<{len(frame) // 8}q", frame)
    pairs = list(zip(flat[::2], flat[1::2]))
    for table, count in pairs:
        if not 0 <= table < num_tables:
            raise WireError(f"table {table}; there are {num_tables}")
        if count < 0:
            raise WireError(f"{count} ids of table {table}")
    total = sum(count for _, count in pairs)
    if total > MOST_IDS:
        raise WireError(f"{total} ids in one message; at most {MOST_IDS} are taken")
    if len({table for table, _ in pairs}) < len(pairs):
        raise WireError("a table is named twice")
    return pairs


def parts_frame(pairs: Sequence[tuple[int, int]]) -> bytes:
    return struct.pack(f"<{2 * len(pairs)}q", *[number for pair in pairs for number in pair])


def numbers_frame(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


# ---- large frames -------------------------------------------------------------------------------


def in_pieces(header: MessageHeader, frames: Sequence[Any]) -> list[Any]:
    """A request as it is sent: its header and frames, large ones cut."""
    if all(len(frame) <= PIECE for frame in frames):
        return [header.pack(), *frames]
    sizes = struct.pack(f"<{len(frames)}q", *map(len, frames))
    pieces = [
        memoryview(frame)[first : first + PIECE]
        for frame in frames
        for first in range(0, len(frame), PIECE)
    ]
    return [header._replace(flags=header.flags | IN_PIECES).pack(), sizes, *pieces]


def join_pieces(frames: Sequence[memoryview]) -> list[memoryview]:
    """The frames of a request that came in pieces."""
    if not frames or len(frames[0]) % 8 or not 0 < len(frames[0]) <= 8 * MOST_FRAMES:
        raise WireError("pieces, and no sizes of the frames that they make")
    sizes = struct.unpack(f"<{len(frames[0]) // 8}q", frames[0])
    if min(sizes) < 0 or sum(sizes) != sum(map(len, frames[1:])):
        raise WireError(f"pieces that do not make frames of {sizes} bytes")
    whole = memoryview(bytearray().join(frames[1:]))
    starts = list(accumulate(sizes, initial=0))
    return [whole[first : first + size] for first, size in zip(starts, sizes)]


# ---- requests for rows --------------------------------------------------------------------------


def pull_message(header: MessageHeader, row_ranges: Wanted) -> bytes:
    """A request for rows. Ids are read where they lie: slices and views of a tensor take long."""
    ids = [
        string_at(table_ids.data_ptr() + 8 * first, 8 * (last - first))
        for _, table_ids, first, last in row_ranges
    ]
    if header.flags & COMPRESSED:
        ids = [zlib.compress(b"".join(ids), 1)]
    parts = parts_frame([(table, last - first) for table, _, first, last in row_ranges])
    return b"".join((header.pack(), COUNT.pack(len(row_ranges)), parts, *ids))


def parse_pull(frame: bytes | memoryview, flags: int, num_tables: int) -> list[tuple[int, Tensor]]:
    """(table, its ids [n]) of every part of a request."""
    view = memoryview(bytearray(frame))[HEADER.size :]  # torch wants memory it could write to
    if len(view) < COUNT.size:
        raise WireError(f"{len(view)} bytes do not say which rows are meant")
    (count,) = COUNT.unpack_from(view)
    if not 0 <= count <= num_tables:
        raise WireError(f"{count} parts of {num_tables} tables")
    first = COUNT.size + 16 * count
    pairs = parse_parts(view[COUNT.size : first], num_tables)
    if len(pairs) != count:
        raise WireError(f"{len(pairs)} parts; {count} were announced")
    ids = receive_ids(view[first:], [n for _, n in pairs], flags)
    return [(table, some) for (table, _), some in zip(pairs, ids)]


# ---- tensors ------------------------------------------------------------------------------------


def rows_message(header: MessageHeader, rows: Sequence[Tensor]) -> bytes:
    """The answer to a request for rows."""
    return b"".join((header.pack(), send_rows(rows, header.flags)))


def send_ids(pieces: Sequence[Tensor], flags: int) -> Any:
    """Ids of several tables as one frame."""
    return _send(_joined(pieces).contiguous().numpy(), flags)


def send_rows(pieces: Sequence[Tensor], flags: int) -> Any:
    """Rows of several tables as one frame."""
    joined = _joined([piece.reshape(-1) for piece in pieces])
    if flags & BFLOAT16:
        return _send(joined.to(torch.bfloat16).view(torch.int16).numpy(), flags)
    return _send(joined.contiguous().numpy(), flags)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(list(pieces)) if pieces else torch.empty(0)


def _send(values: np.ndarray, flags: int) -> Any:
    if flags & COMPRESSED:
        return zlib.compress(values.data if values.size else b"", 1)
    return values.data.cast("B") if values.size else b""


def receive_ids(frame: memoryview, counts: Sequence[int], flags: int) -> list[Tensor]:
    """The ids of each table: [n] each."""
    flat = _tensor(_expand(frame, sum(counts) * 8, flags), torch.int64, sum(counts))
    return [flat] if len(counts) == 1 else list(flat.split(list(counts)))


def receive_rows(
    frame: memoryview, counts: Sequence[int], dims: Sequence[int], flags: int
) -> list[Tensor]:
    """The rows of each table: [n, dim] each."""
    sizes = [n * dim for n, dim in zip(counts, dims)]
    total = sum(sizes)
    if flags & BFLOAT16:
        flat = _tensor(_expand(frame, total * 2, flags), torch.bfloat16, total).float()
    else:
        flat = _tensor(_expand(frame, total * 4, flags), torch.float32, total)
    pieces = [flat] if len(sizes) == 1 else flat.split(sizes)
    return [piece.view(n, dim) for piece, n, dim in zip(pieces, counts, dims)]


def receive_flat(frame: memoryview, count: int | None = None) -> Tensor:
    """Values that were sent as they are: [count], as many as there are where none is given."""
    return _tensor(frame, torch.float32, len(frame) // 4 if count is None else count)


def _expand(frame: memoryview, size: int, flags: int) -> memoryview | bytes | bytearray:
    """A frame decompressed, if it is compressed; never beyond the stated size."""
    if not flags & COMPRESSED:
        return frame
    if size > (max_bytes := 1 << 31):
        raise WireError(f"{size} bytes in a compressed frame; at most {max_bytes} are taken")
    worker = zlib.decompressobj()
    try:
        expanded = worker.decompress(frame, size or 1)  # 0 would stand for any number
        rest = worker.decompress(worker.unconsumed_tail, 1)
    except zlib.error:
        raise WireError("a compressed frame is damaged") from None
    if len(expanded) != size or rest or not worker.eof or worker.unused_data:
        raise WireError(f"a compressed frame that does not hold {size} bytes")
    return bytearray(expanded)  # torch wants memory that could be written to


def _tensor(frame: memoryview | bytes | bytearray, dtype: torch.dtype, count: int) -> Tensor:
    """A frame as a tensor without a copy: [count]; refused when its size does not fit."""
    if len(frame) != count * dtype.itemsize:
        raise WireError(
            f"a frame of {len(frame)} bytes; expected {count} values of {dtype.itemsize} bytes"
        )
    if count == 0:
        return torch.empty(0, dtype=dtype)
    tensor = torch.frombuffer(frame, dtype=dtype)
    if tensor.data_ptr() % dtype.itemsize:  # small frames lie wherever they were received
        tensor = torch.frombuffer(bytearray(frame), dtype=dtype)
    return tensor
