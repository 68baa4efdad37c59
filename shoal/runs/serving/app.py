"""The HTTP service: routes, limits and answers, on Starlette.

POST /v1/recommend /v1/score /v1/similar /v1/predict /v1/explain     JSON in and out
GET  /v1/examples                    what this model can be asked, with some of its users and items
GET  /health /ready /metrics         for whoever watches over it
GET  / /docs /openapi.json           a page to try it, and what may be asked

A request that is malformed, too large or too slow gets a 4xx and nothing else happens.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

import shoal
from shoal.pages import look
from shoal.runs.serving.batching import Batcher, Full
from shoal.runs.serving.figures import Figures
from shoal.runs.serving.openapi import describe, page_of
from shoal.runs.serving.questions import QUESTIONS, examples, parse
from shoal.runs.serving.service import Service

OPEN = ("/health", "/ready", "/")  # answered without a token; the page itself says nothing
LOCAL = ("localhost", "127.0.0.1", "[::1]")
SAFE = [  # every answer has these headers
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'",
    ),
]


@dataclass(frozen=True)
class Limits:
    """What a request may cost."""

    body_bytes: int = 1 << 20
    seconds: float = 10.0  # to send a request
    answer_seconds: float = 10.0  # to be answered
    waiting: int = 1024  # requests that wait for a batch
    batch: int = 64  # requests answered together
    threads: int = 1  # batches computed at a time, one core each


class RefusedRequest(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class Api:
    """The handlers of a service's routes."""

    def __init__(
        self, service: Service, limits: Limits, token: str | None = None, local: bool = True
    ):
        self.service, self.limits, self.token, self.local = service, limits, token, local
        self.figures = Figures()
        self.stopping = False
        # Batches side by side, each on one core: the parts of one small product would wait for
        # each other, the longer the busier the machine is.
        self.threads = ThreadPoolExecutor(limits.threads, "model", torch.set_num_threads, (1,))
        # An explanation asks the model hundreds of times: alone, on half of the threads at most.
        few = (1, max(1, limits.waiting // 16), self.threads, max(1, limits.threads // 2))
        many = (limits.batch, limits.waiting, self.threads, limits.threads)
        self.batchers = {
            kind: Batcher(self._work(kind), *(few if kind == "explain" else many))
            for kind in QUESTIONS
        }

    def _work(self, kind: str) -> Callable[[Any], Any]:
        return lambda asked: self.service.answer(kind, asked)

    def close(self) -> None:
        """End the threads, when nobody is answered any more."""
        self.threads.shutdown()

    def app(self) -> Starlette:
        """The ASGI application."""
        posts = [
            Route(f"/v1/{k}", self._counted(self._post(k)), methods=["POST"]) for k in QUESTIONS
        ]
        gets = {
            "/v1/examples": self._examples,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
            "/": self._page,
        }
        routes = [Route(path, self._counted(one), methods=["GET"]) for path, one in gets.items()]
        return Starlette(routes=[*posts, *routes])

    def _counted(
        self, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            begun, status = time.perf_counter(), 500
            self.figures.in_flight += 1
            try:
                self._admit(request)
                answer = await handle(request)
                status = answer.status_code
            except RefusedRequest as error:
                status = error.status
                answer = _json({"error": error.why}, status)
                if status == 401:
                    answer.headers["www-authenticate"] = "Bearer"
                if status in (408, 413):  # the rest of it is not waited for
                    answer.headers["connection"] = "close"
            except ClientDisconnect:
                status, answer = 499, Response(status_code=499)
            finally:
                self.figures.in_flight -= 1
                self.figures.count(_path(request), status, time.perf_counter() - begun)
            answer.raw_headers.extend(SAFE)
            if self.stopping:  # the next request of this client goes elsewhere
                answer.headers["connection"] = "close"
            return answer

        return counted

    def _admit(self, request: Request) -> None:
        """Refuse who has no token, and pages of other sites that a browser here has open."""
        if self.local:
            host = request.headers.get("host", "").rsplit(":", 1)[0]
            if host not in LOCAL:
                raise RefusedRequest(421, "this service answers as localhost only")
        if self.token is None or _path(request) in OPEN:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise RefusedRequest(401, "give the token of this service: Authorization: Bearer TOKEN")

    # ---- questions ------------------------------------------------------------------------------

    def _post(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        batcher, question = self.batchers[kind], QUESTIONS[kind]

        async def post(request: Request) -> Response:
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise RefusedRequest(415, "send application/json")
            body = await self._body(request)
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    if len(body) <= 1 << 14:
                        asked = parse(question, body)
                    else:  # the event loop goes on meanwhile
                        asked = await asyncio.to_thread(parse, question, body)
                    answer = await batcher.ask(asked)
            except Full:
                raise RefusedRequest(429, "too many requests wait; come again") from None
            except TimeoutError:
                raise RefusedRequest(503, "no answer in time; come again") from None
            except ValueError as error:
                # Who asks for somebody unknown does not learn who is known.
                if "not known" in str(error):
                    raise RefusedRequest(404, str(error).partition(";")[0]) from None
                raise RefusedRequest(422, str(error)) from None
            return _json(answer)

        return post

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body_bytes
        stated = request.headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated[:20]) > most:
            raise RefusedRequest(413, f"a request has at most {most} bytes")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise RefusedRequest(413, f"a request has at most {most} bytes")
                    parts.append(part)
        except TimeoutError:
            raise RefusedRequest(408, "the request did not come in time") from None
        return b"".join(parts)

    # ---- for whoever watches over it ------------------------------------------------------------

    async def _examples(self, request: Request) -> Response:
        model = self.service.model
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.threads, examples, model)
        return _json({"model": model.model, **found, "artifact": model.folder.name})

    async def _health(self, request: Request) -> Response:
        return _json({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        model = self.service.model
        if self.stopping:
            raise RefusedRequest(503, "stopping")
        return _json({"status": "ready", "artifact": model.folder.name, "model": model.model})

    async def _metrics(self, request: Request) -> Response:
        model = self.service.model
        more = {
            "batches_total": sum(one.batches for one in self.batchers.values()),
            "batched_requests_total": sum(one.requests for one in self.batchers.values()),
            "reloads_total": self.service.reloads,
            "reload_failures_total": self.service.failures,
            "artifact_since_seconds": self.service.since,
        }
        info = {"artifact": model.folder.name, "model": model.model, "shoal": shoal.__version__}
        return PlainTextResponse(self.figures.text(more, info))

    async def _openapi(self, request: Request) -> Response:
        return _json(describe(QUESTIONS, self.token is not None))

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(page_of(describe(QUESTIONS, self.token is not None)))

    async def _page(self, request: Request) -> Response:
        title = self.service.model.model if self.token is None else "shoal serve"
        return HTMLResponse(look.page(title, look.Html(BODY), script=SCRIPT))


HERE = resources.files("shoal.runs.serving")
BODY, SCRIPT = (HERE.joinpath(name).read_text() for name in ("page.html", "page.js"))


def _path(request: Request) -> str:
    """The path that was routed; request.url has the text of the header `host` before it."""
    return request.scope["path"]


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
