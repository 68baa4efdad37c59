"""The load of `--bench`: what is asked, what is counted, and the commands as they are typed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from exported import exported
from served import Served
from shop_pipeline import pipeline, shop
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.load.clients import ClientLoad, LoadResult
from shoal.serving.load.measurement import MeasuredService, ServiceFigure, _highest
from shoal.serving.load.questions import artifact_questions, pipeline_questions
from shoal.serving.pipeline_service import questions as of_pipelines
from shoal.serving.service.questions import QUESTIONS, answer_batch

TEXT = """\
retrieve:
  - {artifact: SHOP/BPR, number: 20}
rank: {artifact: SHOP/FM}
"""


@pytest.mark.parametrize("name", ["BPR", "SASRec", "Pop", "FM"])
def test_an_artifact_answers_what_it_is_asked(name: str) -> None:
    artifact = Artifact(shop() / name)
    path, questions = artifact_questions(artifact, count=20)
    kind = path.rpartition("/")[2]
    assert kind == ("predict" if name == "FM" else "recommend") and len(questions) == 20
    answers = answer_batch(artifact, kind, [QUESTIONS[kind](**one) for one in questions])
    assert not [one for one in answers if isinstance(one, Exception)]
    assert kind == "predict" or all(one["by"] != "popularity" or name == "Pop" for one in answers)
    assert questions == artifact_questions(artifact, count=20)[1]


def test_a_pipeline_answers_what_it_is_asked(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, TEXT)
    _, questions = pipeline_questions(opened, count=20)
    assert {one["context"]["device"] for one in questions} <= {"phone", "desk", None}
    asked = [of_pipelines.QUESTIONS["recommend"](**one) for one in questions]
    answers = of_pipelines.PipelineAnswers()(opened, "recommend", asked)
    assert not [one for one in answers if isinstance(one, Exception) or one["unknown"]]


def test_clients_and_rates_count_what_was_answered(tmp_path: Path) -> None:
    with Served(exported()["SASRec"], tmp_path) as served:
        address = f"http://127.0.0.1:{served.port}"
        load = ClientLoad(address, "/v1/recommend", [{"user": "5"}, {"user": "7"}])
        result = asyncio.run(load.by_clients(4, requests=30))
        assert result.questions == result.answers == 30 and 0 < result.p50 <= result.p99
        result = asyncio.run(load.by_clients(2, seconds=0.3, warm_up=0.1))
        assert 0 < result.answers < result.questions
        result = asyncio.run(load.at_rate(200.0, 40))
        assert (result.questions, result.answers, result.refusals) == (40, 40, 0)
        assert json.loads(load.last)["items"]
        wrong = ClientLoad(address, "/v1/recommend", [{"usr": "5"}])
        for run in (wrong.by_clients(2, requests=4), wrong.at_rate(50.0, 4)):
            with pytest.raises(ValueError, match=r"answered 422: .*unknown key 'usr'"):
                asyncio.run(run)


def test_a_busy_service_refuses() -> None:
    """Every second question gets 503; a connection that is closed is opened anew."""
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        asked += 1
        status = b"503 Service Unavailable" if asked % 2 else b"200 OK"
        writer.write(
            b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
        )
        writer.close()

    async def run() -> tuple[LoadResult, LoadResult]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        load = ClientLoad(f"http://127.0.0.1:{port}", "/", [{}])
        async with server:
            return await load.by_clients(1, requests=10), await load.at_rate(500.0, 10)

    for result in asyncio.run(run()):
        assert (result.questions, result.answers, result.refusals) == (10, 5, 5)


@pytest.mark.parametrize(("capacity", "found"), [(800.0, 800.0), (0.0, None), (5000.0, 1000.0)])
def test_the_highest_rate(capacity: float, found: float | None) -> None:
    def at_rate(rate: float) -> ServiceFigure:
        late = 10.0 if rate <= capacity else 90.0
        return ServiceFigure("", LoadResult(10, 10, 0, rate, 1.0, late), None)

    highest = _highest(at_rate, fastest=1000.0, p99=50.0)
    rate = None if highest is None else highest.result.rate
    assert rate == (None if found is None else pytest.approx(found, abs=1000 / 2**6))


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"ended with status 2: .*is no artifact"),
        MeasuredService(["serve", str(tmp_path)]),
    ):
        pass


def bench(*words: str) -> str:
    """What a command with --bench prints; the service that it asks is a process."""
    words = (*words, "--bench", "--bench-seconds=0.2")
    done = CliRunner().invoke(app, words, env={"SHOAL_TOKEN": "a token of sixteen characters"})
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_bench_of_an_artifact_and_of_a_pipeline(tmp_path: Path) -> None:
    document = json.loads(bench("serve", str(exported()["SASRec"]), "--threads=1", "--json"))
    loads: list[dict[str, Any]] = document["by_clients"]
    assert [one["load"] for one in loads] == ["1 client", "8 clients", "64 clients"]
    assert all(one["answers"] and one["p50"] <= one["p99"] for one in loads)
    assert document["path"] == "/v1/recommend" and document["p99_bound"] == 50.0
    pipeline(tmp_path, TEXT)
    text = bench("pipeline", "serve", str(tmp_path / "pipeline.yaml"), "--bench-p99=0.1")
    assert "64 clients" in text and "p99, ms" in text
    assert "no rate that was tried keeps the p99 within 0.1 ms" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["serve", "ARTIFACT", "--json"], "--json belongs to --bench"),
        (["pipeline", "serve", "FILE", "--bench-p99", "5"], "--bench-p99 belongs to --bench"),
        (["serve", "ARTIFACT", "--bench", "--port", "80"], "leave --port out"),
        (["pipeline", "serve", "FILE", "--bench", "--log", "kept"], "leave --log out"),
        (["serve", "ARTIFACT", "--bench"], "is no artifact"),
    ],
)
def test_options_that_do_not_fit(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert result.exit_code != 0 and error in str(result.exception)
