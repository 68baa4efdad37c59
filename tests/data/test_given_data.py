"""A file of data in the place of a config: describe, train, prepare and plan understand it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from shoal.cli.main import app

ROWS = [(f"u{n % 40}", f"{n * 7 % 31:09}X", n % 11) for n in range(600)]
TITLES = ["Faust; der Tragödie erster Teil", r"The \"Real\" Thing", "L'Étranger"]
QUOTED = ["--data.encoding=latin-1", "--data.escape=\\"]
GUESSED = "by the names of its columns, user = User-ID, item = ISBN"
SLOTS = "".join(f"click:{n % 2} 1:{n % 7} 2:{n % 5}\n" for n in range(60))
TAB = "\t".join
CRITEO = "".join(TAB([str(n % 2), *["3"] * 13, *["ab"] * 26]) + "\n" for n in range(40))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as Book-Crossing has them, in the folder where commands are run."""
    monkeypatch.chdir(tmp_path)
    ratings = [f'"{user}";"{isbn}";"{stars}"' for user, isbn, stars in ROWS]
    text = '"User-ID";"ISBN";"Book-Rating"\r\n' + "\r\n".join(ratings) + "\r\n"
    Path("BX-Book-Ratings.csv").write_bytes(text.encode("latin-1"))
    books = [f'"{n:09}X";"{TITLES[n % 3]}";"{1900 + n}"' for n in range(31)]
    text = '"ISBN";"Book-Title";"Year"\r\n' + "\r\n".join(books) + "\r\n"
    Path("BX-Books.csv").write_bytes(text.encode("latin-1"))
    return tmp_path


def call(*words: str) -> str:
    ran = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.parametrize(("model", "weighs"), [("IALS", True), ("BPR", False)])
def test_a_rating_that_the_model_does_not_read_is_named(model: str, weighs: bool) -> None:
    rows = [f"u{n % 20},i{n % 31},{n % 11 - 5}" for n in range(600)]
    Path("signed.csv").write_text("\n".join(["user,item,rating", *rows]) + "\n")
    short = ["--train.epochs=1", "--run.progress=false", "--run.trackers=[]", "--output", "s"]
    call("train", "signed.csv", f"--model={model}", *short)
    log = Path("s/train.log").read_text()
    assert f"{model} does not read rating: every row is something that the user took" in log
    assert ("data.sample_weight=rating makes rows count by it" in log) == weighs
    call("train", "signed.csv", "--data.filter.values={rating: '[4,inf)'}", *short[:-1], "high")
    assert "does not read rating" not in Path("high/train.log").read_text()


def test_a_first_run_from_describing_a_file_to_recommending() -> None:
    short = ["--train.epochs=1", "--run.progress=false", "--run.trackers=[]"]
    told = call("data", "describe", "BX-Book-Ratings.csv", *QUOTED, "--html", "page.html")
    assert GUESSED + ", rating = Book-Rating; change with --user=NAME, " in told
    assert "The number of inters: 600" in told and Path("page.html").exists()
    told = call("train", "./BX-Book-Ratings.csv", *QUOTED, *short, "--output", "first")
    assert "BPR on BX-Book-Ratings" in told and GUESSED in Path("first/train.log").read_text()
    books = ["--data.files.item=BX-Books.csv", "--data.threshold.Book-Rating=6"]
    told = call("train", "BX-Book-Ratings.csv", "--model=LR", *QUOTED, *books, *short)
    assert "LR on BX-Book-Ratings" in told and "auc" in told and "always 0." in told
    told = call("prepare", "BX-Book-Ratings.csv", "--to", "made", *QUOTED)
    assert GUESSED in told and "600 interactions of 40 users with 31 items" in told
    assert "The number of users: 40" in call("data", "describe", "made")
    assert "item" in call("plan", "BX-Book-Ratings.csv", *QUOTED)
    told = call("config", "show", "BX-Book-Ratings.csv", *QUOTED)
    assert re.search(r"item: ISBN +# the columns of BX-Book-Ratings\.csv", told)
    assert call("runs").count("BX-Book") >= 1


