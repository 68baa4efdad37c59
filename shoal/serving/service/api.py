"""Api: the routes that every service of questions has, with limits and batches, on Starlette.

POST /v1/KIND                        a question of each kind, JSON in and out
POST /items                          new items, where they are taken
GET  /health /ready /metrics         for monitoring
GET  /docs /openapi.json             what may be asked

A request that is malformed, too large or too slow gets a 4xx and nothing else happens; one that
would be answered too late a 503 at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.data.ids import UnknownName
from shoal.serving.artifact.new_items import KnownItems, NewItems
from shoal.serving.http.connection import Bounds
from shoal.serving.http.guard import Guard, Handler, RefusedRequest, json_answer, path_of
from shoal.serving.http.guard import page_answer as shown_page
from shoal.serving.processes.service_process import ServiceProcess
from shoal.serving.processes.sums import summed
from shoal.serving.service.batching import Batcher, Full, TooLate
from shoal.serving.service.live import LiveService
from shoal.serving.service.openapi import page_of
from shoal.serving.service.posted_items import PostItems
from shoal.serving.service.questions import Question, parse
from shoal.serving.service.statistics import Count, RequestMetrics, text_of

ITEMS = "/items"
MOST_POSTING = 16  # requests with new items that wait for each other


@dataclass(frozen=True)
class Limits:
    """Limits of what requests and connections may cost."""

    body_bytes: int = 1 << 20
    seconds: float = 10.0  # to send a request
    answer_seconds: float = 10.0  # to be answered
    waiting: int = 1024  # requests that wait for a batch
    deadline: float | None = None  # seconds; who would be answered later is refused at once
    batch: int = 64  # requests answered together
    threads: int = 1  # batches computed at a time, one core each
    state_bytes: int = 1 << 28  # of what is kept of histories between requests
    connection: Bounds = field(default_factory=Bounds)


# What is served, a kind of question, and questions -> an answer or an exception for each.
AnswerBatch = Callable[[Any, str, Sequence[Any]], Sequence[Any]]


class BatchedApi(Guard):
    """Routes of a service whose questions are answered in batches.

    Subclasses add pages (`gets`) and describe what is served (`ready`, `labels`, `document`).
    """

    open = ("/health", "/ready")
    no_items = "this service takes no new items; start it with --items FOLDER"

    def __init__(
        self,
        service: LiveService[Any],
        questions: Mapping[str, type[Question]],
        answer_batch: AnswerBatch,
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        items_token: str | None = None,
    ):
        """items_token: to post new items with; None: the token of the service."""
        super().__init__(token, local)
        self.items_token = items_token
        self.posting = 0  # requests with new items that wait for each other
        self.service = service
        self.questions = questions
        self.answer_batch = answer_batch
        self.limits = limits
        self.process: ServiceProcess | None = None
        self.metrics = RequestMetrics(self._counts)
        # Batches side by side, each on one core: the parts of one small product would wait for
        # each other, the longer the busier the machine is.
        self.threads = ThreadPoolExecutor(limits.threads, "model", torch.set_num_threads, (1,))
        self.batchers = {kind: self.batcher(kind) for kind in questions}

    # ---- what subclasses say ---------------------------------------------------------------------

    def ready(self) -> dict[str, Any]:
        """What is served, as /ready answers."""
        raise NotImplementedError

    def labels(self) -> list[dict[str, str]]:
        """What is served, as labels of the metrics: a dictionary for each artifact or pipeline."""
        raise NotImplementedError

    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        raise NotImplementedError

    def counts(self) -> dict[str, Count]:
        """Further figures for /metrics."""
        return {}

    def gets(self) -> dict[str, Handler]:
        """Path -> handler of further GET routes."""
        return {}

    def batcher(self, kind: str) -> Batcher:
        """The queue of a kind of question."""
        return Batcher(
            self._work(kind),
            most=self.limits.batch,
            waiting=self.limits.waiting,
            threads=self.threads,
            together=self.limits.threads,
            deadline=self.limits.deadline,
        )

    async def answer(self, kind: str, question: Any) -> Any:
        """The answer to a question, from the batch that it comes into."""
        return await self.batchers[kind].ask(question)

    def all_batchers(self) -> Iterable[Batcher]:
        """Every queue, for the metrics."""
        return self.batchers.values()

    # ---- routes ----------------------------------------------------------------------------------

    def _work(self, kind: str) -> Callable[[Any], Any]:
        # What is served is read for each batch: another may have taken its place meanwhile.
        return lambda questions: self.answer_batch(self.service.model, kind, questions)

    def join(self, process: ServiceProcess) -> None:
        """Answer as one of several processes: figures are those of all of them."""
        self.process = process
        process.describe = lambda: {"metrics": self.metrics.document(), "ready": self.ready()}
        process.catch_up = self.service.catch_up

    def close(self) -> None:
        """End the threads; no request may be waiting for an answer."""
        self.threads.shutdown()

    def app(self) -> ASGIApp:
        """The ASGI application: questions go to their handlers at once, the rest by routes."""
        posts = {f"/v1/{kind}": self.guarded(self._post(kind)) for kind in self.questions}
        posts[ITEMS] = self.guarded(self._post_items)
        gets: dict[str, Handler] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
            **self.gets(),
        }
        routes = [
            Route(path, self.guarded(handle), methods=["GET"]) for path, handle in gets.items()
        ]
        routes += [Route(path, handle, methods=["POST"]) for path, handle in posts.items()]
        routed = Starlette(routes=routes, exception_handlers={405: self._other_method})

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            handle = posts.get(scope["path"]) if scope["method"] == "POST" else None
            if handle is None:
                await routed(scope, receive, send)
            else:
                answer = await handle(Request(scope, receive, send))
                await answer(scope, receive, send)

        return app

    def token_of(self, path: str) -> str | None:
        return self.items_token if path == ITEMS and self.items_token else self.token

    def begun(self) -> None:
        self.metrics.in_flight.inc()

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.metrics.in_flight.dec()
        counter, histogram = self.metrics.series(path, status)
        counter.inc()
        histogram.observe(seconds)

    def _post(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        question_type = self.questions[kind]

        async def post(request: Request) -> Response:
            body = await self.body(request, self.limits.body_bytes, self.limits.seconds)
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    if len(body) <= 1 << 14:
                        question = parse(question_type, body)
                    else:  # the event loop goes on meanwhile
                        question = await asyncio.to_thread(parse, question_type, body)
                    answer = await self.answer(kind, question)
            except Exception as error:
                refused = refusal(error)
                if refused is None:
                    raise
                raise refused from None
            return json_answer(answer)

        return post

    async def _post_items(self, request: Request) -> Response:
        """Take new items; they are in service, in every process, when this answers."""
        if self.service.items is None:
            raise RefusedRequest(403, self.no_items)
        body = await self.body(request, self.limits.body_bytes, self.limits.seconds)
        if self.posting >= MOST_POSTING:
            raise RefusedRequest(429, "too many requests wait; come again")
        self.posting += 1
        try:
            new = await asyncio.to_thread(lambda: new_items_of(body))
            await asyncio.to_thread(self.service.add, new)
        except KnownItems as error:
            raise RefusedRequest(409, str(error)) from None
        except ValueError as error:
            raise RefusedRequest(422, str(error)) from None
        except OSError as error:
            why = f"nothing was added: {self.service.items.folder.path}: {error.strerror}"
            raise RefusedRequest(503, why) from error
        finally:
            self.posting -= 1
        if self.process is not None:
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    await self.process.spread()
            except TimeoutError:
                why = "the items are kept; not every process has them yet, and will have them soon"
                raise RefusedRequest(503, why) from None
        return json_answer({"added": len(new.ids), **self.service.has_items()})

    async def _other_method(self, request: Request, error: Exception) -> Response:
        """The answer where a route is asked by another method than its own."""
        path = path_of(request)
        is_posted = path == ITEMS or path.removeprefix("/v1/") in self.questions
        method = "POST" if is_posted else "GET"
        hint = {"POST": " with a body of JSON; GET /docs shows what it may hold", "GET": ""}[method]

        async def refuse(request: Request) -> Response:
            raise RefusedRequest(405, f"this route answers {method}{hint}")

        answer = await self.guarded(refuse)(request)
        if answer.status_code == 405:
            answer.headers["allow"] = method
        return answer

    # ---- for monitoring -------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return json_answer({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        if self.stopping:
            raise RefusedRequest(503, "stopping")
        answer = {"status": "ready", **self.ready()}
        if self.process is not None:
            others = await self.process.look()
            answer["processes"] = {
                "ready": others["processes"],
                "of": self.process.count,
                "alike": all(ready == self.ready() for ready in others["ready"]),
            }
        return json_answer(answer)

    async def _metrics(self, request: Request) -> Response:
        if self.process is None:
            text = self.metrics.text()
        else:
            others = await self.process.look()
            text = text_of(summed([self.metrics.document(), others["metrics"]]))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _counts(self) -> tuple[dict[str, Count], list[dict[str, str]]]:
        """What other parts counted, and labels of what is served, for the metrics."""
        batchers = list(self.all_batchers())
        counts: dict[str, Count] = {
            "batches_total": sum(batcher.batches for batcher in batchers),
            "batched_requests_total": sum(batcher.requests for batcher in batchers),
            "too_late_total": sum(batcher.too_late for batcher in batchers),
            "reloads_total": self.service.reloads,
            "reload_failures_total": self.service.failures,
            "artifact_since_seconds": self.service.since,
            **self.service.counts(),
            **self.service.items_counts(),
            **self.counts(),
        }
        return counts, self.labels()

    async def _openapi(self, request: Request) -> Response:
        return json_answer(self.document())

    async def _docs(self, request: Request) -> Response:
        return shown_page(page_of(self.document()))


def new_items_of(body: bytes) -> NewItems:
    """The new items in a body; ValueError names the first thing that is wrong with it."""
    posted = parse(PostItems, body)
    assert isinstance(posted, PostItems)
    return posted.new_items()


def refusal(error: Exception) -> RefusedRequest | None:
    """What a request is answered whose question ended with this error; None: it is a bug.

    >>> refusal(Full()).status
    429
    """
    match error:
        case Full():
            return RefusedRequest(429, "too many requests wait; come again")
        case TooLate():
            why = f"an answer would take {1000 * error.seconds:.0f} ms; come again"
            return RefusedRequest(503, why, retry_after=math.ceil(error.seconds))
        case TimeoutError():
            return RefusedRequest(503, "no answer in time; come again")
        case UnknownName():
            return RefusedRequest(404, error.public)
        case ValueError():
            return RefusedRequest(422, str(error))
    return None
