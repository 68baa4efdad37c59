"""docs/understand/request.md against a request: the files that run are those that it lists."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from exported import exported

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

import shoal
from shoal.serving.http.listening import listen
from shoal.serving.service.app import Limits
from shoal.serving.service.server import HttpServer

PACKAGE = Path(shoal.__file__).parent
PAGE = PACKAGE.parent / "docs" / "understand" / "request.md"


def listed_files(bullet: str) -> set[str]:
    """The files of the page's list whose entries begin with this."""
    return set(re.findall(rf"^{bullet} `(shoal/[\w/]+\.py)`", PAGE.read_text(), re.MULTILINE))


class RecordedFiles:
    """The files of the package of which a function runs, in threads that start meanwhile."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.recording = False

    def __enter__(self) -> RecordedFiles:
        threading.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if self.recording and event == "call" and path.is_relative_to(PACKAGE):
            self.names.add(f"shoal/{path.relative_to(PACKAGE)}")


def ask(port: int, question: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/recommend", json.dumps(question), headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, body
    return body


def files_of_request(model: str, asker: str) -> set[str]:
    """The files that run for one request to a service that has answered others."""
    files = RecordedFiles()
    listener = listen("127.0.0.1", 0)
    server = HttpServer.for_artifact(exported()[model], Limits())
    artifact = server.api.service.model
    values = {"user": artifact.users.values[3], "history": artifact.items.values[1:4].tolist()}
    question = {asker: values[asker], "topk": 3}
    port = listener.getsockname()[1]
    with files:  # the service's threads start here
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        for number in range(3):
            files.recording = number == 2  # what is made on first use is no part of a request
            assert len(ask(port, question)["items"]) == 3
        files.recording = False
        server.should_exit = True
        thread.join()
    server.api.close()
    return files.names


def test_a_request_runs_the_files_of_its_page() -> None:
    listed = listed_files(r"\d+\.")
    assert files_of_request("BPR", "user") == listed
    assert len(listed) <= 12


def test_a_history_runs_some_files_more() -> None:
    stored = "shoal/serving/artifact/histories.py"
    listed = (listed_files(r"\d+\.") - {stored}) | listed_files("-")
    assert files_of_request("SASRec", "history") == listed
