"""`shoal quickstart`: careless files, answers on a terminal, and what it leaves to read."""

import json
import os
import pty
import re
import runpy
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.data.loading.load import load_dataset
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained

HEAD = 'Order Nr;"Customer No.";Product Code;Product Name;Order Date\n'
NAMES = ['"Desk; oak"', '"The ""big"" lamp"', "<b>Café</b>", *(f"Thing {n}" for n in range(9))]


def orders(users: int = 40) -> str:
    """A shop's orders: quotes, semicolons, dates as text, empty cells, pairs that repeat."""
    lines = []
    for n in range(users * 8):
        day = f"{n % 28 + 1:02}.0{n % 9 + 1}.2024 10:{n % 60:02}"
        user = "" if n % 61 == 5 else f"K-{n % users}"
        item = (n * 5 + n // users) % 12
        lines.append(f"{n};{user};P{item};{NAMES[item]};{day}\n")
    return HEAD + "".join(lines)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text(orders(), encoding="utf-8-sig")
    return tmp_path


def call(*words: str, status: int = 0) -> str:
    ran = CliRunner().invoke(app, ["quickstart", *words])
    assert (ran.exit_code != 0) == bool(status), ran.output + str(ran.exception)
    return ran.output + (str(ran.exception) if status else "")


def test_a_careless_file_becomes_lists_with_titles() -> None:
    told = call("orders.csv", "--run")
    assert (
        "user = Customer No., item = Product Code, time = Order Date; change with --user=" in told
    )
    assert ", from 2024-01-01 10:00:00 to 2024-09-08 10:47:00; " in told
    assert re.search(r"\d+ rows are left out by data.bad_rows; \d+ .* by data.filter.dup", told)
    assert told.count("for user K-") == 3 and "Thing" in told
    run = re.search(r"shoal export (\S+) --to orders-recommend-model", told)
    assert run is not None and Path(run[1], "result.json").is_file()
    assert "shoal serve orders-recommend-model" in told
    titles = Trained(run[1]).recommender.titles(["P0", "P1", "P2"])
    assert titles == {"P0": "Desk; oak", "P1": 'The "big" lamp', "P2": "<b>Café</b>"}


def test_the_script_trains_and_the_files_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    told = call("orders.csv", "--task", "next", "--to", "mine")
    assert "shoal train mine/orders-next.yaml --output runs/orders-next" in told
    config = Path("mine/orders-next.yaml")
    config.write_text(config.read_text().replace("epochs: 100", "epochs: 1"))
    runpy.run_path("mine/orders-next.py", run_name="__main__")
    shown = capsys.readouterr().out
    assert "'ndcg@10'" in shown and len(re.findall(r"^P\d+ -?\d+\.\d+$", shown, re.MULTILINE)) == 5
    told = call("orders.csv", "--task", "next", "--to", "mine", status=1)
    assert "mine/orders-next.yaml is there already" in told and "--to FOLDER" in told
    assert "epochs: 1 " in config.read_text()


def test_json_lines_and_letters_of_windows() -> None:
    rows = [
        {"visitorid": n % 30 if n % 50 else None, "content_id": f"c{n * 7 % 23}", "props": {"a": n}}
        for n in range(300)
    ]
    Path("log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "user = visitorid, item = content_id" in call("log.jsonl")
    lines = [f"{n % 30};Ü{n * 7 % 23};{n % 5}" for n in range(300)]
    text = "\n".join(["User-ID;ISBN;Book-Rating", *lines])
    Path("BX.csv").write_bytes(text.encode("cp1252"))
    told = call("BX.csv", "--task", "clicks", "--on", "processes")
    assert "no column of clicks: Book-Rating ≥ 2 counts as one" in told
    config = Path("BX-clicks.yaml").read_text()
    assert "encoding: cp1252" in config and re.search(r"nproc: [2-4] ", config)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("name", "text", "words", "said"),
    [
        ("x.csv", "user_id,item_id\n1,2\n1,3\n1,4\n", [], "has only one user (column 'user_id')"),
        ("x.csv", "a,b\n1,2\n", [], "no column looks like the user or the item; it has a, b."),
        ("x.csv", "1,2\n2,3\n", [], "which are no names of columns"),
        ("x.csv", "userid\n1\n", [], "has one column, 'userid'"),
        ("x.csv", "", [], "x.csv is empty"),
        ("x.csv", "user_id,item_id\n", [], "holds no rows"),
        ("x.csv", "user_id,item_id\n1,2\n2,3\n", [], "no user has two items"),
        (
            "x.csv",
            "user_id,item_id,timestamp\n1,2,soon\n1,3,late\n",
            [],
            "all 2 are bad, the first of them: x.csv, line 2: 'soon' in 'timestamp' is no time",
        ),
        ("x.csv", "user,item\n1,2\n2,3\n", ["--task", "clicks"], "--label=NAME or --rating=NAME"),
        ("x.csv", "user,item\n1,2\n", ["--item", "id"], "--item=id: x.csv has only user, item"),
        ("x.xlsx", "PK", [], "save it as csv"),
    ],
)
def test_what_cannot_be_read_names_the_remedy(
    name: str, text: str, words: list[str], said: str
) -> None:
    told = call(write(name, text), *words, status=1)
    assert said in told, told
    assert not list(Path().glob("*.yaml"))


# CI has no GPU, so it runs there.
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    assert "no usable GPU (`shoal doctor`)" in call("orders.csv", "--on", "gpu", status=1)


def test_a_file_that_is_not_there() -> None:
    assert "did you mean orders.csv?" in call("order.csv", status=1)


SMALL, LARGE = 3000, 60_000  # rows of noise: to look at, and for an AUC within .02


def write_noise(name: str, outcome: str, kind: str, rows: int) -> str:
    """Impressions and clicks at random, with what came of the clicks in a column of any kind."""
    random = np.random.default_rng(len(outcome))
    clicked = random.random(rows) < 0.3
    sure = clicked & (random.random(rows) < 0.7)
    rare = clicked & (np.arange(rows) % 7 == 0)
    values = {
        "flag": sure.astype(int),
        "word": np.where(sure, "yes", "no"),
        "truth": np.where(sure, "True", "False"),
        "amount": np.where(sure, (random.random(rows) * 90).round(2), 0.0),
        "seconds": (random.exponential(20, rows) * np.where(clicked, 3, 1)).round(1),
        "id": np.where(sure, np.char.add("T", random.integers(0, 10**6, rows).astype(str)), ""),
        "date": np.where(sure, "2024-03-05 10:00:00", ""),
        "rare id": np.where(rare, np.char.add("T", np.arange(rows).astype(str)), ""),
        "rare amount": np.where(rare, np.arange(rows) % 89 + 0.5, 0.0),
        "stars": np.where(clicked, random.integers(3, 6, rows), random.integers(1, 4, rows)),
    }[kind]
    columns = (random.integers(0, 400, rows), random.integers(0, 200, rows), clicked.astype(int))
    ages = random.integers(18, 80, rows)
    lines = [",".join(map(str, row)) for row in zip(*columns, values, ages)]
    return write(name, "\n".join([f"user,item,clicked,{outcome},age", *lines, ""]))


OUTCOMES = [
    ("bought", "flag"),
    ("is_purchased", "truth"),
    ("converted", "word"),
    ("paid", "amount"),
    ("revenue", "amount"),
    ("watch_time", "seconds"),
    ("dwell", "seconds"),
    ("liked", "flag"),
    ("rating", "stars"),
    ("x1", "flag"),  # from here on names say nothing
    ("x2", "word"),
    ("x3", "amount"),
    ("x4", "id"),
    ("x5", "date"),
    ("x6", "stars"),
    ("order_id", "rare id"),
    ("x7", "rare amount"),
]


@pytest.mark.parametrize(("outcome", "kind"), OUTCOMES)
def test_an_outcome_is_left_out_and_named(outcome: str, kind: str) -> None:
    told = call(write_noise("noise.csv", outcome, kind, SMALL))
    (line,) = [line for line in told.splitlines() if line.startswith("left out, ")]
    assert f"after clicked: {outcome} (" in line and f"--feature={outcome}" in line
    assert "age" not in line
    config = resolve([Path("noise-clicks.yaml")]).config.data
    assert config.unload == {"inter": [outcome]} and config.fields.label == "clicked"
    told = call("noise.csv", f"--feature={outcome}", "--to", "known")
    assert "left out, " not in told
    assert resolve([Path("known/noise-clicks.yaml")]).config.data.unload is None


@pytest.mark.slow
@pytest.mark.parametrize(("outcome", "kind"), OUTCOMES)
def test_noise_has_no_auc(outcome: str, kind: str) -> None:
    call(write_noise("noise.csv", outcome, kind, LARGE), "--run")
    (result,) = Path("runs").glob("*/result.json")
    assert json.loads(result.read_text())["test"]["auc"] == pytest.approx(0.5, abs=0.02)


def test_a_feature_that_is_not_there() -> None:
    write_noise("noise.csv", "bought", "flag", SMALL)
    assert "--feature=bougth: noise.csv has only user" in call(
        "noise.csv", "--feature=bougth", status=1
    )


def test_a_column_of_clicks_leads_to_click_prediction() -> None:
    told = call(write_noise("log.csv", "age_group", "seconds", SMALL))
    assert re.search(r"log.csv: clicked is 0 or 1, and 1 in \d\d% of the rows, so this", told)
    assert "use --task recommend" in told and "name: DeepFM" in Path("log-clicks.yaml").read_text()


@pytest.mark.parametrize("task", ["recommend", "next"])
def test_only_clicked_rows_are_recommended_from(task: str) -> None:
    file = Path(write_noise("log.csv", "age_group", "seconds", SMALL))
    told = call("log.csv", "--task", task)
    assert re.search(r"only the \d\d% of rows where clicked is 1 count as taken", told)
    config = resolve([Path(f"log-{task}.yaml")]).config
    clicked = [line.split(",") for line in file.read_text().splitlines()[1:]]
    pairs = [(user, item) for user, item, click, *_ in clicked if click == "1"]
    kept = len(set(pairs)) if task == "recommend" else len(pairs)
    assert load_dataset(config.data, 1).num_inter == kept


def test_a_pair_that_was_clicked_at_its_second_impression_counts() -> None:
    lines = [f"u{n % 9},i{n % 7},{seen}" for seen in (0, 1) for n in range(63)]
    call(write("log.csv", "\n".join(["user,item,clicked", *lines, ""])), "--task", "recommend")
    assert load_dataset(resolve([Path("log-recommend.yaml")]).config.data, 1).num_inter == 63


def test_a_label_that_is_none() -> None:
    rows = [f"{n % 30},{n * 7 % 23},{n % 5}" for n in range(300)]
    file = write("x.csv", "\n".join(["user,item,clicks", *rows]))
    told = call(file, "--label", "clicks", status=1)
    assert "--label=clicks: a label is 0 or 1, and both occur; x.csv has 0, 1, 2, 3, 4" in told
    assert "--rating=clicks" in told
    assert "user = user, item = item" in call(file)  # counts say nothing of what was not taken
    assert "clicks ≥ 2 counts as one" in call(file, "--task", "clicks", "--rating", "clicks")


def test_a_yes_and_no_without_a_name_is_mentioned() -> None:
    rows = [f"{n % 30},{n * 7 % 23},{n * n % 3 % 2}" for n in range(300)]
    told = call(write("x.csv", "\n".join(["user,item,mobile", *rows])))
    assert "careful: mobile is 0 or 1" in told and "--label=mobile" in told


@pytest.mark.parametrize("moment", ["2024-03-{:02} 10:00", "17000000{:02}"])
def test_times_under_a_name_that_says_nothing_are_mentioned(moment: str) -> None:
    rows = [f"{n % 30},{n * 7 % 23},{moment.format(n % 28 + 1)},{n}" for n in range(300)]
    told = call(write("x.csv", "\n".join(["user,item,x1,x2", *rows])))
    assert "x1 looks like dates or times" in told and "use --time=x1: tests" in told
    told = call("x.csv", "--time=x1", "--to", "timed")
    assert "looks like dates" not in told and "from 20" in told


def test_outcomes_are_asked_about_on_a_terminal(here: Path) -> None:
    write_noise("noise.csv", "bought", "flag", SMALL)
    told = on_a_terminal(
        here,
        ["noise.csv"],
        [
            ("number [3]:", ""),
            ("How will it run?", ""),
            ("Is bought known before, when you predict? [y/N]:", "y"),
        ],
        "shoal serve noise-clicks-model",
    )
    assert "clicked is 0 or 1, and 1 in " in told and "its name says so" in told
    assert resolve([Path("noise-clicks.yaml")]).config.data.unload is None


def test_which_rows_count_is_asked_on_a_terminal(here: Path) -> None:
    write_noise("noise.csv", "bought", "flag", SMALL)
    answers = [("number [3]:", "1"), ("number [1]:", "2"), ("How will it run?", "")]
    on_a_terminal(here, ["noise.csv"], answers, "shoal serve noise-recommend-model")
    config = resolve([Path("noise-recommend.yaml")]).config
    assert config.model.name == "EASE" and config.data.filter.values == {}


def test_questions_on_a_terminal(here: Path) -> None:
    """A real terminal: a wrong answer is asked again, Enter takes what stands in brackets."""
    answers = [
        ("data [orders.csv]:", "nothing.csv"),
        ("there is no file nothing.csv", ""),
        ("number [1]:", "7"),
        ("write a number from 1 to 3", "2"),
        ("How will it run?", ""),
    ]
    on_a_terminal(here, [], answers, "shoal serve orders-next-model")
    assert "name: SASRec" in Path("orders-next.yaml").read_text()


def on_a_terminal(folder: Path, words: list[str], answers: list[tuple[str, str]], last: str) -> str:
    """What `shoal quickstart` shows on a terminal, where questions get their answers.

    last: text at its end.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shoal", "quickstart", *words]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command, cwd=folder, **streams) as process:
        os.close(theirs)
        told = ""
        for question, answer in answers:
            told += until(ours, question)
            os.write(ours, answer.encode() + b"\n")
        told += until(ours, last)
        while select.select([ours], [], [], 60)[0]:
            try:
                if not os.read(ours, 1 << 16):
                    break
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == 0, told
    os.close(ours)
    return told


def until(terminal: int, text: str) -> str:
    """What a terminal shows until a text comes."""
    told, last = "", time.monotonic() + 120
    while text not in told:
        assert select.select([terminal], [], [], last - time.monotonic())[0], told
        told += os.read(terminal, 1 << 16).decode()
    return told
