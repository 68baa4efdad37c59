"""`shoal serve`: real sockets; every request is answered, and what is wrong gets a 4xx."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exported import exported

from shoal.serving.artifact import files

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from shoal.serving.http.listening import ServiceReach, listen
from shoal.serving.service.api import Limits
from shoal.serving.service.server import HttpServer, serve

JSON = {"content-type": "application/json"}


class Running:
    """A service in a thread."""

    def __init__(self, artifact: Path, token: str | None = None, **limits: Any):
        self.start(HttpServer.for_artifact(artifact, Limits(**limits), token))

    def start(self, server: HttpServer) -> None:
        self.server = server
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.service: Any = self.server.api.service
        self.thread = threading.Thread(target=self.server.run, args=([listener],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        connection.request(method, path, data, {**JSON, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def raw(self, data: bytes, parts: int = 1, pause: float = 0.0) -> bytes:
        """What comes back until the other side closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as link:
            for k in range(parts):
                link.sendall(data)
                if k + 1 < parts:
                    time.sleep(pause)
            found = b""
            while part := link.recv(65536):
                found += part
        return found

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.server.api.close()


@pytest.fixture(scope="module")
def artifacts() -> dict[str, Path]:
    return exported()


@pytest.fixture(scope="module")
def running(artifacts: dict[str, Path]) -> Iterator[Running]:
    with Running(artifacts["SASRec"], body_bytes=10_000, seconds=0.5) as found:
        yield found


def test_answers_are_the_models(running: Running) -> None:
    model = running.service.model
    user = model.users.words[9]
    status, answer = running.call("POST", "/v1/recommend", {"user": user, "topk": 5})
    assert status == 200 and answer["artifact"] == "SASRec"
    found = [(one["item"], one["score"]) for one in answer["items"]]
    assert dict(found) == pytest.approx(dict(model.recommend(user, topk=5)))
    history = model.items.words[model.history_of(9).items].tolist()
    again = running.call("POST", "/v1/recommend", {"history": history, "topk": 5})[1]
    assert again == answer
    items = [item for item, _ in found]
    status, answer = running.call("POST", "/v1/score", {"user": user, "items": items})
    assert answer["scores"] == pytest.approx([score for _, score in found], rel=1e-4)
    status, answer = running.call("POST", "/v1/recommend", {"user": user, "only": items[1:3]})
    assert [one["item"] for one in answer["items"]] == items[1:3]
    assert running.call("POST", "/v1/similar", {"item": items[0]})[0] == 200


def test_clicks_are_predicted(artifacts: dict[str, Path]) -> None:
    with Running(artifacts["DNN"]) as found:
        slots = found.service.model.signature["layout"]["slots"]
        samples = [dict.fromkeys(slots, 3), {**dict.fromkeys(slots, 3), slots[0]: [3, 9]}]
        status, answer = found.call("POST", "/v1/predict", {"samples": samples})
        assert status == 200 and len(set(answer["clicks"])) == 2
        one = found.call("POST", "/v1/predict", {"samples": samples[:1]})[1]["clicks"]
        assert one == pytest.approx(answer["clicks"][:1])
        assert found.call("POST", "/v1/predict", {"samples": [{"nothing": 1}]})[0] == 422
        assert found.call("POST", "/v1/recommend", {"user": "1"})[0] == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"\xff\xfe", 422),
        (b"[" * 9000, 422),
        ({"user": "1", "history": ["2"]}, 422),
        ({}, 422),
        ({"user": "1", "what": 1}, 422),
        ({"user": "1", "topk": 0}, 422),
        ({"user": "1", "topk": 10**30}, 422),
        ({"user": "x" * 600}, 422),
        ({"user": {"a": 1}}, 422),
        (b"x" * 10_001, 413),
    ],
)
def test_what_is_wrong_is_refused(running: Running, body: Any, status: int) -> None:
    found, answer = running.call("POST", "/v1/recommend", body)
    assert found == status and answer["error"]
    assert running.call("GET", "/health")[0] == 200


def test_only_an_unknown_name_is_answered_with_404(running: Running) -> None:
    item = running.service.model.items.words[1]
    status, answer = running.call("POST", "/v1/score", {"user": "nobody", "items": [item]})
    assert (status, answer["error"]) == (404, "user 'nobody' is not known to this model")
    name = "is not known; 422"  # whatever is named, the sentence is whole
    status, answer = running.call("POST", "/v1/score", {"user": name, "items": [item]})
    assert (status, answer["error"]) == (404, f"user {name!r} is not known to this model")
    # The words of an error do not decide: this one repeats a key of the request.
    status, answer = running.call("POST", "/v1/recommend", {"user": "1", "not known": 1})
    assert status == 422 and answer["error"].startswith("unknown key 'not known'; allowed: ")


