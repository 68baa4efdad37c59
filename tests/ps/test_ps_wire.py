"""Messages between workers and servers: what is taken, and that all else is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ps.spec import Spec, TableSpec, parse_spec
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    WITH_DENSE,
    Kind,
    MessageHeader,
    WireError,
    numbers,
    numbers_frame,
    parse_header,
    parse_json,
    parse_parts,
    parts_frame,
    receive_ids,
    receive_rows,
    send_ids,
    send_rows,
)

DIMS = [4, 1, 7]


def frame(sent: object) -> memoryview:
    """What was sent, as it arrives."""
    return memoryview(bytearray(sent))  # type: ignore[call-overload]


# ---- header -------------------------------------------------------------------------------------


def header_bytes(**wrong: object) -> bytes:
    """A header packed by hand, field by field."""
    fields = {
        "magic": b"SHOL",
        "version": 7,
        "kind": 2,
        "worker": 7,
        "flags": 5,
        "sequence": 1 << 63,
        "step": -1,
        "session": (1 << 64) - 1,
    }
    fields |= wrong
    return struct.pack("<4sHHIIQqQ", *fields.values())


def test_header_layout() -> None:
    expected = MessageHeader(Kind.PULL, 7, BFLOAT16 | WITH_DENSE, 1 << 63, -1, (1 << 64) - 1)
    assert parse_header(header_bytes()) == expected
    assert expected.pack() == header_bytes()
    assert len(header_bytes()) == 40
    answer = expected.answer(Kind.ERROR)
    assert (answer.kind, answer.flags, answer.sequence) == (Kind.ERROR, 0, 1 << 63)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"magic": b"HTTP"}, "not a message of shoal"),
        ({"version": 1}, "protocol version 1; this server speaks 7: install the same version"),
        ({"kind": 0}, "unknown kind of message 0"),
        ({"kind": 16}, "unknown kind of message 16"),
        ({"kind": 65535}, "unknown kind of message 65535"),
        ({"flags": 32}, "unknown flags 0x20"),
        ({"flags": 1 << 31}, "unknown flags 0x80000000"),
    ],
)
def test_header_refusals(wrong: dict, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_header(header_bytes(**wrong))


@pytest.mark.parametrize(
    "data", [b"", b"SHOL", header_bytes()[:-1], header_bytes(kind=Kind.PUSH) + b"\0"]
)
def test_header_of_the_wrong_size(data: bytes) -> None:
    with pytest.raises(WireError, match=f"a header of {len(data)} bytes; it must be 40"):
        parse_header(data)


# ---- text and numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe{}", b"[1]", b"null", b"1", b'{"a": }', b"[" * 100_000]
)
def test_text_that_is_no_object(data: bytes) -> None:
    with pytest.raises(WireError, match="JSON"):
        parse_json(data)


def test_numbers() -> None:
    assert numbers(numbers_frame(0.5, -2.0), 2) == (0.5, -2.0)
    for size, count in ((15, 2), (24, 2), (0, 1)):
        with pytest.raises(WireError, match=f"a frame of {size} bytes; expected {count} numbers"):
            numbers(bytes(size), count)


def test_ids_at_any_place_in_memory() -> None:
    """Small frames lie wherever they were received."""
    raw = bytearray(b"x" + np.array([1, 2], dtype="<i8").tobytes())
    assert receive_ids(memoryview(raw)[1:], [2], 0)[0].tolist() == [1, 2]


# ---- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [[], [(0, 0)], [(2, 5)], [(2, 1), (0, 3), (1, 0)]])
def test_parts(pairs: list[tuple[int, int]]) -> None:
    assert parse_parts(parts_frame(pairs), len(DIMS)) == pairs


@pytest.mark.parametrize(
    "numbers, message",
    [
        ([0], "do not say which of 3 tables"),
        ([0, 1, 2], "do not say which of 3 tables"),
        ([0, 1, 1, 1, 2, 1, 0, 1], "do not say which of 3 tables"),
        ([3, 1], "table 3; there are 3"),
        ([-1, 1], "table -1"),
        ([1 << 62, 1], "there are 3"),
        ([0, -1], "-1 ids"),
        ([0, -(1 << 63)], "ids of table 0"),
        ([0, (1 << 28) + 1], "at most 268435456"),
        ([0, (1 << 63) - 1], "at most 268435456"),
        ([0, 1 << 28, 1, 1], "268435457 ids in one message"),
        ([0, 1, 0, 1], "a table is named twice"),
    ],
)
def test_parts_refusals(numbers: list[int], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_parts(np.array(numbers, dtype="<i8").tobytes(), len(DIMS))


def test_parts_that_are_no_numbers() -> None:
    with pytest.raises(WireError, match="15 bytes do not say"):
        parse_parts(bytes(15), len(DIMS))


# ---- ids and rows -------------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(INT64, max_size=9), min_size=1, max_size=4), st.booleans())
def test_ids_there_and_back(tables: list[list[int]], compressed: bool) -> None:
    flags = COMPRESSED if compressed else 0
    sent = send_ids([torch.tensor(ids, dtype=torch.int64) for ids in tables], flags)
    found = receive_ids(frame(sent), [len(ids) for ids in tables], flags)
    assert [one.tolist() for one in found] == tables
    assert all(one.dtype == torch.int64 for one in found)


@pytest.mark.parametrize("flags", [0, COMPRESSED, BFLOAT16, BFLOAT16 | COMPRESSED])
@pytest.mark.parametrize("counts", [(2, 3, 1), (0, 3, 0), (0, 0, 0), (5,)])
def test_rows_there_and_back(counts: Sequence[int], flags: int) -> None:
    generator = torch.Generator().manual_seed(1)
    dims = DIMS[: len(counts)]
    rows = [torch.randn(n, dim, generator=generator) for n, dim in zip(counts, dims)]
    sent = send_rows(rows, flags)
    if not flags & COMPRESSED:
        values = sum(n * dim for n, dim in zip(counts, dims))
        assert len(sent) == values * (2 if flags & BFLOAT16 else 4)
    found = receive_rows(frame(sent), counts, dims, flags)
    for one, other, dim in zip(rows, found, dims):
        assert other.dtype == torch.float32 and other.shape == (len(one), dim)
        if not flags & BFLOAT16:
            assert torch.equal(other, one)
        elif len(one):
            # bfloat16 keeps 8 bits of the fraction: an error of at most one part in 256, and
            # the lower half of the bits is gone.
            assert torch.allclose(other, one, rtol=2**-8, atol=0)
            assert not torch.equal(other, one)
            assert (other.view(torch.int32) & 0xFFFF).eq(0).all()


def test_no_tables_at_all() -> None:
    for flags in (0, COMPRESSED):
        assert receive_ids(frame(send_ids([], flags)), [], flags) == []
        assert receive_rows(frame(send_rows([], flags)), [], [], flags) == []


def test_bytes_on_the_wire() -> None:
    """Little endian, table after table, whatever machine this is."""
    ids = send_ids([torch.tensor([1, -2]), torch.tensor([3])], 0)
    assert bytes(ids) == struct.pack("<3q", 1, -2, 3)
    rows = send_rows([torch.tensor([[1.5, -2.0]]), torch.tensor([[0.25]])], 0)
    assert bytes(rows) == struct.pack("<3f", 1.5, -2.0, 0.25)
    half = send_rows([torch.tensor([[1.5, -2.0]])], BFLOAT16)
    assert bytes(half) == struct.pack("<2f", 1.5, -2.0)[2:4] + struct.pack("<2f", 1.5, -2.0)[6:8]


@pytest.mark.parametrize("flags", [0, BFLOAT16])
@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
def test_rows_of_the_wrong_size(size: int, flags: int) -> None:
    with pytest.raises(WireError, match=f"a frame of {size} bytes"):
        receive_rows(memoryview(bytes(size)), [1], [4], flags)


@pytest.mark.parametrize("size", [0, 7, 8, 24])
def test_ids_of_the_wrong_size(size: int) -> None:
    with pytest.raises(WireError, match=f"a frame of {size} bytes"):
        receive_ids(memoryview(bytes(size)), [1, 1], 0)


# ---- compressed frames --------------------------------------------------------------------------

GOOD = zlib.compress(struct.pack("<4q", 1, 2, 3, 4))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 40,
        GOOD[:-1],  # its checksum is cut
        GOOD[: len(GOOD) // 2],
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
        GOOD + b"more",
        GOOD + GOOD,
        zlib.compress(struct.pack("<3q", 1, 2, 3)),
        zlib.compress(struct.pack("<5q", 1, 2, 3, 4, 5)),
        zlib.compress(bytes(33)),
        zlib.compress(b""),
    ],
)
def test_compressed_frames_that_are_wrong(data: bytes) -> None:
    with pytest.raises(WireError, match="compressed frame"):
        receive_ids(memoryview(data), [4], COMPRESSED)
    assert receive_ids(memoryview(GOOD), [3, 1], COMPRESSED)[1].tolist() == [4]


@pytest.mark.parametrize("data", [b"junk", zlib.compress(b"x"), zlib.compress(bytes(1 << 20))])
def test_compressed_frames_that_must_be_empty(data: bytes) -> None:
    with pytest.raises(WireError, match="compressed frame"):
        receive_ids(memoryview(data), [0], COMPRESSED)


def test_a_bomb_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros in 64 KiB: never more is made of it than the message states."""
    press = zlib.compressobj(9)
    block = bytes(1 << 20)
    bomb = b"".join(press.compress(block) for _ in range(64)) + press.flush()
    made: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.real = real()

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            found = self.real.decompress(data, most)
            made.append(len(found))
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    with pytest.raises(WireError, match="does not hold 800 bytes"):
        receive_ids(memoryview(bomb), [100], COMPRESSED)
    assert sum(made) <= 801
    # What it states is bounded too: ids are counted, and rows may be wide.
    made.clear()
    with pytest.raises(WireError, match="at most 2147483648"):
        receive_rows(memoryview(bomb), [1 << 20], [1 << 20], COMPRESSED)
    assert made == []


