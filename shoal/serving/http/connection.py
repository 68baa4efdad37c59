"""Connection: HTTP/1.1 of one client, parsed by httptools, answered by an ASGI application.

From bytes to a request and back, in the order of this file:

    Connection.data_received    bytes of the client
    Connection.proceed          parses them in small portions, while there is room
    Connection.on_...           what the parser finds; a whole head makes an `Exchange`
    Connection._start           the exchange's turn: pipelined requests are answered in order
    Exchange.run                calls the application with `receive` (the body) and `send`
    Exchange.send               writes the answer when the client has read those before
    Connection.finish_exchange  the next request's turn

A client may be a stranger, so all that one connection may hold is bounded, by the table `Bounds`.
Once enough requests wait, the rest stays unparsed and nothing more is read, so TCP makes the client
wait. A client that does not read its answers is dropped.

uvicorn makes one `Connection` for each client (`uvicorn.Config(http=...)`, asyncio's public
protocol) and ends them by `shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

log = logging.getLogger("shoal")
PORTION = 4096  # bytes that are parsed at a time
REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True)
class Bounds:
    """What one connection may take, of `shoal serve` as of `shoal board`."""

    head_bytes: int = 1 << 16  # of a request: its URL and headers; as many between parts of a body
    head_seconds: float = 10.0  # in which a head must be here
    unanswered: int = 16  # pipelined requests that wait, before no more are parsed
    body_bytes: int = 1 << 16  # of bodies that are not read yet, before no more are parsed
    outgoing_bytes: int = 1 << 16  # of answers that the client has not read, before it must
    read_seconds: float = 20.0  # in which it must read half as many, else it is dropped
    idle_seconds: float = 30.0  # between two requests


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        bounds: Bounds | None = None,
    ):
        self.app = config.loaded_app
        self.server = server_state
        self.bounds = bounds or Bounds()
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.closed = False
        self._scope: dict[str, Any] = {}  # what all requests share
        self._parser = httptools.HttpRequestParser(self)
        self._receiving: Exchange | None = None  # whose body is being parsed
        self._answering: Exchange | None = None  # that the application answers
        self._waiting: deque[Exchange] = deque()
        self._unparsed = bytearray()
        # Of the head that is being parsed: bytes so far (None: none is), and what it has.
        self._head_bytes: int | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._headers_bytes = 0  # of the headers
        self._head_too_large = False
        # Of extensions of chunks and trailers, since the last part of a body.
        self._overhead_bytes = 0
        self._paused = self._parsing = False  # reading is paused; `proceed` is running
        self._ending = False  # no request will be taken beyond those that are here
        self._refusal = b""  # sent at the end, to a client that sent no request
        self._writable = asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None  # for a head, or the next request
        self._timing_head = False
        self._read_timer: asyncio.TimerHandle | None = None  # for the client to read

    # ---- what asyncio and uvicorn call ----------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.bounds.outgoing_bytes)
        self.server.connections.add(self)  # type: ignore[arg-type]
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
            "root_path": "",
        }
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, however: `receive` and `send` let the application know."""
        self.closed = True
        self.server.connections.discard(self)
        self._stop_timer()
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._waiting.clear()
        self._unparsed.clear()
        self._writable.set()
        if self._answering is not None:
            self._answering.wake()

    def data_received(self, data: bytes) -> None:
        if not self._refusal:
            self._unparsed += data
            self.proceed()

    def eof_received(self) -> bool:
        """The client sends no more; what it asked is answered."""
        self._ending = True
        self.proceed()
        encrypted = self._scope["scheme"] == "https"  # asyncio ends these with either answer
        return self._answering is not None and not encrypted

    def pause_writing(self) -> None:
        self._writable.clear()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._writable.set()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def shutdown(self) -> None:
        """End, once what runs is answered."""
        self._ending = True
        self._waiting.clear()
        if self._answering is None:
            self.transport.close()
        else:
            self._answering.keep_alive = False

    # ---- parsing --------------------------------------------------------------------------------

    def proceed(self) -> None:
        """Parse what is allowed of what has come; then read on, or let the client wait."""
        if self._parsing or self.closed:
            return
        self._parsing = True
        try:
            while self._unparsed and self._has_room() and not self.transport.is_closing():
                self._parse_portion()
        except httptools.HttpParserUpgrade:  # no other protocol is spoken here
            self._stop_parsing()
        except httptools.HttpParserError:
            self._refuse(400)
        finally:
            self._parsing = False
        if self.transport.is_closing():
            return
        is_full = bool(self._unparsed) or not self._has_room()
        if is_full != self._paused:
            self._paused = is_full
            if is_full:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        if self._head_bytes is not None and not self._timing_head:
            self._time_head()
        if self._ending and not is_full and self._receiving is not None:
            self._give_up_body()

    def _parse_portion(self) -> None:
        """Parse the next bytes. Refuse a head that is too large, and extensions of chunks and
        trailers of a body that are.
        """
        portion = bytes(self._unparsed[:PORTION])
        del self._unparsed[: len(portion)]
        was_head = self._head_bytes is not None
        self._overhead_bytes += len(portion)  # `on_body` sets it to 0
        self._parser.feed_data(portion)
        if was_head and self._head_bytes is not None:
            self._head_bytes += len(portion)
        if self._receiving is None:
            self._overhead_bytes = 0
        largest = max(self._head_bytes or 0, self._overhead_bytes)
        if self._head_too_large or largest > self.bounds.head_bytes:
            self._refuse(431)

    def _has_room(self) -> bool:
        """True while another portion may be parsed."""
        unread = 0 if self._answering is None else len(self._answering.body)
        if self._waiting:
            if len(self._waiting) >= self.bounds.unanswered:
                return False
            unread += sum(len(exchange.body) for exchange in self._waiting)
        return unread < self.bounds.body_bytes

    # What the parser finds, in the order of a request:

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        self._headers_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._receiving is None:  # else a trailer, which says nothing that counts here
            self._headers.append((name.lower(), value))
            self._headers_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """A head is here: its exchange begins, or waits for those before it."""
        self._head_bytes = None
        self._stop_timer()
        self._head_too_large |= len(self._url) + self._headers_bytes > self.bounds.head_bytes
        if self._head_too_large or (self._ending and self._refusal):
            return
        exchange = Exchange(self)
        exchange.keep_alive = self._parser.should_keep_alive()
        version = self._parser.get_http_version()
        expected = [value.lower() for name, value in self._headers if name == b"expect"]
        exchange.expects_continue = b"100-continue" in expected and version == "1.1"
        url = httptools.parse_url(self._url)
        path = url.path or b"/"
        text = path.decode("ascii")
        exchange.scope = {
            **self._scope,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "whole_body": exchange.whole_body,
        }
        self._receiving = exchange
        if self._answering is None:
            self._start(exchange)
        else:
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        if self._receiving is not None:
            self._receiving.take(body)

    def on_message_complete(self) -> None:
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.finish()
            if receiving.answered:  # it was answered before its body was here
                self._continue()

    # ---- answering ------------------------------------------------------------------------------

    def _start(self, exchange: Exchange) -> None:
        """Let the application answer; its body may still be on the way."""
        self._answering = exchange
        task = self.loop.create_task(exchange.run(self.app))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)

    async def writable(self) -> None:
        """Wait until the client has read enough of what was sent, or is gone."""
        if not self._writable.is_set():
            await self._writable.wait()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def finish_exchange(self, exchange: Exchange) -> None:
        """An answer is sent: the next request's turn."""
        self.server.total_requests += 1
        if not exchange.keep_alive:
            self._answering = None
            self.transport.close()
        elif exchange.body_complete:
            self._continue()
        else:  # the rest of its body is read and dropped; it must come in time
            exchange.body.clear()
            self._restart_timer(self.bounds.head_seconds, self.transport.close)
            self.proceed()

    def _continue(self) -> None:
        """Answer the next request, or wait for it."""
        self._answering = None
        if self._waiting:
            self._start(self._waiting.popleft())
        self.proceed()
        if self._answering is None and not self._parsing:
            if self._ending:
                self.write(self._refusal)
                self.transport.close()
            elif self._head_bytes is None:
                self._restart_timer(self.bounds.idle_seconds, self.transport.close)

    # ---- ends -----------------------------------------------------------------------------------

    def drop(self) -> None:
        """End the connection at once; what was not sent yet is lost."""
        self._waiting.clear()
        self.transport.abort()

    def _stop_parsing(self) -> None:
        """Take no more of this client than what is here."""
        self._ending = True
        self._unparsed.clear()
        last = self._waiting[-1] if self._waiting else self._answering
        if last is not None:
            last.keep_alive = False

    def _refuse(self, status: int) -> None:
        """End a connection over what is no request; those before it are answered first."""
        self._stop_timer()
        self._ending = True
        self._head_bytes = None
        self._unparsed.clear()
        head = b"HTTP/1.1 %d %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        self._refusal = head % (status, REASONS[status])
        if self._receiving is not None:
            self._give_up_body()
        elif self._answering is None:
            self.write(self._refusal)
            self.transport.close()

    def _give_up_body(self) -> None:
        """The rest of a body will not come: stop waiting for it."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None and receiving is self._answering:
            if not receiving.head_sent:
                self.write(self._refusal)
            self.transport.close()
        elif receiving is not None:
            self._waiting.pop()

    # ---- time -----------------------------------------------------------------------------------

    def _time_head(self) -> None:
        """From now on the head of the next request must be here in time."""
        self._restart_timer(self.bounds.head_seconds, self._end_late)
        self._timing_head = True

    def _end_late(self) -> None:
        if self._unparsed:  # the client is not late: what it sent waits here
            self._time_head()
        elif self._head_bytes is not None:
            self._refuse(408)
        else:
            self.transport.close()

    def _await_reader(self, unread: int) -> None:
        """Drop the client unless some of what it has not read is read in time."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if unread - left < self.bounds.outgoing_bytes // 2:
                self.drop()
            else:
                self._await_reader(left)

        self._read_timer = self.loop.call_later(self.bounds.read_seconds, look)

    def _restart_timer(self, seconds: float, then: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        self._timing_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Exchange:
    """One request and its answer, as ASGI has them: `scope`, `receive`, `send`."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.scope: dict[str, Any] = {}
        self.body = bytearray()  # what has come of it and is not read yet
        self.body_complete = False
        self.keep_alive = True
        self.expects_continue = False
        self.answered = False
        self.head_sent = False  # of the answer
        self._body_read = False  # the application has the whole body
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunked = False
        self._length: int | None = None  # of the body that is still to be sent
        self._changed = asyncio.Event()

    def take(self, body: bytes) -> None:
        """A part of the body came; of an answered request it is dropped."""
        if not self.answered:
            self.body += body
            self._changed.set()

    def finish(self) -> None:
        """The body is here, or will not come any more."""
        self.body_complete = True
        self._changed.set()

    def wake(self) -> None:
        """Let a waiting `receive` look again."""
        self._changed.set()

    async def run(self, app: Callable[..., Awaitable[None]]) -> None:
        """Let the application answer; what it raises is logged and answered with 500."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("a request was not answered")
        if self.connection.closed:
            return
        if not self._status:
            body = b"Internal Server Error"
            length = str(len(body)).encode()
            headers = [(b"content-type", b"text/plain"), (b"content-length", length)]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        elif not self.answered:  # the client cannot know where the answer ends
            self.connection.drop()

    def whole_body(self) -> bytes | None:
        """The body, where all of it is here already; it can be read once, so or by `receive`."""
        if not self.body_complete or self._body_read or self.answered:
            return None
        body, self.body, self._body_read = bytes(self.body), bytearray(), True
        self.connection.proceed()  # there is room again
        return body

    async def receive(self) -> dict[str, Any]:
        """The next part of the body; behind the last one, word that the client is gone."""
        is_awaited = not (self.body_complete or self.head_sent or self.connection.closed)
        if self.expects_continue and is_awaited:
            self.expects_continue = False
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.answered or self.connection.closed):
            if not self._body_read and (self.body or self.body_complete):
                body, self.body, self._body_read = bytes(self.body), bytearray(), self.body_complete
                self.connection.proceed()  # there is room again
                return {"type": "http.request", "body": body, "more_body": not self._body_read}
            self._changed.clear()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """A part of the answer; waits until the client has read what was sent before."""
        if message["type"] == "http.response.start":
            assert not self._status, "an answer has one beginning"
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
            return
        assert self._status and not self.answered, "a body without a beginning"
        await self.connection.writable()
        if self.connection.closed:
            return
        body, more_body = message.get("body", b""), message.get("more_body", False)
        parts = [] if self.head_sent else [self._format_head(len(body), more_body)]
        if self.scope["method"] != "HEAD":
            if self._chunked:
                parts += [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
                parts += [] if more_body else [b"0\r\n\r\n"]
            elif body:
                parts.append(body)
        if self._length is not None:
            self._length -= len(body)
            assert self._length >= 0, "a body that is longer than its content-length"
            if not more_body and self._length and self.scope["method"] != "HEAD":
                self.keep_alive = False  # it is shorter: the client must not take the next for it
        self.connection.write(b"".join(parts))
        if not more_body:
            self.answered = True
            self.wake()
            self.connection.finish_exchange(self)

    def _format_head(self, length: int, more_body: bool) -> bytes:
        """The first line and headers, among them those that mark the end of the body."""
        self.head_sent = True
        status = self._status
        lines = [b"HTTP/1.1 %d %s" % (status, REASONS.get(status, b""))]
        has_length = False
        for name, value in (*self.connection.server.default_headers, *self._headers):
            name = name.lower()
            if name == b"content-length":
                has_length, self._length = True, int(value)
            elif name == b"transfer-encoding":
                has_length = self._chunked = True
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue
            lines.append(b"%b: %b" % (name, value))
        if not has_length and status >= 200 and status not in (204, 304):
            if not more_body:
                lines.append(b"content-length: %d" % length)
            elif self.scope["http_version"] == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked")
            else:
                self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join([*lines, b"", b""])
        if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1:
            raise ValueError("a header of an answer has a line break")
        return head


def _address(address: Iterable[Any] | str | None) -> tuple[str, int] | None:
    """Host and port of a socket; None for others."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