def test_what_is_no_request_is_refused(running: Running) -> None:
    assert running.call("POST", "/v1/recommend", {}, {"content-type": "text/plain"})[0] == 415
    status, answer = running.call("GET", "/v1/recommend")
    assert status == 405 and answer["error"].startswith("this route answers POST with a body of JS")
    assert running.call("POST", "/ready") == (405, {"error": "this route answers GET"})
    assert b"\r\nallow: POST\r\n" in running.raw(
        b"GET /v1/score HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert running.call("GET", "/v1/nothing")[0] == 404
    assert running.call("GET", "/ready", headers={"host": "evil.example"})[0] == 421
    assert b"400 Bad Request" in running.raw(b"\x00\x01\x02 nonsense\r\n\r\n")
    chunked = (
        b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    )
    endless = (
        chunked + b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 3
    )
    assert b" 413 " in running.raw(endless)
    assert b" 408 " in running.raw(chunked + b"content-length: 100\r\n\r\n{")
    assert b" 408 " in running.raw(b"POST /v1/recommend HTTP/1.1\r\nhost: loc")
    long = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: " + b"y" * 70_000
    assert b" 431 " in running.raw(long)
    assert running.call("GET", "/health")[0] == 200


def test_pages_and_figures(running: Running) -> None:
    status, page = running.call("GET", "/")
    assert status == 200 and "SASRec" in page and "http://" not in page and "https://" not in page
    status, document = running.call("GET", "/openapi.json")
    assert document["openapi"].startswith("3.") and "/v1/recommend" in document["paths"]
    assert "/v1/recommend" in running.call("GET", "/docs")[1]
    assert running.call("GET", "/ready")[1]["artifact"] == "SASRec"
    running.call("POST", "/v1/recommend", {"user": "1"})
    text = running.call("GET", "/metrics")[1]
    assert 'shoal_requests_total{route="/v1/recommend",status="200"}' in text
    assert 'shoal_artifact_info{artifact="SASRec",model="SASRec"' in text


def test_a_token_is_asked_for(artifacts: dict[str, Path]) -> None:
    with Running(artifacts["SASRec"], token="a token of some length") as found:
        assert found.call("GET", "/health")[0] == 200
        assert found.call("POST", "/v1/recommend", {"user": "1"})[0] == 401
        for given, status in (("a token of some length", 200), ("another", 401), ("é", 401)):
            headers = {"authorization": f"Bearer {given}".encode().decode("latin-1")}
            assert found.call("POST", "/v1/recommend", {"user": "1"}, headers)[0] == status


def test_beyond_this_host_a_token_and_encryption_are_needed(artifacts: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="--token-file"):
        serve(artifacts["SASRec"], ServiceReach(host="0.0.0.0"))
    with pytest.raises(ValueError, match="belong together"):
        serve(artifacts["SASRec"], ServiceReach(certificate="x.pem"))
    with pytest.raises(ValueError, match="is no artifact; `shoal export RUN"):
        serve(artifacts["SASRec"].parent / "nowhere", ServiceReach())


def test_what_is_being_written_is_not_served(artifacts: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(artifacts["SASRec"], files.hidden_of(tmp_path / "day-1"))
    with pytest.raises(ValueError, match="is no artifact; `shoal export RUN"):
        serve(tmp_path, ServiceReach())


def test_a_reload_under_load_loses_no_request(artifacts: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(artifacts["SASRec"], tmp_path / "day-1")
    statuses: list[int] = []
    names: set[str] = set()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            status, answer = found.call("POST", "/v1/recommend", {"user": "5"})
            statuses.append(status)
            names.add(answer.get("artifact", "none"))

    clients = [threading.Thread(target=ask) for _ in range(4)]
    with Running(tmp_path, answer_seconds=120.0) as found:  # however busy the machine is
        try:
            for one in clients:
                one.start()
            shutil.copytree(artifacts["SASRec"], tmp_path / ".new")
            (tmp_path / ".new" / "README.md").write_text("another day")
            files.write_manifest(tmp_path / ".new")
            (tmp_path / ".new").rename(tmp_path / "day-2")
            assert found.service.refresh() and not found.service.refresh()
            shutil.copytree(tmp_path / "day-2", tmp_path / ".new")
            (tmp_path / ".new" / "README.md").write_text("damaged afterwards")
            manifest = (tmp_path / ".new" / "manifest.json").read_text()
            (tmp_path / ".new" / "manifest.json").write_text(manifest.replace("README", "READYOU"))
            (tmp_path / ".new").rename(tmp_path / "day-3")
            assert not found.service.refresh()  # what is damaged is passed over
            begun = len(statuses)
            while len(statuses) < begun + 20:
                time.sleep(0.01)
        finally:
            done.set()
            for one in clients:
                one.join()
    assert set(statuses) == {200} and "day-2" in names and names <= {"day-1", "day-2"}
