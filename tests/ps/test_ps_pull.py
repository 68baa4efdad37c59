"""Requests for rows: their bytes, what is refused, and native answers beside those of Python."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import cache

import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from ps_cluster import grads, joined, make_spec, pull, push, serving

import shoal.ps.server.answers
import shoal.ps.server.steps
import shoal.ps.worker.client
import shoal.ps.worker.link
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import row_reader
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.kernels.wire import native_outlet
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    Kind,
    MessageHeader,
    WireError,
    parse_pull,
    pull_message,
    rows_message,
)
from shoal.ps.worker.link import ArrivingRows, ServerError
from shoal.ps.worker.transfer import ServerRequest, cut

HEADER = struct.Struct("<4sHHIIQqQ")
TABLES = [  # dim, rows
    (4, None),
    (3, 50),
    (64, None),
    (1, 7),
]
LIMITS = [rows for _, rows in TABLES]


def header_of(kind: int = Kind.PULL, flags: int = 0) -> bytes:
    return HEADER.pack(b"SHOL", 7, kind, 3, flags, 77, -1, 12345)


def packed(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


# ---- bytes --------------------------------------------------------------------------------------


def test_bytes_of_a_request() -> None:
    header = MessageHeader(Kind.PULL, 3, 0, 77, -1, 12345)
    one, two = torch.tensor([5, -6, 7, 8]), torch.tensor([9])
    found = pull_message(header, [(2, one, 1, 3), (0, two, 0, 1), (1, two, 1, 1)])
    assert found == header_of() + packed(3, 2, 2, 0, 1, 1, 0) + packed(-6, 7, 9)
    assert pull_message(header, []) == header_of() + packed(0)
    small = pull_message(header._replace(flags=COMPRESSED), [(2, one, 0, 4)])
    head = header_of(flags=COMPRESSED) + packed(1, 2, 4)
    assert small[: len(head)] == head and zlib.decompress(small[len(head) :]) == packed(5, -6, 7, 8)


@pytest.mark.parametrize("flags", [0, COMPRESSED])
def test_requests_are_read_back(flags: int) -> None:
    ids = torch.tensor([5, -6, 7, 8])
    message = pull_message(MessageHeader(Kind.PULL, 0, flags), [(2, ids, 0, 3), (0, ids, 3, 4)])
    found = [(table, some.tolist()) for table, some in parse_pull(message, flags, 3)]
    assert found == [(2, [5, -6, 7]), (0, [8])]


@pytest.mark.parametrize(
    "body, message",
    [
        (b"", "0 bytes do not say which rows"),
        (bytes(7), "7 bytes do not say which rows"),
        (packed(-1), "-1 parts of 2 tables"),
        (packed(3, 0, 0, 1, 0, 0, 0), "3 parts of 2 tables"),
        (packed(1), "0 parts; 1 were announced"),
        (packed(1, 0), "8 bytes do not say which of 2 tables"),
        (packed(1, 2, 0), "table 2; there are 2"),
        (packed(1, -1, 0), "table -1; there are 2"),
        (packed(1, 0, -1), "-1 ids of table 0"),
        (packed(2, 0, 0, 0, 0), "named twice"),
        (packed(1, 0, 2, 5), "expected 2 values"),
        (packed(1, 0, 1, 5, 6), "expected 1 values"),
        (packed(1, 0, 1 << 29), "at most"),
    ],
)
def test_requests_that_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_pull(header_of() + body, 0, 2)


def test_ids_are_read_where_they_lie() -> None:
    """Of a tensor that has gaps a copy is made, so that no other memory is read."""
    every_other = torch.arange(10)[::2]
    share = ServerRequest(0, every_other, [5])
    assert share.ids.is_contiguous() and share.ids.tolist() == [0, 2, 4, 6, 8]


def test_large_requests_are_cut() -> None:
    shares = [ServerRequest(0, torch.arange(5), [3, 2]), ServerRequest(1, torch.arange(4), [4, 0])]
    assert cut(shares, [16, 8], 0, 40) == [[(0, 0, 2)], [(0, 2, 3), (1, 0, 3)], [(1, 3, 4)]]
    assert cut(shares, [16, 8], 1, 40) == [[(0, 3, 5), (1, 4, 4)]]
    assert cut(shares, [16, 1], 0, 40) == cut(shares, [16, 8], 0, 40)  # ids take room, too


# ---- native answers beside those of Python ------------------------------------------------------


def make_stores() -> list:
    stores = []
    for number, (dim, _) in enumerate(TABLES):  # a server's tables all grow
        table = Table(f"t{number}", dim, None, Init("uniform", 0.1))
        store = make_local(table, RowOptimizer("sgd"), 1, backend="native")
        store.push(torch.arange(0, 40, 3), torch.full((14, dim), 1.0 + number), 0.5)
        stores.append(store)
    return stores


def rows_by_hand(table: int, ids: Sequence[int]) -> bytes:
    """Initial values, less what `make_stores` taught."""
    made = Table(f"t{table}", TABLES[table][0], None, Init("uniform", 0.1))
    rows = initial_rows(made, 1, torch.tensor(ids, dtype=torch.int64))
    for place, number in enumerate(ids):
        if 0 <= number < 40 and number % 3 == 0:
            rows[place] -= torch.tensor(1.0 + table) * 0.5
    return rows.numpy().astype("<f4").tobytes()


def outside(table: int, ids: Sequence[int]) -> bool:
    """Whether a table has no row for one of them."""
    limit = LIMITS[table]
    return limit is not None and any(not 0 <= number < limit for number in ids)


# Without a compiler servers answer in Python, which the other tests here hold.
native = pytest.mark.skipif(not has_core(), reason="the native core is not built")
some_ids = st.lists(st.integers(0, 49) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=30)


@cache
def line() -> tuple[zmq.Socket, zmq.Socket]:
    """Both ends of a connection."""
    context = zmq.Context()
    one, two = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://rows")
    two.connect("inproc://rows")
    return one, two


def native_answer(request: bytes) -> bytes | None:
    """What native code sends for a request; None: it leaves that to Python."""
    one, two = line()
    sent = row_reader(STORES, LIMITS).send(native_outlet(one), b"asks", request, 100, 1 << 30)
    return two.recv_multipart()[1] if sent else None


@native
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), some_ids), max_size=4, unique_by=lambda p: p[0]))
def test_native_answers(parts: list[tuple[int, list[int]]]) -> None:
    told = [number for table, ids in parts for number in (table, len(ids))]
    request = header_of() + packed(len(parts), *told, *[i for _, ids in parts for i in ids])
    found = native_answer(request)
    if any(outside(table, ids) for table, ids in parts):
        assert found is None
    else:
        rows = b"".join(rows_by_hand(table, ids) for table, ids in parts)
        assert found == header_of(kind=100) + rows


@native
@settings(max_examples=250, deadline=None)
@given(st.data())
def test_native_code_reads_no_request_that_python_refuses(data: st.DataObject) -> None:
    """And reads every one that Python takes."""
    words = st.integers(-2, 5) | st.integers(-(1 << 63), (1 << 63) - 1)
    body = packed(*data.draw(st.lists(words, max_size=12)))
    body += data.draw(st.binary(max_size=9))
    request = header_of() + body[: data.draw(st.integers(0, len(body)))]
    try:
        wanted = parse_pull(request, 0, len(TABLES))
    except WireError:
        wanted = None
    found = native_answer(request)
    fine = wanted is not None and not any(outside(table, ids.tolist()) for table, ids in wanted)
    assert (found is not None) == fine


STORES = make_stores() if has_core() else []


@pytest.mark.parametrize("flags", [0, BFLOAT16, COMPRESSED, BFLOAT16 | COMPRESSED])
@pytest.mark.parametrize("core", [True, False])
def test_rows_of_two_servers(core: bool, flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without native code, in one message or in many: what was taught comes back."""
    if not core:
        monkeypatch.setattr(shoal.ps.server.steps, "row_reader", lambda stores, limits: None)
        monkeypatch.setattr(shoal.ps.worker.link, "native_arriving", lambda *_: None)
    spec = make_spec("sgd", servers=2, dense=[], tables=make_spec().tables)
    ids = list(range(40))
    taught = grads(3, 40, 4)
    with serving(2) as running, joined(running.addresses, spec, dense=False) as client:
        begin = pull(client, 0, ids)
        push(client, {0: (ids, taught)}, lr=0.5).wait()
        client.flags = flags
        exact = begin - taught * 0.5
        expected = exact.to(torch.bfloat16).float() if flags & BFLOAT16 else exact
        assert torch.equal(pull(client, 0, ids), expected)
        monkeypatch.setattr(shoal.ps.worker.client, "REQUEST_VALUES", 50)
        assert torch.equal(pull(client, 0, ids), expected)
        none = ServerRequest(0, torch.empty(0, dtype=torch.int64), [0, 0])
        assert client.start_pull([none]).wait()[0].shape == (0, 4)


