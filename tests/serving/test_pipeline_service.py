"""`shoal pipeline serve`: answers are those of the pipeline itself, whatever changes meanwhile."""

from __future__ import annotations

import json
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shop_pipeline import shop

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from browser import Browser, needs_browser
from served import PATIENCE, ServedPipeline
from test_serving import Running

from shoal.serving.pipeline.log_writer import RequestLog
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import PipelineAnswer, PipelineQuestion
from shoal.serving.pipeline_service.app import PipelineApi
from shoal.serving.pipeline_service.live_pipeline import LivePipeline
from shoal.serving.service.api import Limits
from shoal.serving.service.server import HttpServer

TEXT = """\
items: SHOP/items.csv
retrieve:
  - {artifact: SHOP/BPR, number: 20}
  - {artifact: SHOP/SASRec, number: 20, name: sequences}
rank: {artifact: SHOP/FM}
rules:
  - seen
  - at_most: {number: 3, attribute: category}
  - explore: {share: 0.3}
fallback: {artifact: SHOP/Pop, by: popularity, number: 40}
"""
SEED = 11
PHONE = {"device": "phone"}
QUESTIONS: list[dict[str, Any]] = [
    {"user": "u7", "number": 4, "context": PHONE},
    {"history": ["i1", "i5"], "context": {"device": None}, "exclude": ["i9"]},
    {"user": "stranger", "number": 2, "context": PHONE},
    {"user": "u2", "history": ["i2", "i3"], "times": [86_400, 90_000], "context": PHONE},
    {"user": "u9", "number": 40, "context": {"device": "desk"}, "time": 1_704_200_000.0},
]


def write(folder: Path, text: str = TEXT) -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(text.replace("SHOP", str(shop())))
    return file


class RunningPipeline(Running):
    """A pipeline's service in a thread."""

    def __init__(self, file: Path, log: RequestLog, **limits: Any):
        patient = Limits(answer_seconds=240.0, **limits)  # however busy the machine is
        api = PipelineApi(LivePipeline(file, 8, SEED), patient, log=log)
        self.start(HttpServer.of(api))

    def ask(self, question: dict[str, Any]) -> tuple[int, Any]:
        return self.call("POST", "/v1/recommend", question)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPipeline]:
    """One process for this file: its first questions are those that the seed is about."""
    folder = tmp_path_factory.mktemp("served")
    words = [f"--seed={SEED}", f"--log={folder / 'log'}"]
    words += ["--seconds=240", "--drain=3"]  # however busy the machine is
    with ServedPipeline(write(folder), folder, *words) as running:
        yield running


def offline(file: Path) -> list[dict[str, Any]]:
    """What the pipeline answers without a service, question by question."""
    pipeline = Pipeline(file, seed=SEED)
    answers = []
    for values in QUESTIONS:
        (answer,) = pipeline.answer([PipelineQuestion(**values)])
        items = [
            {
                "item": shown.item,
                "score": pytest.approx(shown.score, rel=1e-5),
                "sources": list(shown.sources),
                "moved": shown.moved,
                "propensity": shown.propensity,
            }
            for shown in answer
        ]
        expected = {"items": items, "unknown": list(answer.unknown), "pipeline": pipeline.version}
        answers.append({**expected, "fallbacks": list(answer.fallbacks)})
    return answers


def test_answers_are_those_of_the_pipeline_and_all_are_logged(
    served: ServedPipeline, tmp_path: Path
) -> None:
    answers = []
    for values, expected in zip(QUESTIONS, offline(write(tmp_path))):
        status, answer = served.call("/v1/recommend", values)
        assert status == 200 and len(answer["request"]) == 32
        assert {**answer, "request": ""} == {**expected, "request": ""}
        answers.append(answer)
    assert answers[2]["unknown"] == ["BPR", "sequences"]
    assert answers[2]["fallbacks"] == ["retrieve"]
    (file,) = (served.log.parent / "log").glob("requests-*-*.jsonl")
    assert f"-{served.process.pid}.jsonl" in file.name
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line, answer, values in zip(lines, answers, QUESTIONS, strict=True):
        shown = answer["items"]
        assert abs(line.pop("time") - time.time()) < 600
        assert len(line.pop("place_propensity")) == len(shown)
        assert line == {
            "request": answer["request"],
            "pipeline": answer["pipeline"],
            "user": values.get("user"),
            "history": values.get("history"),
            "context": values["context"],
            "items": [one["item"] for one in shown],
            "scores": [one["score"] for one in shown],
            "propensity": [one["propensity"] for one in shown],
            "sources": [one["sources"] for one in shown],
            "fallbacks": answer["fallbacks"],
        }
    assert served.figure("logged_total") == len(QUESTIONS)
    filled = sum("retrieve" in answer["fallbacks"] for answer in answers)
    assert served.figure('fallbacks_total{stage="retrieve"}') == filled