def test_letters_of_windows_are_read_as_they_are() -> None:
    lines = [f"{user},Ü{isbn},Größe {stars}" for user, isbn, stars in ROWS]
    text = "\n".join(["user_id,item_id,size", *lines])
    for encoding, name in (("cp1252", "cp1252"), ("utf-16", "utf-16"), ("utf-8", "")):
        Path("log.csv").write_bytes(text.encode(encoding))
        told = call("data", "describe", "log.csv")
        assert "The number of items: 31" in told
        guessed = f"log.csv: not UTF-8, read as {name}; change with --data.encoding=NAME"
        assert (guessed in told) == bool(name)
    Path("log.csv").write_bytes(text.encode("cp1252"))
    assert "not UTF-8, read as cp1252" in call("prepare", "log.csv", "--to", "made")
    told = call("data", "describe", "log.csv", "--data.encoding=cp1250")
    assert "not UTF-8" not in told and "The number of items: 31" in told


def frame() -> pl.DataFrame:
    return pl.DataFrame(ROWS, ["userId", "movieId", "rating"], orient="row")


def folder(name: str, text: str) -> str:
    Path(name).parent.mkdir()
    Path(name).write_text(text)
    return str(Path(name).parent)


def write(name: str, how: Callable[[str], object]) -> str:
    how(name)
    return name


PLAIN = "user_id,item_id\n" + "".join(f"{u},{i}\n" for u, i, _ in ROWS)
ATOMIC = "user_id:token\titem_id:token\n" + "".join(f"{u}\t{i}\n" for u, i, _ in ROWS)
FILES: dict[str, Callable[[], str]] = {
    "csv.gz": lambda: write(
        "a.csv.gz", lambda n: Path(n).write_bytes(gzip.compress(frame().write_csv().encode()))
    ),
    "parquet": lambda: write("a.parquet", lambda n: frame().write_parquet(n)),
    "arrow": lambda: write("a.arrow", lambda n: frame().write_ipc(n)),
    "jsonl": lambda: write("a.jsonl", lambda n: frame().write_ndjson(n)),
    "a folder of atomic files": lambda: folder("shop/shop.inter", ATOMIC),
    "an atomic file": lambda: folder("shop/shop.inter", ATOMIC) + "/shop.inter",
    "a folder of tables": lambda: folder("mine/inter.csv", PLAIN),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_interactions(kind: str) -> None:
    told = call("data", "describe", FILES[kind]())
    assert "The number of inters: 600" in told and "The number of users: 40" in told
    assert ("user = userId" in told) == (" " not in kind)


@pytest.mark.parametrize(("name", "text"), [("log.txt", SLOTS), ("day.csv", CRITEO)])
def test_click_logs(name: str, text: str) -> None:
    Path(name).write_text(text)
    keys = ["--model=LR", "--train.eval_every=0"]
    keys += ["--data.clicks.slots=2", "--data.clicks.dense=0"] if name == "log.txt" else []
    told = call("data", "describe", name, *keys)
    assert f"The train log: 1 files, {text.count(chr(10))} samples" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["BX-Book-Ratings.csv", "BX-Books.csv"], "--data.files.item=FILE"),
        (["nowhere.csv"], "there is no file or folder nowhere.csv"),
        (["BX-Books.csv", *QUOTED], "no column looks like the user; it has ISBN, Book-Title, Year"),
        (["BX-Book-Ratings.csv", *QUOTED[:1], "--data.fields.item=isbn"], "did you mean ISBN"),
        (["BX-Book-Ratings.csv", "--data", "BX-Books.csv"], "are both data; give one"),
        (["x.yaml"], "no such config file"),
    ],
)
def test_what_is_refused(words: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["train", *words])
    text = re.sub(r"[\s│]+", " ", ran.output) + str(ran.exception)
    assert ran.exit_code != 0 and said in text, text


def test_a_command_without_words_names_three() -> None:
    ran = CliRunner().invoke(app, ["train"])
    for command in (
        "shoal quickstart ",
        "shoal train BX-Book-Ratings.csv ",
        "--data.name=synthetic",
    ):
        assert command in str(ran.exception), ran.exception


def test_a_run_in_the_place_of_an_artifact() -> None:
    Path("mine").mkdir()
    Path("mine/config.yaml").write_text("")
    said = "mine is a run, not an artifact; make one of it with `shoal export mine --to mine-model`"
    words = ["predict", "mine", "--input", "BX-Books.csv", "--output", "x.csv"]
    assert said in str(CliRunner().invoke(app, words).exception)


def test_json_lines_with_different_keys() -> None:
    lines = [json.dumps({"uid": u, "asin": i, "overall": s}) for u, i, s in ROWS]
    Path("reviews.jsonl").write_text("\n".join(lines) + "\n")
    told = call("data", "describe", "reviews.jsonl")
    assert "user = uid, item = asin, rating = overall" in told
