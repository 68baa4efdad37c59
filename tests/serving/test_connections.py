"""What one connection to a service may take: real sockets, and the memory of a real process."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from served import Served
from small_artifact import MEAN, write_artifact
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shoal.serving.http.connection import PORTION, Bounds, Connection
from shoal.serving.http.guard import Guard
from shoal.serving.http.listening import BoundedServer, listen

GET = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"
BOUNDS = Bounds(head_seconds=20.0, read_seconds=0.5, idle_seconds=1.0)


class Running:
    """A service in a thread, which answers a path with `paths` bytes of it."""

    def __init__(self, bounds: Bounds = BOUNDS):
        guard = Guard()

        async def echo(request: Request) -> Response:
            body = await guard.body(request, 1 << 20, 20.0) if request.method == "POST" else b""
            return PlainTextResponse(request.scope["path"] + body.decode())

        async def large(request: Request) -> Response:
            return PlainTextResponse("x" * 100_000)

        async def slow(request: Request) -> Response:
            await asyncio.sleep(1.0)  # the body is not read meanwhile
            return PlainTextResponse("late")

        route = [
            Route("/slow", guard.guarded(slow), methods=["POST"]),
            Route("/large", guard.guarded(large)),
            Route("/{number}", guard.guarded(echo), methods=["GET", "POST"]),
        ]
        self.listen(Starlette(routes=route), guard, bounds)

    def listen(self, app: Starlette, guard: Guard, bounds: Bounds) -> None:
        self.server = BoundedServer.around(app, guard, bounds)
        listener = listen("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.thread = threading.Thread(target=self.server.run, args=([listener],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    def ask(self, data: bytes) -> bytes:
        """What comes back for this, until the service ends the connection."""
        with self.connect() as link:
            link.sendall(data)
            return until_closed(link)

    @property
    def connections(self) -> list[Connection]:
        return [one for one in self.server.server_state.connections if isinstance(one, Connection)]


def until_closed(link: socket.socket) -> bytes:
    found = b""
    while part := link.recv(1 << 16):
        found += part
    return found


def send_what_fits(link: socket.socket, data: bytes) -> int:
    """Bytes that are taken without waiting; -1 where the other side has ended the connection."""
    link.setblocking(False)
    try:
        return link.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running() as found:
        yield found


def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    requests = b"".join(GET % number for number in range(500))
    last = b"GET /last HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found = running.ask(requests + last)
    assert found.count(b"HTTP/1.1 200 OK\r\n") == 501
    places = [found.index(b"\r\n\r\n/%d" % number) for number in range(500)]
    assert places == sorted(places) and found.endswith(b"/last")


def test_requests_that_come_in_pieces_and_with_bodies(running: Running) -> None:
    head = b"POST /%d HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    stated = head % 1 + b"content-length: 3\r\n\r\none"
    chunked = head % 2 + b"transfer-encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n"
    with running.connect() as link:
        for place in range(len(stated + chunked)):
            link.sendall((stated + chunked)[place : place + 1])
        link.shutdown(socket.SHUT_WR)
        found = until_closed(link)
    assert found.count(b" 200 OK") == 2 and b"/1one" in found and found.endswith(b"/2two")
    large = head % 3 + b"content-length: 1000000\r\nconnection: close\r\n\r\n" + b"y" * 1_000_000
    assert running.ask(large).endswith(b"y" * 1_000_000)


def test_other_forms_of_requests(running: Running) -> None:
    assert b"connection: close" in running.ask(b"GET /1 HTTP/1.0\r\nhost: localhost\r\n\r\n")
    end = b"host: localhost\r\nconnection: close\r\n\r\n"
    found = running.ask(b"HEAD /large HTTP/1.1\r\n" + end)
    assert b"content-length: 100000\r\n" in found and found.endswith(b"\r\n\r\n")
    waits = b"POST /1 HTTP/1.1\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n"
    with running.connect() as link:
        link.sendall(waits + b"content-length: 2\r\n" + end)
        assert link.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(b"hi")
        assert until_closed(link).endswith(b"/1hi")
    # An upgrade to another protocol is not made: the request is answered, and that is all.
    upgrade = b"GET /1 HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert running.ask(upgrade).endswith(b"/1")
    assert b" 400 Bad Request" in running.ask(GET % 5 + b"nonsense\r\n\r\n")
    assert running.ask(GET % 5 + b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("before", [b"", GET % 1], ids=["alone", "behind another"])
@pytest.mark.parametrize("pieces", [1, 20])
def test_a_head_has_at_most_64_KiB(running: Running, before: bytes, pieces: int) -> None:
    for size, status in ((60_000, b" 200 OK"), (66_000, b" 431 "), (100_000, b" 431 ")):
        head = b"GET /2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
        data = before + head + b"y" * size + b"\r\n\r\n"
        step = -(-len(data) // pieces)
        with running.connect() as link:
            for first in range(0, len(data), step):
                if send_what_fits(link, data[first : first + step]) < 0:
                    break
                time.sleep(0.01 if pieces > 1 else 0.0)
            link.settimeout(60)
            found = b""
            try:
                found = until_closed(link)
            except ConnectionResetError:  # it was ended while more was on its way
                continue
        assert status in found.rpartition(b"HTTP/1.1")[2], (size, found[:200])


def test_a_header_with_a_line_break_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """As an answer that repeats what somebody sent might have."""
    guard = Guard()

    async def split(request: Request) -> Response:
        answer = PlainTextResponse("x")
        answer.raw_headers.append((b"x", b"1\r\nset-cookie: a=b"))
        return answer

    running = Running.__new__(Running)
    running.listen(Starlette(routes=[Route("/", guard.guarded(split))]), guard, BOUNDS)
    with running:
        assert b"set-cookie" not in running.ask(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert "was not answered" in caplog.text


def test_a_head_must_come_in_time() -> None:
    with Running(Bounds(head_seconds=0.3)) as running, running.connect() as link:
        link.sendall(GET % 1)
        assert link.recv(1 << 16).endswith(b"/1")
        link.sendall(b"GET /2 HT")
        assert until_closed(link).startswith(b"HTTP/1.1 408 ")
        assert running.ask(b"GET /2 HT").startswith(b"HTTP/1.1 408 ")
        assert running.ask(b"") == b""


def send_until_ended(link: socket.socket, data: bytes, most: int) -> int:
    """Send data again and again; the bytes that were taken before the other side ended it."""
    sent = 0
    try:
        while sent < most:
            link.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent


@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"0\r\n", b"x: " + b"y" * 1000 + b"\r\n"), (b"0\r\nx: ", b"y" * 1000), (b"1;", b"y" * 1000)],
    ids=["many trailers", "one trailer", "extension of a chunk"],
)
def test_what_stands_between_parts_of_a_body_has_an_end(
    running: Running, begin: bytes, more: bytes
) -> None:
    """A stranger sends trailers without end, to a request that nobody has answered yet."""
    head = b"POST /1 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with running.connect() as link:
        link.sendall(head + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n" + begin)
        most = 1 << 25
        assert send_until_ended(link, more * 64, most) < most
    part = b"1;%s\r\ny\r\n" % (b"z" * 50)  # a body of many parts may have as many of these
    chunked = head + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + part * 5000
    assert running.ask(chunked + b"0\r\nx: y\r\n\r\n").endswith(b"/1" + b"y" * 5000)


def test_a_trailer_is_no_header(running: Running) -> None:
    head = b"POST /1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    body = (
        b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\ncontent-type: application/json\r\n\r\n"
    )
    assert b" 415 Unsupported Media Type\r\n" in running.ask(head + body)


def test_the_word_that_a_body_is_awaited(running: Running) -> None:
    """Whatever its letters; a client of HTTP/1.0 would take it for the answer."""
    for version, expected in ((b"1.1", b" 100 Continue\r\n\r\n"), (b"1.0", b"")):
        head = b"POST /1 HTTP/%s\r\nhost: localhost\r\nexpect: 100-Continue\r\n" % version
        head += b"content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
        with running.connect() as link:
            link.sendall(head)
            found = link.recv(100) if expected else b""
            assert found.endswith(expected)
            link.sendall(b"hi")
            found = until_closed(link)
            assert found.startswith(b"HTTP/1.1 200 OK") and found.endswith(b"/1hi")


def test_an_idle_connection_is_ended(running: Running) -> None:
    assert running.ask(GET % 1).endswith(b"/1")  # by the service, since this side does not


def test_300_silent_connections_keep_nobody_waiting() -> None:
    """Some never say a word, others stop in the middle of a head; all are ended in time."""
    with Running(Bounds(head_seconds=1.0, read_seconds=0.5, idle_seconds=1.0)) as running:
        links = [running.connect() for _ in range(300)]
        for link in links[::2]:
            link.sendall(GET[:9])
        begun = time.monotonic()
        assert running.ask(GET % 1).endswith(b"/1")
        assert time.monotonic() - begun < 30  # of a busy machine; alone it takes a second
        for link in links:
            with link:
                assert b"200 OK" not in until_closed(link)


def test_few_requests_wait_and_the_client_with_them(running: Running) -> None:
    """At most so many, and those of the portion that was parsed last."""
    data = b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with running.connect() as link:
        for _ in range(200):
            send_what_fits(link, data * 1000)
            for connection in running.connections:
                most = connection.bounds.unanswered + PORTION // len(data) + 1
                assert len(connection._waiting) <= most
                assert len(connection._unparsed) <= 1 << 19
                assert connection.transport.get_write_buffer_size() < 1 << 18


def test_a_body_that_is_not_read_is_bounded(running: Running) -> None:
    """What is parsed of it, at most a portion beyond the bound; the client waits with the rest."""
    head = b"POST /slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30000000\r\n\r\n"
    with running.connect() as link:
        link.sendall(head)
        most = 0
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            send_what_fits(link, b"y" * 100_000)
            for connection in running.connections:
                exchange = connection._answering
                most = max(most, 0 if exchange is None else len(exchange.body))
                assert len(connection._unparsed) <= 1 << 19
            time.sleep(0.01)
    assert BOUNDS.body_bytes <= most <= BOUNDS.body_bytes + PORTION


def test_a_client_that_does_not_read_is_dropped(running: Running) -> None:
    """One that reads slowly, but does, gets all."""
    data = b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100
    with running.connect() as link:
        deadline = time.monotonic() + 60
        while send_what_fits(link, data) >= 0:
            assert time.monotonic() < deadline, "it may wait for ever"
            time.sleep(0.01)


def test_clients_that_leave_while_they_pipeline(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(60):
            link = running.connect()
            link.sendall((GET % 1) * 200 + b"GET /large HTTP/1.1\r\n\r\n" * (number % 9))
            if number % 3 == 0:  # with a reset, in the middle of an answer
                link.recv(100)
            link.close()
        assert running.ask(GET % 3).endswith(b"/3")
    assert [record.getMessage() for record in caplog.records] == []


TEST_OF_BOUND = {
    "head_bytes": test_a_head_has_at_most_64_KiB,
    "head_seconds": test_a_head_must_come_in_time,
    "unanswered": test_few_requests_wait_and_the_client_with_them,
    "body_bytes": test_a_body_that_is_not_read_is_bounded,
    "outgoing_bytes": test_few_requests_wait_and_the_client_with_them,
    "read_seconds": test_a_client_that_does_not_read_is_dropped,
    "idle_seconds": test_an_idle_connection_is_ended,
}


def test_every_bound_has_a_test() -> None:
    assert TEST_OF_BOUND.keys() == {bound.name for bound in fields(Bounds)}


@pytest.mark.slow
def test_memory_of_a_service_whose_clients_never_read(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "artifact", MEAN)
    token = {"SHOAL_TOKEN": "a token of some length"}
    with Served(artifact, tmp_path, **token) as served:

        def memory() -> int:
            lines = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024

        before = memory()
        links = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(60)]
        data = b"GET /v1/examples HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000
        end, highest = time.monotonic() + 15, 0
        while time.monotonic() < end:
            for link in links:
                send_what_fits(link, data)
            highest = max(highest, memory())
            time.sleep(0.05)
        assert served.call("/health")[0] == 200
        assert highest - before < 150, f"{before} -> {highest} MB"
        for link in links:
            link.close()
        assert served.call("/health")[0] == 200
        assert "Traceback" not in served.log.read_text()
