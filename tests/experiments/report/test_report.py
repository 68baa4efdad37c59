"""`shoal report`: pages in a real browser, and of runs whose files are not as they should be."""

import html
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from browser import Browser, needs_browser
from report_runs import HOSTILE, write_run
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.experiments.report.comparison import why_not
from shoal.experiments.report.comparison_page import _summarize_verdicts, compare_page
from shoal.experiments.report.quality import by_activity, by_popularity, catalogue
from shoal.experiments.report.run_page import phase_seconds, run_page
from shoal.runs.run_record import RunRecord, read_runs

PAPER = "getComputedStyle(document.body).backgroundColor"


def text_of(page: str) -> str:
    """What a page says, without its markup."""
    body = page[page.index("<body>") :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def record_of(folder: Path) -> RunRecord:
    return read_runs([folder])[0]


# ---- the command ---------------------------------------------------------------------------------


def test_a_real_run_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}}
    keys = {"run.log_level": "warning", "run.progress": False, "run.trackers": []}
    for name in ("first", "second"):
        shoal.run("BPR", "synthetic", epochs=2, **small, **keys, **{"run.output": f"runs/{name}"})
    done = CliRunner().invoke(app, ["report", "runs/first"])
    assert done.exit_code == 0 and "runs/first/report.html: open it" in done.output, done.output
    page = (tmp_path / "runs/first/report.html").read_text()
    result = json.loads((tmp_path / "runs/first/result.json").read_text())
    said = text_of(page)
    assert (
        f"BPR on synthetic reaches mrr@10 {result['test']['mrr@10']:.4f} on the test part" in said
    )
    assert "host memory at its peak" in said and "without hits user 91 64 90" in said
    assert "metric test 95 % interval best valid popular items recall@10" in said
    for words in ("90 users", "Quality by activity", "Recommended most", "Users served worst"):
        assert words in said
    assert "is not there" not in said and "damaged" not in said
    # The same data, seed and model: no user differs, and nothing is found.
    assert shoal.report("runs/first", "runs/second") == Path("report.html")
    said = text_of((tmp_path / "report.html").read_text())
    assert re.search(r"first is best by mrr@10 on the valid part, 0\.\d+; on the test part", said)
    assert "user by user is neither better nor worse on the test part, beyond chance" in said
    assert "0 / 0" in said and "p = 1.000" in said


def test_errors_name_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere is not a run's folder.*`shoal runs` lists"):
        shoal.report("nowhere")
    write_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"\. is no run, it holds a run; name them: run \.\.\."):
        shoal.report(".")
    with pytest.raises(ValueError, match=r"run is a folder; name a file in it: --output run/rep"):
        shoal.report("run", output="run")
    with pytest.raises(ValueError, match=r"there is no folder away to write page\.html into"):
        shoal.report("run", output="away/page.html")
    with pytest.raises(ValueError, match="name the folder of at least one run"):
        shoal.report()
    # Named twice it is one run, not a comparison with itself; a link is replaced, not followed.
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run/report.html").symlink_to(tmp_path / "mine")
    assert shoal.report("run", "./run") == Path("run/report.html")
    assert (tmp_path / "mine").read_text() == "precious"
    assert "<h1>run</h1>" in (tmp_path / "run/report.html").read_text()


