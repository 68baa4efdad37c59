"""The HTTP service of a pipeline: its routes and its page.

POST /v1/recommend /v1/recommend_many     JSON in and out
GET  /v1/examples                         what may be asked, with some users and items to try
GET  /                                    a page: where each item came from, and what moved it

Routes that every service has, limits and batches stand in serving/service/api.py.
"""

from __future__ import annotations

import asyncio
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import shoal
from shoal.pages import html as look
from shoal.serving.http.guard import Handler, json_answer, page_answer
from shoal.serving.http.listening import ServiceReach
from shoal.serving.pipeline.log_writer import RequestLog
from shoal.serving.pipeline_service.live_pipeline import LivePipeline
from shoal.serving.pipeline_service.questions import QUESTIONS, PipelineAnswers, examples
from shoal.serving.processes.service_process import ServiceProcess
from shoal.serving.service.api import BatchedApi, Limits
from shoal.serving.service.app import SHARED_BODY, SHARED_SCRIPT
from shoal.serving.service.batching import Batcher
from shoal.serving.service.openapi import describe
from shoal.serving.service.server import serve_api
from shoal.serving.service.statistics import Count

ANSWER = {
    "items": [
        {
            "item": "50",
            "score": 0.31,
            "sources": ["sasrec", "bpr"],
            "moved": {"rank": 4, "at_most": 1},
            "propensity": None,
        }
    ],
    "unknown": [],
    "fallbacks": [],
    "request": "9f2c61d20b7e4c0d8a6f0c5f1c9be001",
    "pipeline": "3c1f09ab52de",
}
ANSWERS = {"recommend": ANSWER, "recommend_many": {"answers": [ANSWER]}}


class PipelineApi(BatchedApi):
    """The handlers of a pipeline's routes. log: of what was answered; None: none is kept."""

    service: LivePipeline
    no_items = (
        "a pipeline in service takes no new items; write them into its artifact by `shoal artifact "
        "add-items`, and name that one in the pipeline's file"
    )

    def __init__(
        self,
        service: LivePipeline,
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        log: RequestLog | None = None,
    ):
        self.log = log
        super().__init__(service, QUESTIONS, PipelineAnswers(log), limits, token, local)

    def batcher(self, kind: str) -> Batcher:
        """A request of many questions is a batch by itself."""
        batcher = super().batcher(kind)
        if kind == "recommend_many":
            batcher.most = 1
        return batcher

    def close(self) -> None:
        super().close()
        if self.log is not None:
            self.log.close()

    def ready(self) -> dict[str, Any]:
        return {"pipeline": self.service.model.version}

    def labels(self) -> list[dict[str, str]]:
        return [{**self.ready(), "shoal": shoal.__version__}]

    def counts(self) -> dict[str, Count]:
        if self.log is None:
            return {}
        return {"logged_total": self.log.written, "log_lost_total": self.log.lost}

    def document(self) -> dict[str, Any]:
        return describe(QUESTIONS, self.token is not None, ANSWERS, "shoal pipeline serve")

    def gets(self) -> dict[str, Handler]:
        return {"/v1/examples": self._examples, "/": self._page}

    async def _examples(self, request: Request) -> Response:
        pipeline = self.service.model
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self.threads, examples, pipeline)
        return json_answer({**answer, "pipeline": pipeline.version})

    async def _page(self, request: Request) -> Response:
        title = self.service.path.stem
        return page_answer(look.page(title, look.Html(BODY), script=SCRIPT), SCRIPT)


def serve_pipeline(
    file: str | Path,
    reach: ServiceReach,
    limits: Limits,
    seed: int | None = None,
    log: str | Path | None = None,
    process: ServiceProcess | None = None,
) -> None:
    """Serve a pipeline until a signal comes. log: a folder for the request log.

    process: this one, where several serve it; each draws from its own seed.
    """
    if seed is not None and process is not None:
        seed += process.number

    def api(local: bool) -> PipelineApi:
        service = LivePipeline(file, limits.batch, seed)
        request_log = None if log is None else RequestLog(log)
        return PipelineApi(service, limits, reach.token, local, request_log)

    serve_api(api, reach, process)


HERE = resources.files("shoal.serving.pipeline_service")
BODY = SHARED_BODY + HERE.joinpath("page.html").read_text()
SCRIPT = SHARED_SCRIPT + HERE.joinpath("page.js").read_text()
