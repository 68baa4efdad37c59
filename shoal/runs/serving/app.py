"""The HTTP service: routes, limits and answers, on Starlette.

POST /v1/recommend /v1/score /v1/similar /v1/predict /v1/explain     JSON in and out
GET  /v1/examples                    what this model can be asked, with some of its users and items
GET  /health /ready /metrics         for whoever watches over it
GET  / /docs /openapi.json           a page to try it, and what may be asked

A request that is malformed, too large or too slow gets a 4xx and nothing else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

import shoal
from shoal.pages import look
from shoal.runs.http.guard import Guard, RefusedRequest, json_answer, path_of
from shoal.runs.serving.batching import Batcher, Full
from shoal.runs.serving.figures import Figures
from shoal.runs.serving.openapi import describe, page_of
from shoal.runs.serving.questions import QUESTIONS, examples, parse
from shoal.runs.serving.service import Service


@dataclass(frozen=True)
class Limits:
    """What a request may cost."""

    body_bytes: int = 1 << 20
    seconds: float = 10.0  # to send a request
    answer_seconds: float = 10.0  # to be answered
    waiting: int = 1024  # requests that wait for a batch
    batch: int = 64  # requests answered together
    threads: int = 1  # batches computed at a time, one core each
    state_bytes: int = 1 << 28  # of what is kept of histories between requests


class Api(Guard):
    """The handlers of a service's routes."""

    open = ("/health", "/ready")

    def __init__(
        self, service: Service, limits: Limits, token: str | None = None, local: bool = True
    ):
        super().__init__(token, local)
        self.service, self.limits, self.figures = service, limits, Figures()
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
            Route(f"/v1/{k}", self.guarded(self._post(k)), methods=["POST"]) for k in QUESTIONS
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
        routes = [Route(path, self.guarded(one), methods=["GET"]) for path, one in gets.items()]
        return Starlette(routes=[*posts, *routes], exception_handlers={405: self._other_method})

    def begun(self) -> None:
        self.figures.in_flight += 1

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.figures.in_flight -= 1
        self.figures.count(path, status, seconds)

    # ---- questions ------------------------------------------------------------------------------

    def _post(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        batcher, question = self.batchers[kind], QUESTIONS[kind]

        async def post(request: Request) -> Response:
            body = await self.body(request, self.limits.body_bytes, self.limits.seconds)
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
            return json_answer(answer)

        return post

    async def _other_method(self, request: Request, error: Exception) -> Response:
        """The answer where a route is asked by another method than its own."""
        path = path_of(request)
        own = "POST" if path.startswith("/v1/") and path != "/v1/examples" else "GET"
        what = {"POST": " with a body of JSON; GET /docs shows what it may hold", "GET": ""}[own]

        async def refuse(request: Request) -> Response:
            raise RefusedRequest(405, f"this route answers {own}{what}")

        answer = await self.guarded(refuse)(request)
        if answer.status_code == 405:
            answer.headers["allow"] = own
        return answer

    # ---- for whoever watches over it ------------------------------------------------------------

    async def _examples(self, request: Request) -> Response:
        model = self.service.model
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.threads, examples, model)
        return json_answer({"model": model.model, **found, "artifact": model.folder.name})

    async def _health(self, request: Request) -> Response:
        return json_answer({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        model = self.service.model
        if self.stopping:
            raise RefusedRequest(503, "stopping")
        return json_answer({"status": "ready", "artifact": model.folder.name, "model": model.model})

    async def _metrics(self, request: Request) -> Response:
        model = self.service.model
        more = {
            "batches_total": sum(one.batches for one in self.batchers.values()),
            "batched_requests_total": sum(one.requests for one in self.batchers.values()),
            "reloads_total": self.service.reloads,
            "reload_failures_total": self.service.failures,
            "artifact_since_seconds": self.service.since,
            **self.service.kept(),
        }
        info = {"artifact": model.folder.name, "model": model.model, "shoal": shoal.__version__}
        return PlainTextResponse(self.figures.text(more, info))

    async def _openapi(self, request: Request) -> Response:
        return json_answer(describe(QUESTIONS, self.token is not None))

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(page_of(describe(QUESTIONS, self.token is not None)))

    async def _page(self, request: Request) -> Response:
        title = self.service.model.model
        return HTMLResponse(look.page(title, look.Html(BODY), script=SCRIPT))


HERE = resources.files("shoal.runs.serving")
BODY, SCRIPT = (HERE.joinpath(name).read_text() for name in ("page.html", "page.js"))