def test_runs_of_one_name_are_told_by_their_folders(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert [one.name for one in read_runs(folders)] == ["a/run", "b/run"]


# ---- what the page says --------------------------------------------------------------------------


def test_figures_of_lists_are_exact(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", users=4, items=4)
    users = {
        "user": ["a", "b", "c", "d"],
        "train": [1, 1, 5, 9],
        "positives": [1, 1, 1, 1],
        "ndcg@10": [0.0, 1.0, 0.5, 0.5],
        "items": [["x", "y"], ["x", "z"], ["x", "y"], ["x", "z"]],
        "hits": [[True, False], [False, False], [True, True], [False, True]],
    }
    items = {"item": list("wxyz"), "train": [0, 10, 5, 1], "recommended": [0, 4, 2, 2]}
    pl.DataFrame(users).write_parquet(folder / "evaluation/users.parquet")
    frame = pl.DataFrame(items).with_columns(title=pl.lit(None, pl.String))
    frame.write_parquet(folder / "evaluation/items.parquet")
    older = by_popularity(record_of(folder), "ndcg@2")
    assert [(one.tested, one.recall, one.value) for one in older] == [(None, None, None)] * 4
    frame = frame.with_columns(positives=pl.Series([1, 4, 2, 1]))
    frame.write_parquet(folder / "evaluation/items.parquet")
    record = record_of(folder)
    found = catalogue(record)
    assert found is not None and (found.items, found.coverage) == (4, 0.75)
    # Sorted 0 2 2 4: (-3·0 - 1·2 + 1·2 + 3·4) / (4 · 8).
    assert found.gini == pytest.approx(12 / 32)
    assert found.popularity == pytest.approx((4 * 10 + 2 * 5 + 2 * 1) / 8)
    assert found.top_tenth == 0.5
    groups = by_activity(record, "ndcg@10")
    assert [(one.label, one.users, one.mean) for one in groups] == [
        ("1", 2, 0.5),
        ("5", 1, 0.5),
        ("9", 1, 0.5),
    ]
    by_item = by_popularity(record, "ndcg@2")
    shares = {one.label: (one.recommended, one.hits) for one in by_item}
    assert shares == {"0": (0.0, None), "1": (0.25, 0.5), "5": (0.25, 0.5), "10": (0.5, 0.5)}
    tested = {one.label: (one.tested, one.recall) for one in by_item}
    assert tested == {"0": (1, 0.0), "1": (1, 1.0), "5": (2, 0.5), "10": (4, 0.5)}
    second = 1 / np.log2(3)  # y and z are hit in the second place, x in the first
    assert [one.value for one in by_item] == pytest.approx([0, second, second / 2, 0.5])
    assert [one.value for one in by_popularity(record, "mrr@1")] == pytest.approx([0, 0, 0, 0.5])
    for other in ("ndcg@10", "precision@2", "gauc"):  # lists of two; no value of one interaction
        assert all(one.value is None for one in by_popularity(record, other))


def test_phases_add_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", epochs=4)
    found = phase_seconds(record_of(folder))
    assert found == {
        **{"start": 2.0, "training": 6.0, "validation": 2.0, "test": 0.5},
        "checkpoints and the rest": 9.5,
    }


def test_values_of_another_evaluation_give_no_interval(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["test"]["ndcg@10"] += 0.1
    (folder / "result.json").write_text(json.dumps(result))
    said = text_of(run_page(record_of(folder)))
    assert "is of another evaluation than result.json: the means of ndcg@10 differ" in said
    assert "95 % of resampled users" not in said


def test_the_plan_stands_beside_what_was_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    said = text_of(run_page(record_of(folder)))
    assert "part planned measured rows of item 1.3 KB 1.4 KB rows of all tables 1.3 KB 1.4" in said
    assert "host memory at its peak: rows, model, data and program – 314.6 MB" in said
    assert "hits a row most hits without hits item 41 8 40 0.5000 – – 61.5 120 1" in said
    result = json.loads((folder / "result.json").read_text())
    result |= {"plan": {"holder": "server", "tables": {"item": None}}, "memory": [{"tables": []}]}
    (folder / "result.json").write_text(json.dumps(result))
    said = text_of(run_page(record_of(folder)))
    assert "Of the fullest server." in said and "rows of item grows –" in said
    (folder / "result.json").write_text(json.dumps({**result, "plan": 1, "hits": [2]}))
    said = text_of(run_page(record_of(folder)))
    assert "Planned and measured" not in said and "most hits" not in said


def test_one_validation_alone_is_no_curve(tmp_path: Path) -> None:
    pages = {}
    for epochs in (1, 3):
        folder = write_run(tmp_path / str(epochs), epochs=epochs)
        pages[epochs] = str(run_page(record_of(folder)))
    assert "Training loss" in pages[3] and " by epoch" in pages[3]
    assert "Training loss" not in pages[1] and " by epoch" not in pages[1]


def test_loss_by_rank_is_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert "Loss by rank" not in run_page(record_of(folder))
    lines = [{"epoch": k, "loss": 1.0, "loss_by_rank": [1.0 + k, None]} for k in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert "Loss by rank" in run_page(record_of(folder))


# ---- several runs --------------------------------------------------------------------------------


def test_a_better_run_is_found_and_an_equal_one_is_not(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "base", seed=1),
        write_run(tmp_path / "better", seed=2, skill=0.45, train={"epochs": 8, "batch_size": 7}),
        write_run(tmp_path / "equal", seed=3),
    ]
    said = text_of(compare_page(read_runs(runs)))
    assert re.search(r"better is best by ndcg@10 on the valid .* chance \(p < 0\.001\)", said)
    assert "corrected for the 4 comparisons of this page" in said
    row = re.search(r"equal \d+ / \d+ [+-]\d\.\d{4} p = (\d\.\d{3})", said)
    assert row is not None and float(row[1]) > 0.05
    assert "train.batch_size – 7 –" in said and "train.epochs" not in said


def test_validation_chooses_and_the_test_stands_beside_it(tmp_path: Path) -> None:
    """A run that is best by the test alone is not named."""
    runs = [write_run(tmp_path / name, seed=k) for k, name in enumerate(("one", "two", "three"))]
    other = write_run(tmp_path / "elsewhere", data="other")
    for folder, valid, test in zip([*runs, other], (0.30, 0.20, 0.10, 0.9), (0.2, 0.3, 0.1, 0.9)):
        result = json.loads((folder / "result.json").read_text())
        result["best_valid"]["ndcg@10"], result["test"]["ndcg@10"] = valid, test
        (folder / "result.json").write_text(json.dumps(result))
    said = text_of(compare_page(read_runs(runs)))
    assert (
        "one is best by ndcg@10 on the valid part, 0.3000; on the test part it reaches 0.2" in said
    )
    assert "Of the 2 runs that can be compared with it user by user, " in said
    assert "ndcg@10, best valid ndcg@10 recall@10 one BPR – 0.3000 0.2000" in said
    said = text_of(compare_page(read_runs([*runs, other])))
    assert "one is best" in said and "1 of the 4 runs cannot be chosen: other data" in said
    for folder in runs:
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "best_valid": {}}))
    said = text_of(compare_page(read_runs(runs)))
    assert "None of these runs was validated by ndcg@10, so none is chosen." in said


