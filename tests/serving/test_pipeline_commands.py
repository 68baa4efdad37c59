"""`shoal pipeline` check, recommend and eval, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from shop_pipeline import pipeline, shop
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.training.run_folder import start_logging

TEXT = """\
items: SHOP/items.csv
retrieve:
  - {artifact: SHOP/BPR, number: 20}
  - {artifact: SHOP/SASRec, number: 20, name: sequences}
rank: {artifact: SHOP/FM}
rules:
  - seen
  - at_most: {number: 3, attribute: category}
  - explore: {share: 0.2}
fallback: {artifact: SHOP/Pop, by: popularity, number: 40}
"""
PHONE = '{"device": "phone"}'
Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Call `shoal pipeline` in a folder with pipeline.yaml; what it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(TEXT.replace("SHOP", str(shop())))

    def run(*words: str, fails: str = "") -> str:
        result = CliRunner().invoke(app, ["pipeline", *words])
        if fails:
            assert result.exit_code != 0 and fails in str(result.exception), result.exception
        else:
            assert result.exit_code == 0, result.exception
        return result.output

    yield run
    start_logging("info")


def test_check_prints_the_stages_and_what_they_cost(call: Call) -> None:
    text = call("check", "pipeline.yaml")
    for words in ("retrieve BPR", "SASRec by model, 20 items", "FM: chance of click", "number 3"):
        assert words in text
    assert "a question's context must have: device" in text and "no rule `seen`" not in text
    Path("other.yaml").write_text(TEXT.replace("SHOP", str(shop())).replace("  - seen\n", ""))
    assert "no rule `seen`: items that a user took may come again" in call("check", "other.yaml")
    Path("bad.yaml").write_text(TEXT.replace("number: 20", "numbr: 20"))
    call("check", "bad.yaml", fails="bad.yaml:3: retrieve[0].numbr: unknown key")


def test_the_list_of_one_user(call: Call, tmp_path: Path) -> None:
    words = ["--user", "u7", "--number", "4", "--context", PHONE, "--seed", "3"]
    text = call("recommend", "pipeline.yaml", *words)
    answer = pipeline(tmp_path, TEXT).recommend("u7", number=4, context={"device": "phone"})
    assert "for user u7" in text and "propensity" in text
    for shown in answer:
        assert f"{shown.score:.4f}" in text and f"{shown.propensity:.4f}" in text
    text = call("recommend", "pipeline.yaml", "--history", "i2,i3", "--context", PHONE)
    assert "for history i2,i3" in text and "do not know who asks" not in text
    text = call("recommend", "pipeline.yaml", "--user", "stranger", "--context", PHONE)
    assert "sources that do not know who asks: BPR, sequences" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "say for whom"),
        (["--user", "u1", "--users", "FILE"], "say for whom"),
        (["--users", "FILE"], "write to a file, --output"),
        (["--user", "u1", "--output", "x.csv"], "write to a file, --output"),
        (["--user", "u1", "--context", "phone"], "is no JSON"),
        (["--user", "u1", "--context", "[1]"], "must be an object"),
        (["--user", "u1"], "reads 'device', which the context does not have"),
        (["--input", "none.jsonl", "--output", "x.csv"], "there is no file none.jsonl"),
    ],
)
def test_what_is_typed_wrong(call: Call, words: list[str], error: str) -> None:
    call("recommend", "pipeline.yaml", *words, fails=error)


def test_many_questions_of_a_file(call: Call, tmp_path: Path) -> None:
    lines = [
        {"user": "u1", "number": 3},
        {"history": ["i1", "i5"], "context": {"device": "desk"}, "exclude": ["i9"]},
        {"user": "stranger", "number": 2, "time": "2024-06-01"},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    Path("questions.jsonl").write_text(text + "\n")
    words = ["--input", "questions.jsonl", "--output", "lists.parquet", "--context", PHONE]
    printed = call("recommend", "pipeline.yaml", *words, "--number", "5", "--seed", "3")
    assert "3 questions: lists.parquet" in printed
    assert "fallback in place of retrieve: 1 questions" in printed
    lists = pl.read_parquet("lists.parquet")
    assert lists["question"].value_counts().sort("question")["count"].to_list() == [3, 5, 2]
    assert lists["user"].to_list()[:4] == ["u1", "u1", "u1", None]
    assert lists["rank"].to_list()[:4] == [1, 2, 3, 1] and "i9" not in lists["item"].to_list()[3:8]
    assert set(lists["sources"].to_list()[:3]) <= {"BPR", "sequences", "BPR, sequences"}
    assert lists["sources"].to_list()[-1] == ""
    Path("bare.yaml").write_text(f"retrieve: [{{artifact: {shop() / 'BPR'}, number: 9}}]\n")
    Path("users.txt").write_text("u1\nstranger\n")
    printed = call("recommend", "bare.yaml", "--users", "users.txt", "--output", "lists.csv")
    assert "1 of them got no items, and have no row: 2 (" in printed
    Path("users.txt").write_text("u1\nu2\n")
    words = ["--users", "users.txt", "--output", "lists.csv", "--context", PHONE]
    call("recommend", "pipeline.yaml", *words)
    assert len(pl.read_csv("lists.csv")) == 20


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", ":2: this is no JSON"),
        ("[1]", ":2: a question is an object"),
        ('{"usr": "u1"}', ":2: unknown key 'usr'; the keys are: user, history"),
        ('{"user": ["u1"]}', ":2: user: "),
        ('{"user": "u1", "number": 5000}', ":2: number is 5000; it is from 1 to 1,000"),
        ('{"number": 5}', ":2: give a user, a history, or both"),
        ('{"user": "u1", "time": "soon"}', ":2: 'soon' is no date; write 2024-01-31"),
    ],
)
def test_lines_that_are_no_questions(call: Call, line: str, error: str) -> None:
    Path("questions.jsonl").write_text(f'{{"user": "u1"}}\n{line}\n')
    words = ["--input", "questions.jsonl", "--output", "lists.csv", "--context", PHONE]
    call("recommend", "pipeline.yaml", *words, fails=error)
    assert not Path("lists.csv").exists()


def test_rows_of_what_was_shown_and_not_taken(call: Call) -> None:
    taken = pl.read_csv(shop() / "later.csv").with_columns(click=1)
    shown = taken.with_columns(item=pl.lit("i3"), click=0)
    pl.concat([taken, shown]).write_csv("shown.csv")
    words = ["eval", "pipeline.yaml", "--seed", "3", "--output"]
    call(*words, "taken.json", "--test", str(shop() / "later.csv"))
    call(*words, "labelled.json", "--test", "shown.csv", "--label", "click")
    taken_stages, labelled = (
        json.loads(Path(f"{name}.json").read_text())["stages"] for name in ("taken", "labelled")
    )
    assert labelled == taken_stages
    text = call("eval", "pipeline.yaml", "--test", "shown.csv")
    assert f"the {len(shown)} of {2 * len(shown)} where click is 0" in text
    call(
        "eval",
        "pipeline.yaml",
        "--test",
        "shown.csv",
        "--label",
        "clik",
        fails="did you mean click?",
    )
    Path("words.csv").write_text("user,item,device,click\nu1,i1,phone,yes\n")
    words = ["eval", "pipeline.yaml", "--test", "words.csv", "--label", "click"]
    call(*words, fails="'click' holds 'yes', which is no number")


def test_a_broken_line_of_a_test_has_a_remedy_that_there_is(call: Call) -> None:
    Path("test.csv").write_text("user,item,device\nu1,i1,phone\nu2\n")
    words = ["eval", "pipeline.yaml", "--test", "test.csv"]
    error = str(CliRunner().invoke(app, ["pipeline", *words]).exception)
    assert "test.csv, line 3" in error and error.endswith("'u2'; correct the line")


def test_yes_of_yaml_is_named(call: Call) -> None:
    rule = "  - allowed: {attribute: category, values: [yes]}\n"
    Path("yes.yaml").write_text(TEXT.replace("SHOP", str(shop())).replace("  - seen\n", rule))
    call("check", "yes.yaml", fails="put words in quotes")


def test_every_stage_has_a_line(call: Call) -> None:
    later = str(shop() / "later.csv")
    text = call("eval", "pipeline.yaml", "--test", later, "--topk", "5", "--output", "stages.json")
    document = json.loads(Path("stages.json").read_text())
    stages = [one["stage"] for one in document["stages"]]
    assert stages == ["retrieve BPR", "retrieve sequences", "retrieve", *stages[3:]]
    assert stages[3:] == ["seen", "rank", "at_most", "explore"]
    assert document["questions"] == 48 and "recall@1000" in text and "coverage@5" in text
    for one in document["stages"]:
        assert one["stage"] in text and f"{one['recall@5']:.4f}" in text
    call("eval", "pipeline.yaml", "--test", "none.csv", fails="there is no file none.csv")
    columns = ["--item", "thing"]
    call("eval", "pipeline.yaml", "--test", later, *columns, fails="has no column 'thing'")