# ---- answers -------------------------------------------------------------------------------------


def test_bytes_of_an_answer() -> None:
    rows = [torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])]
    found = rows_message(MessageHeader(Kind.OK, 3, 0, 77, -1, 12345), rows)
    assert found == header_of(100) + struct.pack("<3f", 1.0, -2.0, 0.5)


def answer(*values: float) -> memoryview:
    return memoryview(bytearray(header_of(100) + struct.pack(f"<{len(values)}f", *values)))


def make_arriving(core: bool, to: torch.Tensor, places: list[tuple[int, int]]) -> ArrivingRows:
    rows = ArrivingRows(MessageHeader(Kind.OK, 3, 0, 77, -1, 12345), to, places)
    if not core:
        rows.core = None
    return rows


either = pytest.mark.parametrize("core", [pytest.param(True, marks=native), False])


@either
def test_rows_go_to_their_places(core: bool) -> None:
    to = torch.zeros(8)
    make_arriving(core, to, [(5, 2), (0, 0), (1, 3)]).take(answer(1.0, 2.0, 3.0, 4.0, 5.0))
    assert to.tolist() == [0, 3, 4, 5, 0, 1, 2, 0]
    make_arriving(core, torch.empty(0), [(0, 0)]).take(answer())
    make_arriving(core, torch.empty(0), []).take(answer())


