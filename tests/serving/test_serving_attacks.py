"""What strangers, and authors of artifacts, can do to `shoal serve` and those who look at it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from exported import exported, rewrite
from pydantic import model_validator
from test_serving import Running
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.files import write_words
from shoal.serving.http.listening import read_token
from shoal.serving.service import questions
from shoal.serving.service.app import QUESTIONS
from shoal.serving.service.questions import Predict, Recommend


@pytest.fixture(scope="module")
def artifacts() -> dict[str, Path]:
    return exported()


def test_a_token_is_asked_for_whatever_the_host_is_called(artifacts: dict[str, Path]) -> None:
    """The header `host` was read as the beginning of the path, and /health asks for no token."""
    with Running(artifacts["SASRec"], token="a token of some length") as found:
        found.server.api.local = False  # as behind an address that others reach
        for host in ("x/health?", "x/health#", "x/ready?a="):
            status, _ = found.call("POST", "/v1/recommend", {"user": "1"}, {"host": host})
            assert status == 401
        headers = {"authorization": "Bearer a token of some length"}
        text = found.call("GET", "/metrics", headers=headers)[1]
        assert 'route="/v1/recommend",status="401"' in text and "/health" not in text


def test_the_page_shows_names_and_runs_nothing(artifacts: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts["SASRec"], folder)
    rewrite(folder, files.SIGNATURE, lambda d: d.update(model="<script>alert(1)</script>"))
    with Running(folder) as found:
        page = found.call("GET", "/")[1]
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_names_of_items_do_nothing_to_a_terminal(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts["SASRec"], folder)
    words = Artifact(folder).items.words.tolist()
    named = [words[0], *(f"[/bold]{word}\x1b]0;title\x07" for word in words[1:])]
    write_words(folder, "items", named)
    files.write_manifest(folder)
    done = CliRunner().invoke(app, ["recommend", str(folder), "--user", "1", "--topk", "2"])
    assert done.exit_code == 0, done.output
    assert "[/bold]" in done.output and "\x1b" not in done.output and "\x07" not in done.output


def test_nobody_is_refused_for_what_another_one_asks(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait are answered together; one of them cannot be answered at all."""
    with Running(artifacts["DNN"]) as found:
        service = found.service
        together: list[int] = []

        def spoiled(model: Artifact, kind: str, asked: Any) -> Any:
            together.append(len(asked))
            if any(7 in one.samples[0].values() for one in asked):
                raise ValueError("a sample that no graph takes")
            return questions.answer_batch(model, kind, asked)

        monkeypatch.setattr(found.server.api, "answer_batch", spoiled)
        slots = service.model.signature["layout"]["slots"]
        statuses: dict[int, int] = {}

        def ask(number: int) -> None:
            sample = dict.fromkeys(slots, 7 if number == 0 else 3)
            statuses[number] = found.call("POST", "/v1/predict", {"samples": [sample]})[0]

        for _ in range(20):  # until some were answered together
            clients = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
            for one in clients:
                one.start()
            for one in clients:
                one.join()
            assert statuses == {0: 422, **dict.fromkeys(range(1, 8), 200)}
            if max(together) > 1:
                break


