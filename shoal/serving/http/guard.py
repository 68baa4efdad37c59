"""Guard: who may ask, what a refused request is answered, and the headers of every answer."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from shoal.pages.html import rules_of

Handler = Callable[[Request], Awaitable[Response]]
LOCAL = ("localhost", "127.0.0.1", "[::1]")
SAFE = [  # every answer has these headers
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
POLICY = "content-security-policy"
NO_FRAMES = "frame-ancestors 'none'"  # counts in a header only, not in a page
NO_SCRIPT = (POLICY.encode(), f"{rules_of()}; {NO_FRAMES}".encode())  # what is no page_answer


class RefusedRequest(Exception):
    """A request that is answered with a status and one sentence.

    retry_after: in how many seconds another try may be worth it.
    """

    def __init__(self, status: int, why: str, retry_after: int | None = None):
        super().__init__(why)
        self.status = status
        self.why = why
        self.retry_after = retry_after


class Guard:
    """Stands before the handlers of a service.

    token: what to ask for. local: it listens at loopback, and answers as localhost only, so that a
    page of another site, open in a browser here, cannot ask it.
    """

    open: tuple[str, ...] = ()  # paths that need no token

    def __init__(self, token: str | None = None, local: bool = True):
        self.token = token
        self.local = local
        self.stopping = False

    def begun(self) -> None:
        """A request came."""

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""

    def guarded(self, handle: Handler) -> Handler:
        """The handler, for those who may ask; what it refuses is answered."""

        async def guarded(request: Request) -> Response:
            begun, status = time.perf_counter(), 500
            self.begun()
            try:
                self._admit(request)
                answer = await handle(request)
                status = answer.status_code
            except RefusedRequest as error:
                status = error.status
                answer = json_answer({"error": error.why}, status)
                if status == 401:  # a browser asks its user by Basic
                    answer.headers["www-authenticate"] = "Bearer"
                    answer.headers.append("www-authenticate", 'Basic realm="shoal"')
                if error.retry_after is not None:
                    answer.headers["retry-after"] = str(error.retry_after)
                if status in (408, 413):  # the rest of it is not waited for
                    answer.headers["connection"] = "close"
            except ClientDisconnect:
                status, answer = 499, Response(status_code=499)
            finally:
                self.answered(path_of(request), status, time.perf_counter() - begun)
            answer.raw_headers.extend(SAFE)
            if not any(name == POLICY.encode() for name, _ in answer.raw_headers):
                answer.raw_headers.append(NO_SCRIPT)
            if self.stopping:  # the next request of this client goes elsewhere
                answer.headers["connection"] = "close"
            return answer

        return guarded

    def _admit(self, request: Request) -> None:
        """Refuse who has no token, and pages of other sites that a browser here has open."""
        if self.local:
            host = request.headers.get("host", "").rsplit(":", 1)[0]
            if host not in LOCAL:
                raise RefusedRequest(421, "this service answers as localhost only")
        path = path_of(request)
        needed = self.token_of(path)
        if needed is None or path in self.open:
            return
        token = token_in(request.headers.get("authorization", ""))
        if not hmac.compare_digest(token.encode(), needed.encode()):
            noun = "service" if needed == self.token else f"route ({path})"
            raise RefusedRequest(401, f"give the token of this {noun}: Authorization: Bearer TOKEN")

    def token_of(self, path: str) -> str | None:
        """What to ask for at a path; None: nothing."""
        return self.token

    async def body(self, request: Request, most: int, seconds: float) -> bytes:
        """The body of a request, which is JSON, bounded and in time."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise RefusedRequest(415, "send JSON, with the header content-type: application/json")
        stated = request.headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated[:20]) > most:
            raise RefusedRequest(413, f"a request has at most {most} bytes")
        whole_body = request.scope.get("whole_body")  # of Connection
        if whole_body is not None and (whole := whole_body()) is not None:
            if len(whole) > most:
                raise RefusedRequest(413, f"a request has at most {most} bytes")
            return whole
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise RefusedRequest(413, f"a request has at most {most} bytes")
                    parts.append(part)
        except TimeoutError:
            raise RefusedRequest(408, "the request did not come in time") from None
        return b"".join(parts)


def token_in(header: str) -> str:
    """The token of `Bearer TOKEN`, or the password of `Basic`, which browsers send."""
    kind, _, credentials = header.partition(" ")
    if kind.lower() != "basic":
        return credentials if kind == "Bearer" else ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def path_of(request: Request) -> str:
    """The path that was routed; request.url has the text of the header `host` before it."""
    return request.scope["path"]


def page_answer(page: str, script: str = "") -> Response:
    """An answer that a browser shows; script: the only one that runs in it."""
    return HTMLResponse(page, headers={POLICY: f"{rules_of(script)}; {NO_FRAMES}"})


def json_answer(value: Any, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(to_json(value, inf_nan_mode="constants"), status, media_type="application/json")
