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

import pytest
import torch
from typer.testing import CliRunner

from shoal.command.cli import app
from shoal.runs.trained import Trained

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


def test_questions_on_a_terminal(here: Path) -> None:
    """A real terminal: a wrong answer is asked again, Enter takes what stands in brackets."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shoal", "quickstart"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=here) as process:
        os.close(theirs)
        told = ""
        for asked, answer in [
            ("data [orders.csv]:", "nothing.csv"),
            ("there is no file nothing.csv", ""),
            ("number [1]:", "7"),
            ("write a number from 1 to 3", "2"),
            ("How will it run?", ""),
        ]:
            told += until(ours, asked)
            os.write(ours, answer.encode() + b"\n")
        told += until(ours, "shoal serve orders-next-model")
        while select.select([ours], [], [], 60)[0]:
            try:
                if not os.read(ours, 1 << 16):
                    break
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == 0, told
    os.close(ours)
    assert "name: SASRec" in Path("orders-next.yaml").read_text()


def until(terminal: int, text: str) -> str:
    """What a terminal shows until a text comes."""
    told, last = "", time.monotonic() + 120
    while text not in told:
        assert select.select([terminal], [], [], last - time.monotonic())[0], told
        told += os.read(terminal, 1 << 16).decode()
    return told
