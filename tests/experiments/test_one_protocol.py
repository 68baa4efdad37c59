"""One protocol: runs of one data set are tested on the same, say so, and write it down."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shoal.config.yaml_io import read_file
from shoal.experiments.report.comparison import why_not
from shoal.experiments.tuning.sweep_grid import Cell, decide_protocol, make_grid, plan_cells
from shoal.runs.listing import list_runs
from shoal.runs.run import resolve, train
from shoal.runs.run_files import read_object
from shoal.runs.run_record import read_runs
from shoal.runs.trained_run import Trained

QUIET = ["--run.progress=false", "--run.trackers=[]", "--train.epochs=1"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Interactions with times, as anybody has them."""
    rows = [
        (f"u{u}", f"i{(u * 7 + i * 5) % 60}", 1000 * i + u) for u in range(40) for i in range(9)
    ]
    file = tmp_path / "shop.csv"
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(file)
    return file


def trained(table: Path, name: str, *words: str) -> Path:
    folder = table.parent / name
    place = [f"--data.files.inter={table}", f"--run.output={folder}"]
    train(resolve(overrides=[*QUIET, *place, *words]))
    return folder


def test_runs_of_unlike_models_are_tested_on_the_same(table: Path) -> None:
    ease = trained(table, "ease", "--model.name=EASE")
    sequential = trained(table, "sasrec", "--model.name=SASRec", "--model.hidden_size=8")
    for folder in (ease, sequential):
        config = read_file(folder / "config.yaml")[0]
        split = config["data"]["split"]
        assert (split["by"], split["order"]) == ("leave_one_out", "time")
        assert config["eval"]["repeatable"] is False
        said = read_object(folder / "result.json")["protocol"]
        assert said.startswith("newest item of every user tested, the one before validates")
        assert (folder / "train.log").read_text().count(f"protocol: {said}") == 1
        assert Trained(folder).config.eval.repeatable is False
    assert why_not(*read_runs([ease, sequential])) is None
    assert {one["protocol"] for one in list_runs(table.parent)} == {"newest item of every user"}
    resumed = resolve([ease / "config.yaml"], overrides=QUIET)
    assert train(resumed, resume=True)["folder"] == str(ease)


def test_runs_of_other_protocols_are_not_compared(table: Path) -> None:
    first = trained(table, "first", "--model.name=EASE")
    other = trained(table, "other", "--model.name=EASE", "--data.split.ratio=[1,1,1]")
    assert why_not(*read_runs([first, other])) == (
        "data.split.by is leave_one_out in first, ratio in other"
    )
    again = trained(table, "again", "--model.name=EASE", "--eval.repeatable=true")
    assert why_not(*read_runs([first, again])) == "eval.repeatable is false in first, true in again"


def protocols(found: list[Cell]) -> dict[str, tuple[Any, ...]]:
    """Model -> how its cells are split, and whether seen items are ranked."""
    of = {}
    for cell in decide_protocol(found):
        split, judged = cell.resolved.config.data.split, cell.resolved.config.eval
        of[cell.model] = (split.by, split.order, judged.repeatable)
    return of


def test_a_sweep_has_one_protocol_for_all_models(table: Path, tmp_path: Path) -> None:
    by_time = ("leave_one_out", "time", False)
    found = plan_cells(make_grid("EASE,SASRec", str(table), 1), (), ())
    assert protocols(found) == {"EASE": by_time, "SASRec": by_time}
    # Defaults of a tool that differ by model give way; those that agree, and what is named, stand.
    words = ["--dataset=shop", f"--data.files.inter={table}"]
    assert protocols(plan_cells(make_grid("EASE,SASRec", seeds=1), (), words)) == {
        "EASE": by_time,
        "SASRec": by_time,
    }
    at_random = ("ratio", "random", False)
    assert protocols(plan_cells(make_grid("EASE,BPR", seeds=1), (), words)) == {
        "EASE": at_random,
        "BPR": at_random,
    }
    own = tmp_path / "own.yaml"
    own.write_text("model: BPR\ndata: {split: {by: ratio}}\n")
    assert protocols(plan_cells(make_grid(["EASE", str(own)], str(table), 1), (), ())) == {
        "EASE": by_time,
        "own": ("ratio", "time", False),
    }


def test_a_sequential_model_without_times_says_what_would_be_better(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = table.parent / "untimed.csv"
    pl.read_csv(table).drop("timestamp").write_csv(file)
    words = ("--model.name=SASRec", "--model.hidden_size=8")
    folder = trained(file, "untimed", *words)
    log = (folder / "train.log").read_text()
    assert "random 10 % of every user tested" in log and "set data.split.order=file" in log
    folder = trained(file, "in-file", *words, "--data.split.order=file")
    log = (folder / "train.log").read_text()
    assert "last item in the file of every user tested" in log and "would be" not in log
    assert "set data.split.order=file" not in log
