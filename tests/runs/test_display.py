"""What shows itself: tables in a notebook, one line on a terminal; text of the data stays text."""

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import Browser, needs_browser
from small_artifact import MEAN, write_artifact

import shoal
from shoal.recommender.ranked_items import RankedItems, UserRankings
from shoal.runs.fit import Fitted
from shoal.runs.results import RunResult, StudyResult
from shoal.serving.artifact.files import write_manifest, write_words

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
STUDY = {
    "model": "BPR",
    "dataset": HOSTILE,
    "metric": "mrr@10",
    "maximized": True,
    "best": {
        "trial": 1,
        "params": {"train.optimizer.lr": 0.1},
        "valid": {"mrr@10": 0.5},
        "test": {"mrr@10": 0.4},
    },
    "trials": [
        {"trial": 0, "state": "finished", "value": 0.3, "params": {"train.optimizer.lr": 0.01}},
        {"trial": 1, "state": "finished", "value": 0.5, "params": {"train.optimizer.lr": 0.1}},
        {"trial": 2, "state": "failed", "value": None, "params": {"train.optimizer.lr": 9.0}},
    ],
    "folder": "runs/study",
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    rows = [(f"u{n % 40}", n * 7 % 29) for n in range(500)]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row").unique()
    titles = [HOSTILE if item % 2 else f"Film {item}" for item in range(29)]
    items = pl.DataFrame({"item_id": range(29), "title": titles})
    folder = tmp_path_factory.mktemp("shown") / HOSTILE.replace("/", "")
    keys: dict[str, Any] = {"run.output": str(folder), "run.progress": False, "epochs": 3}
    return shoal.fit("BPR", frame, items=items, **keys)


def test_a_fitted_model_shows_data_metrics_and_curve(fitted: Fitted) -> None:
    shown = fitted._repr_html_()
    assert "interactions of 40 users and 29 items" in shown and "recall@10" in shown
    assert "<svg" in shown and "valid recall@10" in shown
    assert HOSTILE not in shown
    assert "\n" not in repr(fitted) and len(repr(fitted)) < 250 and "recall@10" in repr(fitted)


def test_recommendations_are_a_table_with_titles(fitted: Fitted) -> None:
    found = fitted.recommend("u7", topk=20)
    shown = found._repr_html_()
    assert "title" in shown and "&lt;img src=x" in shown and "Film " in shown
    assert HOSTILE not in shown
    assert repr(found) == repr(list(found))
    # Lists travel between a user's own processes so (joblib, Ray); no file is read by pickle.
    again = pickle.loads(pickle.dumps(found))
    assert (again, again.titles, again.by) == (found, found.titles, "model")
    assert isinstance(fitted.similar_items(4), RankedItems)


def test_users_that_are_not_known_are_named(fitted: Fitted) -> None:
    found = fitted.recommend([HOSTILE, "u7"], topk=3)
    assert isinstance(found, UserRankings) and found == dict(found)
    assert "2 users" in found._repr_html_() and HOSTILE not in found._repr_html_()
    one = found[HOSTILE]._repr_html_()
    assert "most popular" in one and "&lt;img" in one and HOSTILE not in one


def test_many_users_are_cut() -> None:
    many = UserRankings({n: RankedItems([(n, 0.5)] * (n % 7)) for n in range(50)})
    assert "and 30 more users" in many._repr_html_()
    assert "0 users" in UserRankings()._repr_html_()
    assert "<table" in RankedItems([])._repr_html_()


def test_results_of_runs(fitted: Fitted) -> None:
    found = shoal.evaluate(fitted.folder, values={"run.log_level": "warning"})
    assert found == dict(found) and found["test"] == fitted.metrics
    assert "recall@10" in found._repr_html_() and "\n" not in repr(found)
    assert "not evaluated" in RunResult({"model": "A", "dataset": "b"})._repr_html_()
    assert RunResult({"model": "A", "dataset": HOSTILE})._repr_html_().count("<img") == 0


def test_a_search_shows_the_best_first() -> None:
    shown = StudyResult(STUDY)._repr_html_()
    assert shown.index("0.5000") < shown.index("0.3000") and "runs/study" in shown
    assert HOSTILE not in shown
    assert "lr: 0.1" in repr(StudyResult(STUDY)) and "\n" not in repr(StudyResult(STUDY))
    assert "No trial" in StudyResult({**STUDY, "best": None})._repr_html_()


def test_an_artifact_shows_what_it_is(tmp_path: Path) -> None:
    home = write_artifact(tmp_path / "model", MEAN, model=HOSTILE, data="books")
    write_words(home, "title", ["", *(f"Book {one}" for one in "vwxy"), HOSTILE])
    write_manifest(home)
    found = shoal.load(home)
    assert "2 users, 5 items" in repr(found) and "\n" not in repr(found)
    assert "5 items" in found._repr_html_() and HOSTILE not in found._repr_html_()
    ranked = found.recommend("a", seen=True)._repr_html_()
    assert "Book v" in ranked and HOSTILE not in ranked


@needs_browser
def test_in_a_browser(fitted: Fitted, tmp_path: Path) -> None:
    parts = [fitted, fitted.recommend("u7"), fitted.recommend(["u7", "u8"]), StudyResult(STUDY)]
    page = "<html><body><h1>notebook</h1>" + "".join(one._repr_html_() for one in parts)
    (tmp_path / "page.html").write_text(page)
    with Browser() as browser:
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert browser.evaluate("document.querySelectorAll('.shoal table').length") >= 5
        heading = "getComputedStyle(document.querySelector('h1')).color"
        assert browser.evaluate(heading) == "rgb(0, 0, 0)"  # the page keeps its own look
        browser.screenshot(tmp_path / "shown.png")
