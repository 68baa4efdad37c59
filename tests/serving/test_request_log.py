"""The request log: read whole, and written as impressions that a click model trains on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from exported import check_here
from request_logs import TIME, write_log
from shop_pipeline import KEYS, USERS, pipeline
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.serving.artifact import export
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.serving.pipeline.request_log import read_log, read_outcomes
from shoal.training.run_folder import start_logging

TEXT = """\
items: SHOP/items.csv
retrieve: [{artifact: SHOP/BPR, number: 10}]
rank: {artifact: SHOP/FM}
rules:
  - explore: {share: 0.5}
"""
ENTRY = {"request": "r1", "time": TIME, "items": ["i1", "i2"]}
Call = Callable[..., str]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with pipeline.yaml, its log, and outcomes in log/outcomes.csv."""
    folder = tmp_path_factory.mktemp("logged")
    shown_by = pipeline(folder, TEXT)
    questions = [
        PipelineQuestion(f"u{n % USERS}", number=4, context={"device": ["phone", None][n % 2]})
        for n in range(300)
    ]
    write_log(folder / "log", shown_by, questions, seed=1)
    return folder


@pytest.fixture
def call(logged: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Call `shoal pipeline` in the folder of the log; what it prints."""
    monkeypatch.chdir(logged)

    def run(*words: str, fails: str = "") -> str:
        result = CliRunner().invoke(app, ["pipeline", *words])
        if fails:
            assert result.exit_code != 0 and fails in str(result.exception), result.exception
        else:
            assert result.exit_code == 0, result.exception
        return result.output

    yield run
    start_logging("info")


def write_lines(folder: Path, *lines: object, end: str = "\n") -> Path:
    file = folder / "requests-20261119-120000-1.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts) + end)
    return folder


def test_a_log_is_read_in_order(logged: Path) -> None:
    requests = list(read_log(logged / "log"))
    assert [int(one.request, 16) for one in requests] == list(range(300))
    first = requests[0]
    assert first.user == "u0" and first.context == {"device": "phone"} and len(first) == 4
    assert (first.propensity > 0).all() and first.place_propensity[0] == first.propensity[0]
    one_file = next((logged / "log").glob("*-120000-1.jsonl"))
    assert len(list(read_log(one_file))) == 150


def test_a_line_without_its_end_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_lines(tmp_path, {**ENTRY, "newer": 1}, '{"request": "r2", "ti', end="")
    with caplog.at_level("WARNING", logger="shoal"):
        (request,) = read_log(tmp_path)
    assert "requests-20261119-120000-1.jsonl:2: the line has no end" in caplog.text
    assert request.items == ["i1", "i2"] and len(request.propensity) == 2


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["{"], ":1: this is no JSON"),
        (["[1]"], ":1: the line: "),
        ([{"request": "r1", "items": []}], ":1: time: Field required"),
        ([{**ENTRY, "propensity": [0.5]}], ":1: propensity has 1 values for 2 items"),
        ([{**ENTRY, "propensity": [0.5, 0.0]}], ":1: propensity.1: .*greater than 0"),
        ([{**ENTRY, "scores": ["a", 1]}], ":1: scores.0: "),
        ([{**ENTRY, "items": ["7", 7.0]}], ":1: items: one of them was shown twice"),
        ([ENTRY, ENTRY], ":2: the request 'r1' stands at .*:1 too"),
    ],
)
def test_lines_that_are_no_requests(tmp_path: Path, lines: list, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        list(read_log(write_lines(tmp_path, *lines)))


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no request log"):
        list(read_log(tmp_path / "none"))
    with pytest.raises(ValueError, match="holds no file requests-"):
        list(read_log(tmp_path))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("request,item\nr1,i1\n", "has no column 'label'; it has request, item"),
        ("request,item,lable\nr1,i1,1\n", "did you mean lable"),
        ("request,item,label\nr1,i1,yes\n", "label of row 1 is 'yes'; labels are numbers"),
        ("request,item,label\nr1,i1,1\nr1,i1,2\n", "request 'r1' and the item 'i1'; give one"),
    ],
)
def test_outcomes_that_cannot_be_read(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "outcomes.csv").write_text(text)
    with pytest.raises(ValueError, match=error):
        read_outcomes(tmp_path / "outcomes.csv")


def test_outcomes_of_another_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (request,) = read_log(write_lines(tmp_path, ENTRY))
    (tmp_path / "outcomes.csv").write_text("request,item,label\nr1,i9,1\nr1,i2,2.5\n")
    outcomes = read_outcomes(tmp_path / "outcomes.csv")
    assert outcomes.of(request).tolist() == [0.0, 2.5]
    with caplog.at_level("WARNING", logger="shoal"):
        outcomes.check()
    assert "1 of 2 rows are of items that the log does not show" in caplog.text
    (tmp_path / "outcomes.csv").write_text("request,item,label\nr8,i1,1\n")
    with pytest.raises(ValueError, match=r"no row is of an item that the log shows.*'r8'"):
        read_outcomes(tmp_path / "outcomes.csv").check()


def test_a_model_learns_from_impressions_and_is_served(call: Call, logged: Path) -> None:
    """From the log to a ranker that reads positions, whose pipeline sets them to 1."""
    printed = call(
        *("impressions", "log", "--outcomes", "log/outcomes.csv", "--output", "shown.parquet"),
        *("--clip", "5"),
    )
    assert "1,200 impressions of 300 requests" in printed
    assert "shoal train shown.parquet --model=DeepFM" in printed
    frame = pl.read_parquet("shown.parquet")
    assert frame.columns == [
        *("request", "time", "user", "item", "position", "propensity", "score", "weight"),
        *("device", "label"),
    ]
    requests = list(read_log("log"))
    assert frame["item"].to_list() == [item for one in requests for item in one.items]
    assert frame["position"].to_list() == [1, 2, 3, 4] * 300
    assert frame["device"].to_list()[:8] == ["phone"] * 4 + [None] * 4
    expected = (1 / frame["propensity"]).clip(upper_bound=5)
    assert frame["weight"].to_list() == pytest.approx(expected.to_list())
    outcomes = pl.read_csv("log/outcomes.csv")
    assert frame["label"].sum() == len(outcomes) and frame["label"].max() == 1
    # Labels are fewer at lower places, and the model learns it.
    keys = {**KEYS, "run.output": "shown-run", "model.layers": [8], "train.epochs": 2}
    keys["data.unload.inter"] = ["request", "propensity", "score", "weight"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        shoal.fit("DeepFM", frame, user="user", item="item", time="time", label="label", **keys)
        shoal.export("shown-run", "shown-model")
    rank = "rank: {artifact: shown-model, context: {position: 1}}"
    learned = pipeline(logged, TEXT.replace("rank: {artifact: SHOP/FM}", rank))
    assert learned.ranker is not None and learned.ranker.context == ["device"]
    answer = learned.recommend("u5", number=3, context={"device": "phone"})
    row = {"user": "u5", "device": "phone", "position": 1}
    rows = [{**row, "item": shown.item} for shown in answer]
    chances = shoal.load("shown-model").predict(rows)
    assert [shown.score for shown in answer] == pytest.approx(chances.tolist())
    lower = learned.recommend("u5", number=10, context={"device": "phone", "position": 4})
    assert {shown.item: shown.score for shown in lower}[answer[0].item] != answer[0].score
    Path("other.yaml").write_text(
        (logged / "pipeline.yaml").read_text().replace("position: 1", "positon: 1")
    )
    with pytest.raises(ValueError, match=r"reads no 'positon'.*did you mean position"):
        Pipeline("other.yaml")


def test_columns_that_have_no_place(tmp_path: Path) -> None:
    (tmp_path / "outcomes.csv").write_text("request,item,label\nr1,i1,1\n")
    write_lines(tmp_path, {**ENTRY, "context": {"label": "x"}})
    words = ["impressions", str(tmp_path), "--outcomes", str(tmp_path / "outcomes.csv")]
    for output, error in (("x.parquet", "a column 'label', which is one"), ("x.txt", "must end")):
        result = CliRunner().invoke(app, ["pipeline", *words, "--output", str(tmp_path / output)])
        assert error in str(result.exception)
        write_lines(tmp_path, {**ENTRY, "context": {"tags": ["a", "b"]}})


def test_estimates_are_printed_with_what_they_rest_on(call: Call) -> None:
    words = ["pipeline.yaml", "--log", "log", "--outcomes", "log/outcomes.csv"]
    Path("pipeline.yaml").write_text(Path("pipeline.yaml").read_text().replace("0.5", "0.25"))
    text = call("estimate", *words, "--places", "3", "--output", "value.json")
    report = json.loads(Path("value.json").read_text())
    assert [one["name"] for one in report["estimates"]] == ["ips", "snips", "dr"]
    for one in (report["logged"], *report["estimates"]):
        assert f"{one['value']:.4f}" in text and f"{one['low']:.4f} to {one['high']:.4f}" in text
    assert "300 of 300 requests count (100%), 3 places" in text and "chances are exact" in text
    clipped = call("estimate", *words, "--clip", "1")
    assert "of the weights above 0 were clipped to 1" in clipped