def test_runs_that_another_metric_decides_are_not_called_equal(tmp_path: Path) -> None:
    """Only the deciding metric says which run is better; one epoch has no curve."""
    runs = [write_run(tmp_path / "one", metric="own@10", epochs=1), write_run(tmp_path / "two")]
    said = text_of(compare_page(read_runs(runs)))
    assert "one is best by own@10" in said and "not validated and tested by own@10" in said
    assert "No other run can be compared with it user by user." in said
    assert "corrected for the one comparison of this page" in said and "Curves" not in said


def test_the_other_runs_are_counted_in_plain_words() -> None:
    counted = {
        ("worse",): "The run that can be compared with it user by user is worse on the test part",
        ("worse", "equal", "better"): "Of the 3 runs that can be compared with it user by user, "
        "1 is worse and 1 is better on the test part",
        ("worse", "worse"): "user by user, 2 are worse on the test part, beyond chance.",
        ("equal", "equal"): "none is better or worse on the test part, beyond chance.",
        (): "No other run can be compared",
    }
    for verdicts, text in counted.items():
        assert text in _summarize_verdicts(list(verdicts))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data": "other"}, "other has other interactions than base"),
        (
            {"eval": {"mode": "uni100", "valid_metric": "ndcg@10"}},
            "eval.mode is full in base, uni100 in other",
        ),
        ({"users": 90}, "it was tested on other users than base"),
        ({"prefix": "x"}, "it was tested on other users than base"),
    ],
)
def test_runs_that_were_tested_otherwise_are_not_compared(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    base = write_run(tmp_path / "base")
    other = write_run(tmp_path / "other", **change)
    said = text_of(compare_page(read_runs([base, other])))
    assert f"other is not tested against it: {why}" in said
    assert "p = " not in said and "Holm" not in said
    assert "0.2" in said  # what each of them reached is there all the same


def test_a_sample_of_users_is_compared_over_those_of_both(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "base"), write_run(tmp_path / "other", seed=2)]
    for folder, some in zip(runs, (slice(0, 80), slice(40, None))):
        file = folder / "evaluation/users.parquet"
        kept = pl.read_parquet(file)[some]
        kept.write_parquet(file, metadata={"shoal.users": "120"})
    records = read_runs(runs)
    assert why_not(*records) is None
    said = text_of(compare_page(records))
    assert "over 40 users drawn anew" in said
    assert "base: figures over users are of a fixed sample of 80 of 120 users" in said