# ---- the model ----------------------------------------------------------------------------------

TABLE = {"name": "a", "dim": 4, "rows": 10, "init": "uniform", "scale": 0.1, "padding": None}
MODEL = {
    "seed": 1,
    "workers": 1,
    "servers": 1,
    "mode": "sync",
    "staleness": 1,
    "tables": [TABLE],
    "optimizer": {"name": "sgd", "lr": 0.1},
    "dense": [[2, 3]],
}


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"mode": "gossip"}, "mode"),
        ({"workers": 0}, "workers"),
        ({"workers": "2"}, "workers"),
        ({"extra": 1}, "extra"),
        ({"tables": [TABLE, TABLE]}, "two tables have the same name"),
        ({"tables": [{**TABLE, "dim": 0}]}, "tables.0.dim"),
        ({"tables": [{**TABLE, "rows": 0}]}, "tables.0.rows"),
        ({"tables": [{**TABLE, "rows": 1 << 63}]}, "tables.0.rows"),
        ({"tables": [{**TABLE, "padding": 1 << 63}]}, "tables.0.padding"),
        ({"tables": [{**TABLE, "scale": float("nan")}]}, "tables.0.scale"),
        ({"tables": [{**TABLE, "name": "../../etc/x"}]}, "tables.0.name"),
        ({"tables": [{**TABLE, "name": "a\0"}]}, "tables.0.name"),
        ({"tables": [{**TABLE, "name": ""}]}, "tables.0.name"),
        ({"dense": [[-1, 3]]}, "dense.0.0"),
        ({"dense": [[1 << 20, 1 << 20]]}, "impossible shapes"),
        ({"dense": [[0, 1 << 70]]}, "dense.0.1"),
        ({"dense": [[1] * 17]}, "dense.0: "),
        ({"optimizer": {"name": "sgd", "lr": -1.0}}, "optimizer.lr"),
    ],
)
def test_models_that_are_refused(wrong: dict, message: str) -> None:
    assert isinstance(parse_spec(MODEL), Spec)
    with pytest.raises(WireError, match=message):
        parse_spec({**MODEL, **wrong})


def test_dense_parameters_are_spread_over_servers() -> None:
    spec = parse_spec({**MODEL, "servers": 3, "dense": [[10], [2, 2], [3], [], [9], [3, 1]]})
    assert spec.sizes == [10, 4, 3, 1, 9, 3]
    # 10 -> 0, 9 -> 1, 4 -> 2, 3 -> 2 (4 is least), 3 -> 2 (7 is least), 1 -> 1 (9, 10 and 10)
    assert spec.owners() == [0, 2, 2, 1, 1, 2]
    assert TableSpec.model_validate(TABLE).table().rows is None
