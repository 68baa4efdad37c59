"""The HTTP service: routes, limits and answers, on Starlette.

POST /v1/recommend /v1/score /v1/similar /v1/predict /v1/explain     JSON in and out
GET  /v1/examples                    what this model can be asked, with some of its users and items
GET  /health /ready /metrics         for monitoring
GET  / /docs /openapi.json           a page to try it, and what may be asked

A request that is malformed, too large or too slow gets a 4xx and nothing else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import shoal
from shoal.data.ids import UnknownName
from shoal.pages import html as look
from shoal.serving.http.connection import Bounds
from shoal.serving.http.guard import Guard, RefusedRequest, json_answer, page_answer, path_of
from shoal.serving.service.batching import Batcher, Full
from shoal.serving.service.openapi import describe, page_of
from shoal.serving.service.questions import QUESTIONS, answer_batch, examples, parse
from shoal.serving.service.service import Service
from shoal.serving.service.statistics import RequestMetrics


@dataclass(frozen=True)
class Limits:
    """Limits of what requests and connections may cost."""

    body_bytes: int = 1 << 20
    seconds: float = 10.0  # to send a request
    answer_seconds: float = 10.0  # to be answered
    waiting: int = 1024  # requests that wait for a batch
    batch: int = 64  # requests answered together
    threads: int = 1  # batches computed at a time, one core each
    state_bytes: int = 1 << 28  # of what is kept of histories between requests
    connection: Bounds = field(default_factory=Bounds)


class Api(Guard):
    """The handlers of a service's routes."""

    open = ("/health", "/ready")

    def __init__(
        self, service: Service, limits: Limits, token: str | None = None, local: bool = True
    ):
        super().__init__(token, local)
        self.service = service
        self.limits = limits
        self.metrics = RequestMetrics(self._counts)
        # Batches side by side, each on one core: the parts of one small product would wait for
        # each other, the longer the busier the machine is.
        self.threads = ThreadPoolExecutor(limits.threads, "model", torch.set_num_threads, (1,))
        # An explanation asks the model hundreds of times: alone, on half of the threads at most.
        self.batchers = {
            kind: Batcher(
                self._work(kind),
                most=limits.batch,
                waiting=limits.waiting,
                threads=self.threads,
                together=limits.threads,
            )
            for kind in QUESTIONS
            if kind != "explain"
        }
        self.batchers["explain"] = Batcher(
            self._work("explain"),
            most=1,
            waiting=max(1, limits.waiting // 16),
            threads=self.threads,
            together=max(1, limits.threads // 2),
        )

    def _work(self, kind: str) -> Callable[[Any], Any]:
        # The model is read for each batch: another may have taken its place meanwhile.
        return lambda questions: answer_batch(self.service.model, kind, questions)

    def close(self) -> None:
        """End the threads; no request may be waiting for an answer."""
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
        self.metrics.in_flight.inc()

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.metrics.in_flight.dec()
        counter, histogram = self.metrics.series(path, status)
        counter.inc()
        histogram.observe(seconds)

    # ---- questions ------------------------------------------------------------------------------

    def _post(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        batcher, question_type = self.batchers[kind], QUESTIONS[kind]

        async def post(request: Request) -> Response:
            body = await self.body(request, self.limits.body_bytes, self.limits.seconds)
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    if len(body) <= 1 << 14:
                        question = parse(question_type, body)
                    else:  # the event loop goes on meanwhile
                        question = await asyncio.to_thread(parse, question_type, body)
                    answer = await batcher.ask(question)
            except Full:
                raise RefusedRequest(429, "too many requests wait; come again") from None
            except TimeoutError:
                raise RefusedRequest(503, "no answer in time; come again") from None
            except UnknownName as error:
                raise RefusedRequest(404, error.public) from None
            except ValueError as error:
                raise RefusedRequest(422, str(error)) from None
            return json_answer(answer)

        return post

    async def _other_method(self, request: Request, error: Exception) -> Response:
        """The answer where a route is asked by another method than its own."""
        path = path_of(request)
        method = "POST" if path.startswith("/v1/") and path != "/v1/examples" else "GET"
        hint = {"POST": " with a body of JSON; GET /docs shows what it may hold", "GET": ""}[method]

        async def refuse(request: Request) -> Response:
            raise RefusedRequest(405, f"this route answers {method}{hint}")

        answer = await self.guarded(refuse)(request)
        if answer.status_code == 405:
            answer.headers["allow"] = method
        return answer

    # ---- for monitoring -------------------------------------------------------------------------

    async def _examples(self, request: Request) -> Response:
        model = self.service.model
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self.threads, examples, model)
        return json_answer({"model": model.model, **answer, "artifact": model.folder.name})

    async def _health(self, request: Request) -> Response:
        return json_answer({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        model = self.service.model
        if self.stopping:
            raise RefusedRequest(503, "stopping")
        return json_answer({"status": "ready", "artifact": model.folder.name, "model": model.model})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _counts(self) -> tuple[dict[str, float], dict[str, str]]:
        """What other parts counted, and labels of the artifact, for the metrics."""
        model = self.service.model
        counts = {
            "batches_total": sum(batcher.batches for batcher in self.batchers.values()),
            "batched_requests_total": sum(batcher.requests for batcher in self.batchers.values()),
            "reloads_total": self.service.reloads,
            "reload_failures_total": self.service.failures,
            "artifact_since_seconds": self.service.since,
            **self.service.kept(),
        }
        labels = {"artifact": model.folder.name, "model": model.model, "shoal": shoal.__version__}
        return counts, labels

    async def _openapi(self, request: Request) -> Response:
        return json_answer(describe(QUESTIONS, self.token is not None))

    async def _docs(self, request: Request) -> Response:
        return page_answer(page_of(describe(QUESTIONS, self.token is not None)))

    async def _page(self, request: Request) -> Response:
        title = self.service.model.model
        return page_answer(look.page(title, look.Html(BODY), script=SCRIPT), SCRIPT)


HERE = resources.files("shoal.serving.service")
BODY, SCRIPT = (HERE.joinpath(name).read_text() for name in ("page.html", "page.js"))
