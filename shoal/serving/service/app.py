"""The HTTP service of an artifact: its routes and its page.

POST /v1/recommend /v1/score /v1/similar /v1/predict /v1/explain     JSON in and out
GET  /v1/examples                    what this model can be asked, with some of its users and items
GET  /                               a page to try it

Routes that every service has, limits and batches stand in api.py.
"""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import shoal
from shoal.pages import html as look
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.http.guard import Handler, json_answer, page_answer
from shoal.serving.service.api import BatchedApi, Limits
from shoal.serving.service.batching import Batcher
from shoal.serving.service.live import LiveService
from shoal.serving.service.openapi import describe
from shoal.serving.service.questions import QUESTIONS, answer_batch, examples


class Api(BatchedApi):
    """The handlers of an artifact's routes."""

    service: LiveService[Any]

    def __init__(
        self,
        service: LiveService[Any],
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        items_token: str | None = None,
    ):
        super().__init__(service, QUESTIONS, answer_batch, limits, token, local, items_token)

    def batcher(self, kind: str) -> Batcher:
        """An explanation asks the model hundreds of times: alone, on half of the threads."""
        if kind != "explain":
            return super().batcher(kind)
        return Batcher(
            self._work(kind),
            most=1,
            waiting=max(1, self.limits.waiting // 16),
            threads=self.threads,
            together=max(1, self.limits.threads // 2),
        )

    def shown(self) -> Artifact:
        """The artifact of the examples and of the page."""
        return self.service.model

    def ready(self) -> dict[str, Any]:
        return {**names_of(self.shown()), **self.added(self.shown())}

    def added(self, artifact: Artifact) -> dict[str, int]:
        """How many items an artifact has that came by posts, where they are taken."""
        return {} if self.service.items is None else {"added_items": artifact.num_added}

    def labels(self) -> list[dict[str, str]]:
        return [{**names_of(self.shown()), "shoal": shoal.__version__}]

    def document(self) -> dict[str, Any]:
        has_token = self.token is not None or self.items_token is not None
        return describe(QUESTIONS, has_token, takes_items=self.service.items is not None)

    def gets(self) -> dict[str, Handler]:
        return {"/v1/examples": self._examples, "/": self._page}

    async def _examples(self, request: Request) -> Response:
        model = self.shown()
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self.threads, examples, model)
        return json_answer({"model": model.model, **answer, "artifact": model.folder.name})

    async def _page(self, request: Request) -> Response:
        title = self.shown().model
        return page_answer(look.page(title, look.Html(BODY), script=SCRIPT), SCRIPT)


def names_of(artifact: Artifact) -> dict[str, str]:
    """An artifact's name, and that of its model."""
    return {"artifact": artifact.folder.name, "model": artifact.model}


HERE = resources.files("shoal.serving.service")
SHARED_BODY, SHARED_SCRIPT = (
    HERE.joinpath(name).read_text() for name in ("shared.html", "shared.js")
)
BODY = SHARED_BODY + HERE.joinpath("page.html").read_text()
SCRIPT = SHARED_SCRIPT + HERE.joinpath("page.js").read_text()