@either
@pytest.mark.parametrize("size", [0, 39, 40, 47, 51, 53, 56])
def test_answers_of_the_wrong_size_are_refused(core: bool, size: int) -> None:
    to = torch.zeros(3)
    with pytest.raises(WireError):
        make_arriving(core, to, [(0, 3)]).take(answer(1.0, 2.0, 3.0, 4.0)[:size])
    assert to.tolist() == [0, 0, 0]


@native
def test_another_answer_is_refused() -> None:
    to = torch.zeros(1)
    rows = make_arriving(True, to, [(0, 1)])
    for place in range(40):
        message = bytearray(answer(1.0))
        message[place] ^= 1
        with pytest.raises(WireError):
            rows.take(memoryview(message))
    assert to.tolist() == [0]


def test_too_many_rows_at_once_are_refused() -> None:
    """Whoever does not read its answers must not fill a server's memory."""
    with serving() as running, joined(running.addresses, make_spec("sgd")) as client:
        header = client.header(Kind.PULL)
        ids = torch.zeros((1 << 17) + 1, dtype=torch.int64)
        client.links[0].ask_rows(header, [(0, ids, 0, len(ids))])
        with pytest.raises(ServerError, match="524292 values of rows; at most 524288 are sent"):
            client.links[0].wait(header.sequence)


@pytest.mark.parametrize("core", [True, False])
def test_rows_among_other_answers(core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken while something else is waited for, and requests may be answered twice."""
    monkeypatch.setattr(shoal.ps.worker.client, "REQUEST_VALUES", 12)
    if not core:
        monkeypatch.setattr(shoal.ps.server.answers, "native_outlet", lambda socket: None)
    ids = torch.arange(30)
    with serving(1) as running, joined(running.addresses, make_spec("sgd")) as client:
        expected = pull(client, 0, ids.tolist())
        first, second = (client.start_pull([ServerRequest(0, ids, [30])]) for _ in range(2))
        link = client.links[0]
        for send in list(link.due.values()):
            send()
        assert len(client.stats()) == 1  # its answer comes after the rows
        assert all(torch.equal(one.wait()[0], expected) for one in (second, first))
        assert torch.equal(pull(client, 0, ids.tolist()), expected)
        assert not link.due and not link.rows and not link.came
        third = client.start_pull([ServerRequest(0, ids, [30])])
        header = client.header(Kind.STATS)
        link.ask(header, [])
        for send in list(link.due.values()):
            send()
        assert torch.equal(third.wait()[0], expected)
        assert torch.equal(pull(client, 0, ids.tolist()), expected)  # the first answer is kept
        assert link.wait(header.sequence)


def test_rows_without_a_pending_pull_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory lives until they came; an error instead of rows is told."""
    with serving(1) as running, joined(running.addresses, make_spec("sgd")) as client:
        client.start_pull([ServerRequest(0, torch.arange(30), [30])])
        assert client.stats() and not client.links[0].rows
        unknown = client.start_pull([ServerRequest(0, torch.arange(3), [3])])
        unknown.wait()
        monkeypatch.setattr(client, "session", 5)
        with pytest.raises(ServerError):
            client.start_pull([ServerRequest(0, torch.arange(3), [3])]).wait()
        assert not client.links[0].due and not client.links[0].rows