def test_few_bytes_ask_for_few_numbers(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of two bytes stands for all columns of a model; all waiting ones together, more."""
    model = Artifact(artifacts["DNN"])
    columns = len(model.signature["layout"]["slots"]) + len(model.signature["layout"]["dense"])
    monkeypatch.setattr(questions, "MOST_CELLS", 10 * columns)
    sizes: list[int] = []
    logits = model.logits
    monkeypatch.setattr(
        model, "logits", lambda fields: sizes.append(len(fields["slots"])) or logits(fields)
    )
    asked = [Predict(samples=[{}] * 8) for _ in range(6)] + [Predict(samples=[{}] * 11)]
    answers = questions.answer_predict(model, asked)
    assert [len(one["clicks"]) for one in answers[:-1]] == [8] * 6
    assert "at most 10 samples" in str(answers[-1])
    assert sum(sizes) == 48 and max(sizes) <= 24
    big = [{name: 10**30 for name in model.signature["layout"]["dense"]}]
    (found,) = questions.answer_predict(model, [Predict(samples=big)])
    assert isinstance(found, ValueError) or len(found["clicks"]) == 1


@pytest.mark.parametrize("kind", ["recommend", "predict"])
def test_the_first_error_is_the_last(artifacts: dict[str, Path], kind: str) -> None:
    """Of 80,000 errors one is reported: a list of all took 50 to 200 times the body."""
    model = Artifact(artifacts["DNN"])
    slots = model.signature["layout"]["slots"]
    wrong = {f"k{number}": 1 for number in range(80_000)}
    body = {"samples": [{key: {} for key in slots}] * 9000} if kind == "predict" else wrong
    text, question = json.dumps(body).encode(), {"recommend": Recommend, "predict": Predict}[kind]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"samples\.0\.|unknown key 'k0'; allowed: user"):
            asked = questions.parse(question, text)
            raise questions.answer_predict(model, [asked])[0]
        assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    finally:
        tracemalloc.stop()


def test_a_large_body_does_not_hold_up_others(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    class Noted(Recommend):
        @model_validator(mode="before")
        @classmethod
        def _note(cls, value: Any) -> Any:
            threads.add(threading.current_thread().name)
            return value

    monkeypatch.setitem(QUESTIONS, "recommend", Noted)
    with Running(artifacts["SASRec"]) as found:
        asked = {"history": [found.service.model.items.words[1]] * 10_000}
        assert found.call("POST", "/v1/recommend", asked)[0] == 200
        assert threads and found.thread.name not in threads
        status, answer = found.call("POST", "/v1/recommend", dict.fromkeys(map(str, range(9**5))))
        assert status == 422 and "unknown key '0'" in answer["error"]


def test_a_token_must_be_long_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("a token of some length\n")
    for mode in (0o666, 0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(ValueError, match=f"by others: chmod 600 {file}"):
            read_token(str(file))
    file.chmod(0o600)
    assert read_token(str(file)) == "a token of some length"
    file.write_text("short")
    monkeypatch.setenv("SHOAL_TOKEN", "a")
    for given, source in ((str(file), "--token-file"), (None, "SHOAL_TOKEN")):
        with pytest.raises(ValueError, match=f"{source}.* must hold 16 plain characters or more"):
            read_token(given)
    monkeypatch.setenv("SHOAL_TOKEN", "a token of some length")
    assert read_token(None) == "a token of some length"


def test_an_unknown_user_does_not_learn_of_others(artifacts: dict[str, Path]) -> None:
    with Running(artifacts["SASRec"]) as found:
        known = {*found.service.model.users.words[1:], *found.service.model.items.words[1:]}
        for asked in ({"user": "nobody"}, {"history": ["nothing"]}):
            status, answer = found.call("POST", "/v1/score", {**asked, "items": ["1"]})
            assert status == 404 and "is not known" in answer["error"]
            assert not known & set(re.findall(r"\w+", answer["error"]))
            status, answer = found.call("POST", "/v1/recommend", asked)
            assert status == 200 and answer["by"] == "popularity" and len(answer["items"]) == 10
            assert answer["unknown"] in (["nobody"], ["nothing"])


def test_formulas_in_a_csv(artifacts: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifacts["SASRec"], folder)
    words = Artifact(folder).items.words.tolist()
    write_words(folder, "items", [words[0], *(f'=HYPERLINK("{word}")' for word in words[1:])])
    files.write_manifest(folder)
    output = tmp_path / "top.csv"
    asked = ["recommend", str(folder), "--all", "--topk", "2", "--output", str(output)]
    for more, begins in (([], "=HYPERLINK"), (["--spreadsheet"], "'=HYPERLINK")):
        assert CliRunner().invoke(app, [*asked, *more]).exit_code == 0
        rows = list(csv.DictReader(output.open()))
        assert rows and all(row["item"].startswith(begins) for row in rows)
        assert all(float(row["score"]) < 100 for row in rows)
    refused = CliRunner().invoke(app, [*asked[:-1], str(tmp_path / "x.jsonl"), "--spreadsheet"])
    assert "is about csv" in str(refused.exception)
