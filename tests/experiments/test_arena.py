"""`shoal arena` as people type it: real runs, one that fails, an arena killed and continued."""

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.experiments.arena.arena_file import read_arena
from shoal.experiments.arena.cells import plan_arena
from shoal.experiments.tuning.study_folder import StudyFolder, StudyLimits
from shoal.experiments.tuning.sweep import plan_run
from tests.helpers.browser import Browser, needs_browser
from tests.helpers.commands import MARK, processes
from tests.helpers.commands import shoal as start

SMALL = "name: synthetic, data.synthetic: {users: 60, items: 40, interactions: 1200}"
BROKEN = '''
from shoal.models.general.bpr import BPR


class Broken(BPR):
    """Fails in its first step."""

    def forward(self, batch):
        raise ValueError("it cannot learn\\nand this line is not shown")
'''
Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Output of `shoal arena arena.yaml`, in this process: what it starts are real processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(*MARK.split("="))

    def run(text: str, *words: str, status: int = 0) -> str:
        (tmp_path / "arena.yaml").write_text(text)
        result = CliRunner().invoke(app, ["arena", "arena.yaml", *words])
        assert result.exit_code == status, f"{result.output}\n{result.exception}"
        return result.output

    return run


def arena_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "arenas" / "arena" / "arena.json").read_text())


def result(folder: Path, run: str) -> dict[str, Any]:
    return json.loads((folder / "arenas" / "arena" / "runs" / run / "result.json").read_text())


def test_models_data_sets_and_seeds_on_one_page(tmp_path: Path, call: Call) -> None:
    large = "{name: synthetic, title: large, data.synthetic: {users: 90, items: 50, interactions: "
    text = (
        f"models: [Pop, BPR]\ndata: [{{{SMALL}, title: small}}, {large}2000}}}}]\nseeds: 2\n"
        "keys: {train.epochs: 2}\njobs: 2\nprice_per_hour: 36\n"
        "published: {model: SASRec, data: small, source: 'a paper, table 2', ndcg@10: 0.0318}\n"
    )
    output = call(text)
    assert "arenas/arena: 8 of 8 runs to train, 2 at once" in output
    assert "[1/8] " in output and "[8/8] " in output and "none left" in output
    found = arena_json(tmp_path)
    assert found["finished"] and not found["problems"] and found["finished_runs"] == 8
    assert [row["data"] for row in found["data"]] == ["small", "large"]
    # A figure, with both intervals.
    small = found["data"][0]
    figure = small["metrics"]["ndcg@10"]["BPR"]
    results = [result(tmp_path, f"BPR-small-{seed}") for seed in (2020, 2021)]
    values = [one["test"]["ndcg@10"] for one in results]
    assert figure["mean"] == pytest.approx(np.mean(values)) and figure["seeds"] == 2
    for interval in (figure["over_seeds"], figure["over_users"]):
        assert interval[0] <= figure["mean"] <= interval[1]
    half = 12.706 * np.std(values, ddof=1) / np.sqrt(2)  # Student's t of two values
    assert figure["over_seeds"][1] - figure["mean"] == pytest.approx(half, rel=1e-3)
    # One split for all models of a data set.
    for row in found["data"]:
        assert row["no_test"] is None
        runs = [f"{model}-{row['data']}-{seed}" for model in row["costs"] for seed in (2020, 2021)]
        assert len(runs) == 4
        assert len({result(tmp_path, run)["data"]["splits"] for run in runs}) == 1
    # Ranks over data sets, and over the users of each.
    assert found["ranks"]["blocks"] == 2 and len(found["ranks"]["models"]) == 2
    assert "are few" in found["ranks"]["note"]
    assert small["ranks"]["blocks"] == 60 and small["ranks"]["over"] == "users with seed 2020"
    # Seconds and cost: two runs at once share the machine's price, here a cent a second.
    cost = small["costs"]["BPR"]
    total = sum(one["seconds"]["total"] for one in results)
    assert cost["seconds"] >= 0.9 * total / 2 and cost["host_bytes"] > 1e8
    assert cost["cost"] == pytest.approx(cost["seconds"] * 2 * 0.01 / 2)
    # The page, its Markdown and csv have them all.
    folder = tmp_path / "arenas" / "arena"
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert f"{figure['mean']:.4f}" in page and "a paper, table 2" in page and "0.0318" in page
        assert "Ranks over the users of small" in page and "Nemenyi" in page
        assert str(tmp_path) not in page
    lines = list(csv.DictReader((folder / "figures.csv").open()))
    assert len(lines) == 2 * 2 * 5 + 1
    (published,) = [line for line in lines if line["state"] == "published"]
    assert (published["mean"], published["source"]) == ("0.0318", "a paper, table 2")
    # The same command again trains nothing, and finds the same.
    again = call(text)
    assert "all 8 runs are finished" in again and "[1/" not in again
    assert arena_json(tmp_path) == found