def test_many_questions_of_one_request(served: ServedPipeline) -> None:
    status, answer = served.call("/v1/recommend_many", {"questions": QUESTIONS})
    lists = answer["answers"]
    assert status == 200 and len({one["request"] for one in lists}) == len(QUESTIONS)
    assert [len(one["items"]) for one in lists] == [4, 10, 2, 10, len(lists[4]["items"])]
    wrong = [*QUESTIONS[:2], {"user": "u1"}]
    status, answer = served.call("/v1/recommend_many", {"questions": wrong})
    assert status == 422 and "which the context does not have" in answer["error"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "give a user, a history, or both"),
        ({"usr": "u1"}, "unknown key 'usr'; allowed: user, history"),
        ({"user": "u1", "number": 5000, "context": PHONE}, "number: "),
        ({"user": "u1"}, "reads 'device', which the context does not have"),
        ({"user": "u1", "context": {**PHONE, "devise": 1}}, "reads no 'devise'"),
        ({"user": "u1", "context": PHONE, "time": "now"}, "time: "),
        ({"history": ["i1"], "times": [1, 2, 3], "context": PHONE}, "3 times for 1 items"),
    ],
)
def test_what_is_wrong_is_refused(served: ServedPipeline, body: Any, error: str) -> None:
    status, answer = served.call("/v1/recommend", body)
    assert status == 422 and error in answer["error"]


def test_what_else_is_shown(served: ServedPipeline) -> None:
    status, ready = served.call("/ready")
    assert status == 200 and len(ready["pipeline"]) == 12
    assert f'pipeline="{ready["pipeline"]}"' in served.call("/metrics")[1]
    examples = served.call("/v1/examples")[1]
    assert examples["context"] == ["device"] and len(examples["users"]) == 5
    assert examples["stages"] == ["rank", "at_most", "explore"]
    paths = served.call("/openapi.json")[1]["paths"]
    assert {"/v1/recommend", "/v1/recommend_many", "/ready"} <= set(paths)
    assert served.call("/v1/recommend")[0] == 405 and served.call("/health")[0] == 200


def test_new_items_are_not_taken_here(served: ServedPipeline) -> None:
    status, answer = served.call("/items", {"items": [{"item": "new", "vector": [1.0]}]})
    assert status == 403 and "shoal artifact add-items" in answer["error"]


def test_changed_files_take_over_and_bad_ones_do_not(served: ServedPipeline) -> None:
    """Requests go on meanwhile; each answer is of one version of the file."""
    file = served.log.parent / "pipeline.yaml"
    first = served.call("/ready")[1]["pipeline"]
    statuses: list[int] = []
    versions: dict[str, set[int]] = {}
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            status, answer = served.call("/v1/recommend", {**QUESTIONS[4], "number": 30})
            statuses.append(status)
            most = max(
                sum(int(one["item"][1:]) % 4 == kind for one in answer["items"])
                for kind in range(4)
            )
            versions.setdefault(answer["pipeline"], set()).add(most)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        failures = served.figure("reload_failures_total")
        write(file.parent, TEXT.replace("seen", "sen"))
        served.until(lambda: served.figure("reload_failures_total") > failures)
        assert "there is no rule 'sen'" in served.log.read_text()
        write(file.parent, TEXT.replace("number: 3,", "number: 1,"))
        served.until(lambda: served.call("/ready")[1]["pipeline"] != first)
        served.until(lambda: len(versions) > 1)
    finally:
        done.set()
        for client in clients:
            client.join()
        write(file.parent)
    assert set(statuses) == {200}
    second = next(version for version in versions if version != first)
    assert versions == {first: {3}, second: {1}}
    served.until(lambda: served.call("/ready")[1]["pipeline"] == first)


def block(monkeypatch: pytest.MonkeyPatch, api: PipelineApi) -> tuple[threading.Event, Any]:
    """Answers wait until the event; and a function that waits until one does."""
    free, begun, answer = threading.Event(), threading.Event(), api.answer_batch

    def wait(*arguments: Any) -> Any:
        begun.set()
        free.wait(60)
        return answer(*arguments)

    monkeypatch.setattr(api, "answer_batch", wait)
    return free, begun


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    """A service in this process, with a deadline and a log."""
    folder = tmp_path_factory.mktemp("running")
    log = RequestLog(folder / "log")
    with RunningPipeline(write(folder), log, deadline=0.5) as service:
        yield service