# ---- files that are not as they should be --------------------------------------------------------


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write(text: str) -> Any:
    return lambda path: path.write_text(text)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def without(column: str) -> Any:
    return lambda path: pl.read_parquet(path).drop(column).write_parquet(path)


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("result.json", Path.unlink, "result.json: the run has no result yet"),
        ("result.json", torn, "result.json is damaged"),
        ("result.json", write("[1]"), "it holds no object of JSON"),
        ("result.json", write("[" * 100_000), "result.json is damaged"),
        ("metrics.jsonl", torn, "1 of its lines cannot be read"),
        ("metrics.jsonl", Path.unlink, "metrics.jsonl is not there"),
        ("metrics.jsonl", as_pipe, "metrics.jsonl cannot be read (is no regular file)"),
        ("config.yaml", write("train: [}"), "config.yaml is damaged"),
        ("evaluation/users.parquet", torn, "users.parquet is damaged"),
        ("evaluation/users.parquet", write(""), "users.parquet is damaged"),
        ("evaluation/users.parquet", without("hits"), "it has no column hits"),
        ("evaluation/items.parquet", without("title"), "it has no column title"),
        ("evaluation/items.parquet", Path.unlink, "items.parquet is not there"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, file: str, damage: Any, said: str) -> None:
    folder = write_run(tmp_path / "run")
    damage(folder / file)
    assert any(said in text for text in record_of(folder).missing)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ('{"test": 5, "seconds": [], "memory": {}, "tables": 7, "data": 1}', "{}"),
        ('{"test": {"ndcg@10": "0.5", "x": 1e999}, "best_epoch": "x"}', '{"epoch": "one"}'),
        ('{"tables": {"a": {"norm": 1, "rows": "x"}}, "memory": [1, {}]}', '{"epoch": 1}'),
        ('{"seconds": {"total": null}}', '{"epoch": 0, "loss": NaN, "valid": {"a": []}}'),
        ('{"seconds": {"total": 1e308, "test": 1e308}}', '{"epoch": 0, "loss_by_rank": 5}'),
    ],
)
def test_values_of_another_kind_do_not_end_a_page(tmp_path: Path, result: str, line: str) -> None:
    folder = write_run(tmp_path / "run")
    for file in ("users", "items"):
        torn(folder / f"evaluation/{file}.parquet")
    (folder / "result.json").write_text(result)
    (folder / "metrics.jsonl").write_text(line + "\n")
    said = text_of(run_page(record_of(folder)))
    assert "users.parquet is damaged" in said and "nan" not in said.lower()
    base = write_run(tmp_path / "base", epochs=0)
    assert "2 runs compared" in compare_page(read_runs([folder, base]))