@pytest.mark.slow
def test_seeds_may_be_added_and_keys_not_changed(tmp_path: Path, call: Call) -> None:
    text = f"models: [Pop]\ndata: [{{{SMALL}}}]\nseeds: 1\n"
    call(text)
    assert "1 of 2 runs to train" in call(text.replace("seeds: 1", "seeds: 2"))
    (tmp_path / "arena.yaml").write_text(text + "keys: {eval.topk: [5]}\n")
    refused = CliRunner().invoke(app, ["arena", "arena.yaml"])
    assert "was trained with another config; name another folder" in str(refused.exception)


def test_a_run_that_fails_is_a_cell_and_one_seed_has_no_interval(
    tmp_path: Path, call: Call
) -> None:
    (tmp_path / "own.py").write_text(BROKEN)
    text = f"models: [Pop, 'own.py:Broken']\ndata: [{{{SMALL}}}]\nseeds: [5]\n"
    output = call(text, status=1)
    assert "Broken on synthetic, seed 5: failed: it cannot learn\n" in output
    assert "not shown" not in output
    assert "One seed alone: there is no interval over seeds." in output
    found = arena_json(tmp_path)
    (problem,) = found["problems"]
    assert problem["reason"] == "it cannot learn" and problem["seed"] == 5
    (row,) = found["data"]
    assert row["best"] == "Pop" and row["ranks"] == {
        "missing": "fewer than two models have figures"
    }
    assert row["metrics"]["mrr@10"]["Pop"]["over_seeds"] is None
    page = (tmp_path / "arenas" / "arena" / "report.html").read_text()
    assert "it cannot learn" in page and "1 of 2 runs have figures" in page
    # It is tried again, while the other is kept.
    (tmp_path / "own.py").write_text(BROKEN.replace("raise ValueError", "0 and print"))
    assert "1 of 2 runs to train" in call(text, "--json", "--trust", status=1)


def test_figures_for_programs_and_refused_models(tmp_path: Path, call: Call) -> None:
    clicks = "{name: synthetic_clicks, data.clicks.synthetic.samples: 3000}"
    text = f"models: [LR, Pop]\ndata: [{clicks}]\nseeds: 1\nkeys: {{train.epochs: 1}}\n"
    output = call(text, "--quiet", "--json", status=1)
    found = json.loads(output)
    assert found["folder"] == "arenas/arena"
    (problem,) = found["problems"]
    assert (problem["model"], problem["state"], problem["seed"]) == ("Pop", "refused", None)
    figure = found["data"][0]["metrics"]["auc"]["LR"]
    assert figure["over_users"] is None and 0.4 < figure["mean"] < 1