def test_who_would_wait_too_long_is_sent_away_at_once(
    running: RunningPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = running.server.api.batchers["recommend"]
    free, begun = block(monkeypatch, running.server.api)
    statuses: list[int] = []
    first = threading.Thread(target=lambda: statuses.append(running.ask(QUESTIONS[0])[0]))
    batcher.cost.add(1, seconds=300.0)  # a batch took so long
    first.start()  # nobody is before it
    begun.wait(60)
    status, answer = running.ask(QUESTIONS[0])
    assert status == 503 and "come again" in answer["error"]
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    kind = b"content-type: application/json\r\ncontent-length: 39\r\n\r\n"
    raw = running.raw(head + kind + b'{"user":"u7","context":{"device":null}}')
    (seconds,) = [line for line in raw.splitlines() if line.startswith(b"retry-after: ")]
    assert 300 < int(seconds.split()[1]) <= 600  # until both batches are done
    free.set()
    first.join()
    assert statuses == [200] and running.ask(QUESTIONS[0])[0] == 200
    assert "shoal_too_late_total 2.0" in running.call("GET", "/metrics")[1]


def test_a_full_disk_stops_no_request(
    running: RunningPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The system takes a part of a line, and then no more: the part goes again."""
    assert running.ask(QUESTIONS[0])[0] == 200
    log = running.server.api.log
    (file,) = log.folder.iterdir()
    before, written = file.read_bytes(), log.written
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level("WARNING", logger="shoal"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
        try:
            answers = [running.ask(QUESTIONS[0]) for _ in range(3)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [status for status, _ in answers] == [200] * 3 and file.read_bytes() == before
    assert caplog.text.count("the request log cannot be written: File too large") == 1
    assert running.ask(QUESTIONS[0])[0] == 200
    metrics = running.call("GET", "/metrics")[1]
    assert "shoal_log_lost_total 3.0" in metrics
    assert f"shoal_logged_total {written + 1}.0" in metrics
    lines = file.read_text().splitlines()
    assert len(lines) == written + 1 and json.loads(lines[-1])["user"] == "u7"


def test_a_log_begins_a_new_file(tmp_path: Path) -> None:
    log, answer = RequestLog(tmp_path / "log", most_bytes=150), PipelineAnswer([])
    for number in range(5):
        log.add("3c1f09ab52de", [f"{number:032x}"], [PipelineQuestion(7)], [answer])
    log.close()
    lines = [
        json.loads(line)
        for file in (tmp_path / "log").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert sorted(int(line["request"], 16) for line in lines) == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "log").iterdir())) == 5 and lines[0]["user"] == "7"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--log .*file: no file can be written there"):
        RequestLog(tmp_path / "file")


@needs_browser
def test_the_page_shows_where_items_came_from(served: ServedPipeline) -> None:
    with Browser() as browser:
        browser.open(f"http://127.0.0.1:{served.port}/")
        browser.wait_for("!!document.querySelector('.chips button')")
        assert '"device": null' in browser.evaluate("document.querySelector('#context').value")
        browser.click(".chips button")
        browser.wait_for("document.querySelectorAll('#list > .row').length === 10")
        assert browser.text("#heading") == "For user u0"
        text = browser.text("#list")
        assert "from BPR" in text and "sequences" in text
        assert "rank ↑" in text and "explore ↑" in text and "here with chance 0." in text
        browser.open(f"http://127.0.0.1:{served.port}/?user=%3Cb%3Enobody")
        browser.wait_for("!!document.querySelector('#list .row')")
        assert browser.text("#heading") == "For user <b>nobody"
        assert "sources that do not know who asks: BPR, sequences" in browser.text("#note")
        assert "the fallback took the place of: retrieve" in browser.text("#note")
        assert "added by a rule or the fallback" in browser.text("#list")
        browser.evaluate("document.querySelector('#context').value = '{'")
        browser.click("#ask button")
        browser.wait_for("document.querySelector('#error').innerText.includes('JSON')")
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not browser.errors and not browser.left_the_machine


def test_a_stopped_service_loses_no_request(served: ServedPipeline) -> None:
    """The last test of this process: requests that come after the signal are answered, too."""
    statuses: list[int] = []
    stopped = threading.Event()

    def ask() -> None:
        while not stopped.is_set():
            try:
                statuses.append(served.call("/v1/recommend", QUESTIONS[0])[0])
            except ConnectionRefusedError:  # nobody listens any more
                return

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    served.process.send_signal(signal.SIGTERM)
    served.until(lambda: served.call("/ready")[0] == 503)
    answered = len(statuses)
    served.until(lambda: len(statuses) > answered + 3 or not clients[0].is_alive())
    stopped.set()
    for client in clients:
        client.join()
    assert set(statuses) == {200} and served.process.wait(PATIENCE) == 0