@pytest.mark.parametrize(
    "columns",
    [
        {"train": pl.lit(-1)},
        {"train": pl.lit("many")},
        {"user": pl.lit("the same")},
        {"user": pl.lit(None, pl.String)},
        {"hits": pl.lit([True], pl.List(pl.Boolean))},
        {"items": pl.lit(None, pl.List(pl.String))},
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "run")
    file = folder / "evaluation/users.parquet"
    pl.read_parquet(file).with_columns(**columns).write_parquet(file)
    record = record_of(folder)
    assert record.users is None and record.items is None
    assert any("users.parquet is damaged" in text for text in record.missing)


def test_one_user_without_any_hit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", users=1, items=1, skill=0.0)
    said = text_of(run_page(record_of(folder)))
    assert "0 of 12 found" in said and "nan" not in said.lower()


# ---- in a browser --------------------------------------------------------------------------------


@needs_browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a run")
    file = shoal.report(folder)
    with Browser() as browser:
        browser.open(file.absolute().as_uri())
        assert browser.text("h1") == "a run"
        assert browser.evaluate("document.querySelectorAll('svg').length") == 7
        curve = "document.querySelector('svg[aria-label=\"ndcg@10, valid by epoch\"]').textContent"
        assert "best: epoch 7" in browser.evaluate(curve)
        metrics = "[...document.querySelectorAll('td')].map(one => one.innerText)"
        assert {"ndcg@10", "recall@10", "Title 0", "eval.valid_metric", "314.6 MB"} <= set(
            browser.evaluate(metrics)
        )
        assert browser.evaluate("document.querySelectorAll('li.good').length") > 0
        browser.click("summary")
        assert "train.epochs: 8" in browser.text("pre")
        light = browser.screenshot(tmp_path / "light.png")
        assert browser.evaluate(PAPER) == "rgb(255, 255, 255)"
        browser.dark()
        assert browser.evaluate(PAPER) == "rgb(18, 23, 31)"
        assert browser.screenshot(tmp_path / "dark.png") != light
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        browser.screenshot(tmp_path / "narrow.png")
        assert browser.requests == [file.absolute().as_uri()] and browser.errors == []


@needs_browser
def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    how: dict[str, Any] = {"metric": HOSTILE, "prefix": HOSTILE, "model": {"name": HOSTILE}}
    how |= {HOSTILE: HOSTILE}
    first = write_run(tmp_path / name, **how)
    second = write_run(tmp_path / f"{name} 2", seed=2, **how)
    pages = [shoal.report(first, output=tmp_path / "one.html")]
    pages.append(shoal.report(first, second, output=tmp_path / "two.html"))
    with Browser() as browser:
        for page in pages:
            browser.open(page.as_uri())
            assert "owned" not in browser.evaluate("document.title").split("'")[0]
            assert browser.evaluate("document.querySelectorAll('img, script').length") == 0
            assert HOSTILE in browser.text("body")
        assert browser.left_the_machine == [] and browser.errors == []
        assert browser.requests == [page.as_uri() for page in pages]


@needs_browser
@pytest.mark.parametrize("number", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_several_runs_in_a_browser(tmp_path: Path, number: int) -> None:
    runs = [
        write_run(tmp_path / f"run-{k:02d}", seed=k, skill=0.2 + 0.02 * k, epochs=30)
        for k in range(number)
    ]
    file = shoal.report(*runs, output=tmp_path / "page.html")
    assert file.stat().st_size < 5 << 20
    with Browser() as browser:
        browser.open(file.as_uri())
        assert browser.text("h1") == f"{number} runs compared"
        assert browser.evaluate("document.querySelectorAll('.small-grid svg').length") == number
        forest = "document.querySelector('svg[aria-label^=\"differences\"]').textContent"
        assert all(f"run-{k:02d}" in browser.evaluate(forest) for k in range(1, number))
        assert f"corrected for the {2 * (number - 1)} comparisons" in browser.text("body")
        browser.screenshot(tmp_path / "light.png")
        browser.dark()
        browser.screenshot(tmp_path / "dark.png")
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        browser.screenshot(tmp_path / "narrow.png")
        assert browser.errors == []