@pytest.mark.slow
def test_a_search_goes_before_the_seeds(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("optuna")
    keys = "keys: {train.epochs: 1}"
    text = f"models: [Pop, BPR]\ndata: [{{{SMALL}}}]\nseeds: [2021]\ntune: 2\n{keys}\n"
    output = call(text)
    assert "Pop on synthetic: nothing to search" in output and "trial   1" in output
    found = arena_json(tmp_path)
    (best,) = found["best_values"]
    study = json.loads((tmp_path / "arenas/arena/searches/BPR-synthetic/study.json").read_text())
    assert best["values"] == study["best"]["params"]
    cells = plan_arena(read_arena(tmp_path / "arena.yaml")).cells
    folder = tmp_path / "arenas" / "arena"
    runs = {plan_run(folder, cell).folder.name for cell in cells}
    assert runs == {one.name for one in (folder / "runs").iterdir()}
    lr = best["values"]["train.optimizer.lr"]
    config = (folder / "runs" / "BPR-synthetic-2021" / "config.yaml").read_text()
    assert f"lr: {lr}" in config and "seed: 2021" in config
    assert found["data"][0]["costs"]["BPR"]["search_seconds"] > 0
    again = call(text)
    assert "trial " not in again and "all 2 runs are finished" in again
    assert arena_json(tmp_path) == found


@pytest.mark.slow
def test_an_arena_that_was_killed_goes_on(tmp_path: Path) -> None:
    """SIGKILL in the middle of a run: finished ones are kept, that one goes on where it was."""
    text = f"models: [Pop, BPR]\ndata: [{{{SMALL}}}]\nseeds: 1\nkeys: {{train.epochs: 25}}\n"
    (tmp_path / "arena.yaml").write_text(text + "jobs: 1\n")
    runs = tmp_path / "arenas" / "arena" / "runs"
    cut = runs / "BPR-synthetic-2020"
    command = start("arena", "arena.yaml", cwd=tmp_path)
    command.until(
        "a checkpoint",
        lambda: (
            (cut / "metrics.jsonl").exists() and (cut / "metrics.jsonl").read_text().count("\n") > 5
        ),
    )
    command.kill()
    deadline = time.monotonic() + 10
    while processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes()  # nothing trains on without its command
    assert not (cut / "result.json").exists()
    kept = (runs / "Pop-synthetic-2020" / "result.json").read_bytes()
    epochs_before = (cut / "metrics.jsonl").read_text().count("\n")
    command = start("arena", "arena.yaml", cwd=tmp_path)
    assert command.wait() == 0, command.output
    assert "1 of 2 runs to train" in command.output
    assert (runs / "Pop-synthetic-2020" / "result.json").read_bytes() == kept
    log = (cut / "train.log").read_text()
    assert "resum" in log.lower(), log
    found = arena_json(tmp_path)
    assert found["finished"] and found["finished_runs"] == 2
    assert found["data"][0]["costs"]["BPR"]["seconds"] > 0 and epochs_before > 5


def test_what_a_careless_arena_is_told(tmp_path: Path, call: Call) -> None:
    """The data set of an error, how its columns are named here, and that one user says nothing."""
    (tmp_path / "odd.csv").write_text("Kunde Nr,Ware\n1,2\n2,3\n")
    (tmp_path / "arena.yaml").write_text(f"models: [Pop]\ndata: [{{{SMALL}}}, odd.csv]\nseeds: 1\n")
    refused = CliRunner().invoke(app, ["arena", "arena.yaml"])
    assert str(refused.exception).startswith("data set odd.csv: odd.csv: no column looks like")
    assert "`data.fields.user: NAME` `data.fields.item: NAME`" in str(refused.exception)
    rows = "".join(f"a,{item},{item}\n" for item in range(40))
    (tmp_path / "one.csv").write_text("user,item,timestamp\n" + rows)
    output = call("models: [Pop, EASE]\ndata: [one.csv]\nseeds: 1\n")
    assert "1 user is too few to tell models apart" in output


def test_time_that_is_over_is_no_failure(tmp_path: Path, call: Call) -> None:
    text = f"models: [Pop, BPR]\ndata: [{{{SMALL}}}]\nseeds: 1\nkeys: {{train.epochs: 1}}\n"
    output = call(text, "--minutes", "0")
    assert "the time is over; the same command continues" in output
    found = arena_json(tmp_path)
    assert not found["finished"] and {one["state"] for one in found["problems"]} == {"waiting"}
    assert "No run on synthetic has figures." in output


def test_an_arena_runs_no_copy_that_its_folder_keeps(tmp_path: Path, call: Call) -> None:
    """The folder may be somebody else's: a copy of a model there that is another text."""
    (tmp_path / "own.py").write_text(BROKEN)
    text = f"models: ['own.py:Broken']\ndata: [{{{SMALL}}}]\nseeds: 1\n"
    (tmp_path / "arena.yaml").write_text(text)
    (cell,) = plan_arena(read_arena(tmp_path / "arena.yaml")).cells
    folder = tmp_path / "arenas" / "arena"
    run = plan_run(folder, cell)
    folder.mkdir(parents=True)
    StudyFolder(folder, StudyLimits(), print).write_config(run.folder, cell.resolved, True)
    (run.folder / "model").mkdir()
    (run.folder / "model" / "own.py").write_text(BROKEN + "open('witness', 'w').close()\n")
    refused = CliRunner().invoke(app, ["arena", "arena.yaml"])
    assert "--trust" in str(refused.exception) and not (tmp_path / "witness").exists()


@pytest.mark.parametrize("name", ["runs", "runs/Pop-synthetic-5", "searches"])
def test_an_arena_follows_no_link(tmp_path: Path, call: Call, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    place = tmp_path / "arenas" / "arena" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    search = "tune: 1\n" if name == "searches" else ""
    text = f"models: [Pop, BPR]\ndata: [{{{SMALL}}}]\nseeds: [5]\n{search}"
    (tmp_path / "arena.yaml").write_text(text)
    refused = CliRunner().invoke(app, ["arena", "arena.yaml"])
    assert refused.exit_code and not list(victim.iterdir())
    assert "is a link" in f"{refused.output} {refused.exception}"


@needs_browser
def test_names_of_the_file_are_no_markup_on_the_page(tmp_path: Path, call: Call) -> None:
    evil = "<script>document.title='taken'</script>"
    text = (
        f'models: [Pop, {{name: EASE, title: "{evil}"}}]\n'
        f'data: [{{{SMALL}, title: "$x$ {evil}"}}]\nseeds: 1\n'
        f'published: {{model: "{evil}", data: "$x$ {evil}", source: "{evil}", mrr@10: 0.1}}\n'
    )
    call(text)
    with Browser() as browser:
        browser.open((tmp_path / "arenas" / "arena" / "report.html").as_uri())
        assert browser.evaluate("document.title") == "Arena: 2 models, 1 data set, 1 seed"
        assert not browser.requests[1:] and not browser.errors
        assert browser.evaluate("document.querySelectorAll('svg').length") == 1
