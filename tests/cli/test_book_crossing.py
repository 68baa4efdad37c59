"""Own files, as Book-Crossing has them, from a first look to a service: real commands."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import book_crossing
import polars as pl
import pytest
from commands import finish, shoal

CONFIG = r"""
data:
  encoding: iso-8859-1
  escape: "\\"
  files: {inter: ./BX-Book-Ratings.csv, user: ./BX-Users.csv, item: ./BX-Books.csv}
  fields: {user: User-ID, item: ISBN, rating: Book-Rating}
run: {progress: false, tensorboard: false}
"""


@pytest.mark.slow
def test_from_a_first_look_to_a_service(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="`shoal serve` needs the extra `serve`")
    book_crossing.write(tmp_path)
    (tmp_path / "bx.yaml").write_text(CONFIG)

    def run(*words: str) -> str:
        told = finish(*words, cwd=tmp_path)
        assert "Traceback" not in told and "error" not in told.lower()
        return told

    ratings = ("BX-Book-Ratings.csv", "--data.encoding=latin-1", "--data.escape=\\")
    told = run("data", "describe", *ratings)
    assert "user = User-ID, item = ISBN" in told and "inters: 20000" in told

    told = run("train", *ratings, "--model=BPR", "--epochs=2", "--output=bpr")
    assert "recall@10" in told and "run: bpr" in told

    told = run("data", "describe", "bx.yaml", "--model=DeepFM", "--write=features.yaml")
    for line in ("Age  number  user", "Location  id user", "Book-Author  id  item"):
        assert line.split() in [row.split()[:3] for row in told.splitlines()]
    ages = next(row.split() for row in told.splitlines() if row.startswith("Age"))
    assert ages[-1] == "300"  # a third of 900 users: NULL is an empty cell

    clicks = ("--model=DeepFM", "--data.threshold={Book-Rating: 6}", "--output=clicks")
    told = run("train", "bx.yaml", "features.yaml", *clicks, "--epochs=4", "--seed=1")
    assert json.loads((tmp_path / "clicks" / "result.json").read_text())["test"]["auc"] > 0.55

    assert "auc" in run("eval", "clicks")
    for model in ("bpr", "clicks"):
        told = run("export", model, "--to", f"exported/{model}")
        assert "checked in a fresh process" in told

    run("predict", "exported/clicks", "--input=BX-Book-Ratings.csv", "--output=chances.csv")
    chances = pl.read_csv(tmp_path / "chances.csv")["click"]
    assert len(chances) == 20_000 and 0 < chances.min() < chances.max() < 1  # type: ignore[operator]

    for folder in ("bpr", "exported/bpr"):
        told = run("recommend", folder, "--user=276", "--topk=3")
        assert "for user 276" in told and "0000" in told
    told = run("recommend", "exported/bpr", "--user=nobody", "--topk=3")
    assert "not known: 'nobody'; these are the most popular items" in told

    rows = [{"User-ID": 276, "ISBN": "000000047\\"}, {"User-ID": "new", "ISBN": "x", "Age": 30}]
    answer = ask(tmp_path, "exported/clicks", "/v1/predict", {"samples": rows})
    assert len(answer["clicks"]) == 2 and all(0 < one < 1 for one in answer["clicks"])
    answer = ask(tmp_path, "exported/bpr", "/v1/recommend", {"users": [276, "x"], "topk": 3})
    assert [one["by"] for one in answer["users"]] == ["model", "popularity"]


def ask(folder: Path, artifact: str, path: str, body: Any) -> Any:
    """The answer of `shoal serve ARTIFACT`, which must end well."""
    place = folder / f"{Path(artifact).name}.url"
    server = shoal(*("serve", artifact, "--port=0", "--drain=0", f"--announce={place}"), cwd=folder)
    try:
        server.until("it listens", lambda: place.exists() and place.read_text())
        request = urllib.request.Request(
            place.read_text() + path,
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0, server.output
        assert "Traceback" not in server.output
