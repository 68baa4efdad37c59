"""`shoal tune` and `shoal sweep` as people type them: real processes, killed and resumed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.experiments.tuning.space import read_space
from shoal.experiments.tuning.study import Study
from shoal.runs.run import resolve
from tests.helpers.browser import Browser, needs_browser
from tests.helpers.commands import MARK, errors, finish, processes
from tests.helpers.commands import shoal as start

SMALL = (
    *(
        "--model=BPR",
        "--data.name=synthetic",
        "--data.synthetic.users=60",
        "--data.synthetic.items=40",
    ),
    *("--data.synthetic.interactions=1200", "--train.batch_size=256"),
)
SPACE = """
train.optimizer.lr: {low: 1e-3, high: 1e-1, log: true}
model.embedding_size: [4, 8]
"""


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def study(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "study.json").read_text())


@pytest.fixture()
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Output of a command, in this process: what it starts are real processes."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(*MARK.split("="))

    def run(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == status, result.output
        return result.output

    return run


def outcome(folder: Path) -> list[Any]:
    """What must be the same, however often a search was killed."""
    found = study(folder)
    return [*found["trials"], found["best"], (folder / "best.yaml").read_text().splitlines()[1:]]


def test_a_search_from_its_space_to_its_best_config(folder: Path, call: Callable[..., str]) -> None:
    words = (*SMALL, "--space", "space.yaml", "--output", "<b>50%?#study")
    how = ("--train.epochs=3", "--trials", "4", "--jobs", "2", "--seeds", "2")
    output = call("tune", *words, *how)
    place = folder / "<b>50%?#study"
    found = study(place)
    assert [one["trial"] for one in found["trials"]] == [0, 1, 2, 3]
    assert {one["state"] for one in found["trials"]} == {"finished"}
    assert output.count("trial ") >= 4 and "train it: shoal train <b>50%?#study/best.yaml" in output
    # The first trial is the config as it is; embedding_size 64 is outside the space.
    assert found["trials"][0]["params"]["train.optimizer.lr"] == 0.001
    ranked = sorted(found["trials"], key=lambda one: -one["value"])
    finalists = sorted((place / "finalists").iterdir())
    assert {int(one.name[:4]) for one in finalists} == {one["trial"] for one in ranked[:3]}
    scores = {one["trial"]: [one["value"]] for one in ranked[:3]}
    for one in finalists:
        result = json.loads((one / "result.json").read_text())
        scores[int(one.name[:4])].append(result["best_valid"]["mrr@10"])
        config = resolve([one / "config.yaml"]).config
        assert (config.run.seed, config.data.split.seed) == (2021, 2020)  # the same split
    means = {trial: sum(values) / 2 for trial, values in scores.items()}
    assert means[found["best"]["trial"]] == max(means.values())
    assert found["best"]["valid"]["mrr@10"] == pytest.approx(max(means.values()))
    # Nothing of a worker is left, nor the checkpoints of trials that were not the best.
    assert not [pid for pid, _, _ in processes()]
    kept = [one.parent.name for one in place.glob("trials/*/checkpoints")]
    assert kept == [f"{ranked[0]['trial']:04d}"]
    best = resolve([place / "best.yaml"]).config
    assert best.model.options["embedding_size"] == found["best"]["params"]["model.embedding_size"]
    assert best.run.output is None and best.run.progress
    # A second call trains nothing, and refuses to begin anew.
    before = (place / "study.db").read_bytes()
    again = call("tune", "--resume", place.name, "--trials", "4", "--seeds", "2")
    assert "to train" not in again and (place / "study.db").read_bytes() == before
    assert study(place) == found
    # Quiet: one more trial and nothing said of it, but what was found.
    quiet = call("tune", "--resume", place.name, "--trials", "5", "--quiet")
    assert quiet.startswith("BPR on synthetic: ") and quiet.count("\n") == 4
    assert len(study(place)["trials"]) == 5 and resolve([place / "best.yaml"]).config.run.progress
    # What differs from how it began is named, and it does not begin anew.
    how = {"model": "BPR", "dataset": "synthetic", "output": place, "resume": True}
    with pytest.raises(ValueError, match=r"was begun with data\.synthetic\.users 60, now it is 90"):
        shoal.tune(**how, **{"data.synthetic.users": 90, "data.synthetic.items": 40})
    with pytest.raises(ValueError, match="continue it with --resume"):
        shoal.tune(**{**how, "resume": False})
    with pytest.raises(ValueError, match=r"was begun with train\.optimizer\.lr"):
        config = {"config_file_list": [place / "config.yaml"], "output": place, "resume": True}
        shoal.tune(**config, space={"embedding_size": [4, 16]})


@needs_browser
def test_the_page_of_a_search(tmp_path: Path) -> None:
    from shoal.experiments.tuning.study_page import study_page

    evil = "<script>document.title='taken'</script>"
    trials = [
        {
            "trial": k,
            "state": "failed" if k == 7 else "stopped" if k % 4 == 3 else "finished",
            "params": {"train.optimizer.lr": 10 ** -(1 + k / 4), "model.layers": [8, evil]},
            "value": None if k == 7 else 0.1 + 0.01 * k,
            "curve": [] if k == 7 else [(epoch, 0.01 * epoch * k) for epoch in range(1, 9)],
            "epochs": 9 if k % 4 != 3 else None,
            "problem": evil if k == 7 else None,
        }
        for k in range(12)
    ]
    metrics = {"mrr@10": 0.2, "ndcg@10": 0.1}
    best = {"trial": 10, "params": trials[10]["params"], "seeds": 3}
    found = {"model": evil, "dataset": "$x^2$ & co", "metric": "mrr@10", "maximized": True}
    found |= {"importance": {"train.optimizer.lr": 0.9, "model.layers": 0.1}, "finished": True}
    found |= {"trials": trials, "best": {**best, "valid": metrics, "test": metrics}}
    file = tmp_path / "report.html"
    file.write_text(study_page(found))
    with Browser() as browser:
        browser.open(file.as_uri())
        assert browser.text("h1") == f"Search: {evil} on $x^2$ & co"
        assert "Trial 10 is the best" in browser.text() and "importance 90%" in browser.text()
        assert browser.evaluate("document.querySelectorAll('svg').length") == 4
        assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 12 + 2 + 2
        assert browser.evaluate("document.title") == f"Search: {evil} on $x^2$ & co"
        assert browser.evaluate("document.body.scrollWidth <= 1200")
        browser.resize(390, 800)
        assert browser.evaluate("document.body.scrollWidth <= 390")
        assert len(browser.screenshot(tmp_path / "page.png")) > 20_000
        assert browser.left_the_machine == [] and browser.errors == []
    # Nothing has ended well yet.
    empty = study_page({**found, "trials": [], "best": None, "importance": {}})
    assert "No trial has ended well yet" in empty


def test_mistakes_are_named_before_anything_is_made(folder: Path, call: Callable[..., str]) -> None:
    def refuses(why: str, **how: Any) -> None:
        with pytest.raises(ValueError, match=why):
            shoal.tune("BPR", "synthetic", **how)
        assert [one.name for one in folder.iterdir()] == ["space.yaml"]

    refuses("unknown key train.optimizer.rate", space={"train.optimizer.rate": [1]})
    refuses("missing.yaml: no such config file", space="missing.yaml")
    refuses("train.eval_every is 0", **{"train.eval_every": 0})
    refuses("allowed: tpe, random, grid; did you mean grid", sampler="gird")
    refuses("is a range without steps", space="space.yaml", sampler="grid")
    refuses("run.seed decides how trials are judged", space={"seed": [1, 2]})
    refuses("name that of a search with --output", **{"run.output": "runs/one"})
    with pytest.raises(ValueError, match="no data set"):
        shoal.tune("BPR", "nosuch")
    assert "nosuch holds no search" in call("tune", "--resume", "nosuch", status=2)
    assert "needs the folder" in call("tune", "--resume", *SMALL, status=2)


@pytest.mark.slow
def test_trials_that_all_fail_end_the_search(folder: Path) -> None:
    (folder / "nan.yaml").write_text("train.optimizer.lr: [1e30, 1e35, 1e37]\n")
    words = (*SMALL, "--train.epochs=3", "--space", "nan.yaml", "--output", "study")
    output = finish("tune", *words, cwd=folder, status=2)
    assert "all of the first 3 trials failed" in errors(output)[0]
    assert "NaN" in errors(output)[0] or "inf" in errors(output)[0]


@pytest.mark.slow
def test_killed_twice_and_resumed_it_finds_the_same(folder: Path) -> None:
    words = (*SMALL, "--train.epochs=30", "--space", "space.yaml", "--trials", "14")
    finish("tune", *words, "--output", "whole", cwd=folder)
    place = folder / "parts"
    for trial, lines in ((4, 5), (11, 3)):
        command = start("tune", *words, "--output", "parts", "--resume", cwd=folder)
        metrics = place / "trials" / f"{trial:04d}" / "metrics.jsonl"

        def has_trained(file: Path = metrics, lines: int = lines) -> bool:
            return file.exists() and file.read_text().count("\n") >= lines

        command.until(f"epoch {lines} of trial {trial}", has_trained)
        os.kill(command.process.pid, signal.SIGKILL)  # alone: its workers and trials end with it
        command.process.wait(10)
        command.kill()
    finish("tune", *words, "--output", "parts", "--resume", cwd=folder)
    assert outcome(place) == outcome(folder / "whole")
    states = [one["state"] for one in study(place)["trials"]]
    assert set(states) == {"finished", "stopped"}  # some were pruned
    assert not [pid for pid, _, _ in processes()]


@pytest.mark.slow
def test_minutes_end_a_call_and_the_next_continues(folder: Path) -> None:
    words = (*SMALL, "--train.epochs=40", "--space", "space.yaml", "--trials", "8")
    finish("tune", *words, "--output", "whole", cwd=folder)
    calls, place = 0, folder / "parts"
    while not (place / "study.json").exists() or not study(place)["finished"]:
        calls += 1
        finish(
            "tune", *words, "--output", "parts", "--resume", "--minutes", "0.15", cwd=folder
        )  # fmt: skip
        assert calls < 40
    assert calls > 1
    assert outcome(place) == outcome(folder / "whole")


@pytest.mark.slow
def test_ctrl_c_saves_what_trains(folder: Path) -> None:
    words = (*SMALL, "--train.epochs=5000", "--space", "space.yaml", "--output", "study")
    command = start("tune", *words, cwd=folder)
    metrics = folder / "study/trials/0000/metrics.jsonl"
    command.until("an epoch", lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    command.interrupt()
    assert command.wait() == 130 and "stopped by SIGINT" in command.output
    assert not [pid for pid, _, _ in processes()]
    assert list((folder / "study/trials/0000/checkpoints").glob("step-*"))
    space = read_space(folder / "study/space.yaml")
    opened = Study(folder / "study", "mrr@10", 2020, None, None, space)
    assert opened.unfinished == [0]


@pytest.mark.slow
def test_trials_by_a_command_and_by_recboles_space(folder: Path) -> None:
    (folder / "hyper.test").write_text(
        "learning_rate loguniform -5,-2\nembedding_size choice [4,8]\n"
    )
    words = (
        *SMALL,
        "--train.epochs=3",
        "--space",
        "hyper.test",
        "--output",
        "study",
        "--trials",
        "2",
    )
    finish("tune", *words, "--launch", "env MARK=cluster nice -n 1", cwd=folder)
    found = study(folder / "study")
    assert list(found["best"]["params"]) == ["train.optimizer.lr", "model.embedding_size"]
    missing = finish(
        "tune", *words, "--output", "other", "--launch", "nosuch", cwd=folder, status=2
    )
    assert "--launch: cannot start nosuch" in missing


@pytest.mark.slow
def test_a_grid_and_own_models(folder: Path) -> None:
    finish("new", "model", "Mine", cwd=folder)
    (folder / "grid.yaml").write_text("train.optimizer.lr: [0.001, 0.01]\n")
    words = (*SMALL[1:], "--model=mine.py:Mine", "--space", "grid.yaml", "--output", "study")
    finish("tune", *words, "--train.epochs=3", "--sampler", "grid", cwd=folder)
    assert len(study(folder / "study")["trials"]) == 2
    refused = finish("tune", "--resume", "study", cwd=folder, status=2)
    assert "--trust" in refused  # a folder's config may be somebody's
    finish("tune", "--resume", "study", "--trust", cwd=folder)


@pytest.mark.slow
def test_a_sweep(folder: Path, call: Callable[..., str]) -> None:
    words = (*SMALL[1:], "--models", "Pop,BPR", "--seeds", "2")
    output = finish(
        "sweep", *words, "--train.epochs=2", "--output", "all", "--jobs", "2", cwd=folder
    )
    found = json.loads((folder / "all" / "sweep.json").read_text())
    (table,) = found["data"]
    assert set(table["metrics"]["ndcg@10"]) == {"Pop", "BPR"} and table["best"] in output
    row = table["metrics"]["ndcg@10"]["BPR"]
    results = [
        json.loads((folder / f"all/runs/BPR-synthetic-{seed}/result.json").read_text())
        for seed in (2020, 2021)
    ]
    assert row["mean"] == pytest.approx(sum(one["test"]["ndcg@10"] for one in results) / 2)
    assert row["low"] <= row["mean"] <= row["high"] and row["seeds"] == 2
    assert row["over"] == "users"  # whose values the runs keep
    other = "Pop" if table["best"] == "BPR" else "BPR"
    assert 0 < table["metrics"]["ndcg@10"][other]["p"] <= 1
    # What is finished is not trained again; lists of a file are the same as flags.
    (folder / "grid.yaml").write_text("models: [Pop, BPR]\nseeds: [2020, 2021]\n")
    grid = (*SMALL[1:], "--train.epochs=2", "--grid", "grid.yaml", "--output", "all", "--json")
    again = call("sweep", *grid)
    assert ", seed " in output and ", seed " not in again
    assert json.loads(again[again.index("{") :])["data"] == found["data"]
    words = (*SMALL[1:], "--models", "BPR", "--train.epochs=3", "--output", "all")
    error = CliRunner().invoke(app, ["sweep", *words]).exception
    assert "was trained with another config" in str(error)


def write_shop(folder: Path) -> None:
    """A table of interactions with times: shop.csv."""
    rows = [f"u{u},i{(u * 7 + i * 5) % 60},{1000 * i + u}\n" for u in range(40) for i in range(9)]
    (folder / "shop.csv").write_text("user,item,timestamp\n" + "".join(rows))


@pytest.mark.slow
def test_a_sweep_over_a_file_has_one_protocol(folder: Path) -> None:
    write_shop(folder)
    words = ("shop.csv", "--models", "EASE,SASRec", "--seeds", "1", "--train.epochs=1")
    output = finish("sweep", *words, "--output", "all", cwd=folder)
    (table,) = json.loads((folder / "all" / "sweep.json").read_text())["data"]
    assert table["no_test"] is None and table["data"] == "shop"
    assert set(table["protocols"].values()) == {"newest item of every user"}
    assert "test, shop: newest item of every user" in output
    splits = {
        json.loads((folder / f"all/runs/{model}-shop-2020/result.json").read_text())["data"][
            "splits"
        ]
        for model in ("EASE", "SASRec")
    }
    assert len(splits) == 1
    (folder / "by-ratio.yaml").write_text("model: EASE\ndata: {split: {ratio: [1, 1, 1]}}\n")
    words = ("shop.csv", "--models", "SASRec,by-ratio.yaml", *words[3:])
    output = finish("sweep", *words, "--output", "all", cwd=folder)
    assert "no test: data.split.by is leave_one_out in SASRec, ratio in by-ratio" in output
    assert "p=" not in output


def test_a_sweep_takes_a_file_of_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shop(folder)
    monkeypatch.chdir(folder)
    said = CliRunner().invoke(app, ["sweep", "shop.csv", "--data", "synthetic"]).output
    words = " ".join(said.replace("│", " ").split())
    assert "shop.csv and the other data (synthetic) both name data; leave one out" in words
