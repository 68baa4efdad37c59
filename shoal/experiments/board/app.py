"""The board's routes.

GET  /                     the page
GET  /runs                 a line about every run
GET  /details?run=KEY&…    curves and configs of chosen runs
GET  /report?run=KEY&…     the page of `shoal report`
POST /stop {"run": KEY}    where the board was started with --allow-stop
"""

import asyncio
import json
import re
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.experiments.board.run_index import MOST_RUNS, FoundRun, Root
from shoal.experiments.board.run_table import SCRIPT, board_page
from shoal.experiments.board.stopping import stop_run
from shoal.experiments.board.summary import details, summary
from shoal.experiments.report import report
from shoal.serving.http.guard import Guard, RefusedRequest, json_answer, page_answer

CHOSEN = 8  # runs that are compared at a time, as many as there are colours


class Board(Guard):
    """Handlers over the runs of one folder; it keeps nothing but what it read last."""

    def __init__(self, root: Root, token: str | None, local: bool, may_stop: bool):
        super().__init__(token, local)
        self.root, self.may_stop = root, may_stop
        self._runs_by_key: dict[str, FoundRun] = {}
        self._reading = asyncio.Lock()  # several pages may be open: the disk is asked once
        self._reporting = asyncio.Lock()

    def app(self) -> Starlette:
        """The ASGI application."""
        gets = {
            "/": self._page,
            "/runs": self._runs,
            "/details": self._details,
            "/report": self._report,
            "/favicon.ico": self._no_picture,
        }
        routes = [Route(path, self.guarded(one), methods=["GET"]) for path, one in gets.items()]
        stop = Route("/stop", self.guarded(self._stop), methods=["POST"])
        return Starlette(routes=[*routes, stop])

    async def _page(self, request: Request) -> Response:
        return page_answer(board_page(self.root.path.absolute().name), SCRIPT)

    async def _no_picture(self, request: Request) -> Response:
        return Response(status_code=204)  # browsers ask for one

    async def _runs(self, request: Request) -> Response:
        async with self._reading:
            summaries = await asyncio.to_thread(self._summaries)
        has_report = find_spec("matplotlib") is not None  # the extra `report`
        is_cut = len(summaries) == MOST_RUNS
        facts = {"now": time.time(), "may_stop": self.may_stop, "has_report": has_report}
        return json_answer({**facts, "more": is_cut, "runs": summaries})

    def _summaries(self) -> list[dict[str, Any]]:
        self._runs_by_key = self.root.runs()
        return [summary(self.root, run) for run in self._runs_by_key.values()]

    async def _details(self, request: Request) -> Response:
        runs = await self._chosen(request)
        shown = await asyncio.to_thread(lambda: [details(self.root, run) for run in runs])
        return json_answer({"runs": shown})

    async def _report(self, request: Request) -> Response:
        runs = await self._chosen(request)
        async with self._reporting:
            return page_answer(await asyncio.to_thread(self._report_of, runs))

    def _report_of(self, runs: list[FoundRun]) -> str:
        """The page of `shoal report`; nothing of it stays on the disk."""
        try:
            with ExitStack() as stack:
                folders = [stack.enter_context(self.root.opened(run)) for run in runs]
                scratch = stack.enter_context(TemporaryDirectory())
                page = report(*folders, output=Path(scratch) / "report.html")
                return Path(page).read_text()
        except (ValueError, OSError) as error:
            raise RefusedRequest(409, _without_descriptors(error)) from None

    async def _stop(self, request: Request) -> Response:
        if not self.may_stop:
            raise RefusedRequest(403, "this board only shows; start it with --allow-stop")
        run = self._look_up(named_run(await self.body(request, 1 << 10, 10.0)))
        try:
            pid = await asyncio.to_thread(self._stop_run, run)
        except (ValueError, OSError) as error:
            raise RefusedRequest(409, str(error)) from None
        return json_answer({"stopped": pid})

    def _stop_run(self, run: FoundRun) -> int:
        with self.root.opened(run) as folder:
            return stop_run(folder)

    async def _chosen(self, request: Request) -> list[FoundRun]:
        """The runs that a request names by their keys."""
        keys = request.query_params.getlist("run")
        if not 1 <= len(keys) <= CHOSEN:
            raise RefusedRequest(422, f"name 1 to {CHOSEN} runs")
        if any(key not in self._runs_by_key for key in keys):  # it may have begun just now
            self._runs_by_key = await asyncio.to_thread(self.root.runs)
        return [self._look_up(key) for key in keys]

    def _look_up(self, key: Any) -> FoundRun:
        run = self._runs_by_key.get(key) if isinstance(key, str) else None
        if run is None:
            raise RefusedRequest(404, "there is no such run (any more)")
        return run


def _without_descriptors(error: Exception) -> str:
    """The message of an error, in which "the run" replaces the path of an open descriptor."""
    return re.sub(r"/proc/self/fd/\d+", "the run", str(error))


def named_run(body: bytes) -> Any:
    """What the body of a request, {"run": KEY}, names."""
    try:
        return json.loads(body)["run"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise RefusedRequest(422, 'name the run as {"run": KEY}') from None
