"""The board's routes.

GET  /                     the page
GET  /runs                 a line about every run
GET  /details?run=KEY&…    curves and configs of chosen runs
GET  /report?run=KEY&…     the page of `shoal report`
POST /stop {"run": KEY}    where the board was started with --allow-stop
"""

import asyncio
import json
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from shoal.runs.board.page import board_page
from shoal.runs.board.root import MOST_RUNS, FoundRun, Root
from shoal.runs.board.stopping import stop_run
from shoal.runs.board.summary import details, summary
from shoal.runs.http.guard import Guard, RefusedRequest, json_answer
from shoal.runs.report import report

CHOSEN = 8  # runs that are compared at a time, as many as there are colours


class Board(Guard):
    """Handlers over the runs of one folder; it keeps nothing but what it read last."""

    def __init__(self, root: Root, token: str | None, local: bool, may_stop: bool):
        super().__init__(token, local)
        self.root, self.may_stop = root, may_stop
        self._found: dict[str, FoundRun] = {}
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
        return HTMLResponse(board_page(self.root.path.absolute().name))

    async def _no_picture(self, request: Request) -> Response:
        return Response(status_code=204)  # browsers ask for one

    async def _runs(self, request: Request) -> Response:
        async with self._reading:
            found = await asyncio.to_thread(self._summaries)
        has_report = find_spec("matplotlib") is not None  # the extra `report`
        more = len(found) == MOST_RUNS
        facts = {"now": time.time(), "may_stop": self.may_stop, "has_report": has_report}
        return json_answer({**facts, "more": more, "runs": found})

    def _summaries(self) -> list[dict[str, Any]]:
        self._found = self.root.runs()
        return [summary(self.root, run) for run in self._found.values()]

    async def _details(self, request: Request) -> Response:
        runs = await self._chosen(request)
        found = await asyncio.to_thread(lambda: [details(self.root, run) for run in runs])
        return json_answer({"runs": found})

    async def _report(self, request: Request) -> Response:
        folders = [self.root.folder(run) for run in await self._chosen(request)]
        async with self._reporting:
            return HTMLResponse(await asyncio.to_thread(_report_of, folders))

    async def _stop(self, request: Request) -> Response:
        if not self.may_stop:
            raise RefusedRequest(403, "this board only shows; start it with --allow-stop")
        run = self._look_up(named_run(await self.body(request, 1 << 10, 10.0)))
        try:
            pid = await asyncio.to_thread(stop_run, self.root.folder(run))
        except (ValueError, OSError) as error:
            raise RefusedRequest(409, str(error)) from None
        return json_answer({"stopped": pid})

    async def _chosen(self, request: Request) -> list[FoundRun]:
        """The runs that a request names by their keys."""
        keys = request.query_params.getlist("run")
        if not 1 <= len(keys) <= CHOSEN:
            raise RefusedRequest(422, f"name 1 to {CHOSEN} runs")
        if any(key not in self._found for key in keys):  # it may have begun just now
            self._found = await asyncio.to_thread(self.root.runs)
        return [self._look_up(key) for key in keys]

    def _look_up(self, key: Any) -> FoundRun:
        found = self._found.get(key) if isinstance(key, str) else None
        if found is None:
            raise RefusedRequest(404, "there is no such run (any more)")
        return found


def _report_of(folders: list[Path]) -> str:
    """The page of `shoal report`; nothing of it stays on the disk."""
    for folder in folders:
        if any(one.is_symlink() for one in (*folder.iterdir(), *folder.glob("evaluation/*"))):
            raise RefusedRequest(409, "a file of this run is a link: the board reads none")
    with TemporaryDirectory() as scratch:
        try:
            return Path(report(*folders, output=Path(scratch) / "report.html")).read_text()
        except (ValueError, OSError) as error:
            raise RefusedRequest(409, str(error)) from None


def named_run(body: bytes) -> Any:
    """What the body of a request, {"run": KEY}, names."""
    try:
        return json.loads(body)["run"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise RefusedRequest(422, 'name the run as {"run": KEY}') from None
