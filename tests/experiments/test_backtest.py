"""Back-tests: several cuts in time, each a run that knows nothing of what comes after it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import DATA, NO_DROPOUT
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.config.data_section import seconds_of
from shoal.data.loading.load import load_dataset
from shoal.experiments.backtest import backtest
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained

SHORT = {**DATA, **NO_DROPOUT["BPR"], "train.epochs": 2, "train.batch_size": 256}


def given(**more: Any) -> Any:
    values = {key.replace("__", "."): value for key, value in more.items()}
    return resolve(values={"model": "BPR", **SHORT, **values})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backtest") / "all"
    backtest(given(), 3, [], str(folder))
    return folder


def test_cuts_train_on_the_past_and_test_on_the_next_window(done: Path) -> None:
    found = json.loads((done / "backtest.json").read_text())
    times = np.sort(np.asarray(load_dataset(given().config.data, 2020).inter["timestamp"]))
    assert [cut["folder"] for cut in found["cuts"]] == [str(done / f"cut-{n}") for n in (1, 2, 3)]
    windows = [seconds_of(cut["test_from"]) for cut in found["cuts"]]
    shares = [(times < moment).mean() for moment in windows]
    assert shares == pytest.approx([1 / 2, 2 / 3, 5 / 6], abs=1e-3)
    for cut, start, end in zip(found["cuts"], windows, [*windows[1:], np.inf]):
        data = Trained(cut["folder"]).parts.dataset
        when = {p: np.asarray(data.inter["timestamp"])[data.splits[p]] for p in data.splits}  # type: ignore[union-attr,index]
        assert when["train"].max() < when["valid"].min() <= when["valid"].max() < start
        assert when["test"].min() == start and when["test"].max() < end
        past = len(when["train"]) + len(when["valid"])
        assert len(when["valid"]) == pytest.approx(past / 10, abs=1) and cut["test"] == len(
            when["test"]
        )
        assert cut["train"] == len(when["train"])
        result = json.loads((Path(cut["folder"]) / "result.json").read_text())
        assert cut["metrics"] == result["test"] and cut["best_epoch"] == result["best_epoch"]
    values = [cut["metrics"]["ndcg@10"] for cut in found["cuts"]]
    assert found["mean"]["ndcg@10"] == pytest.approx(np.mean(values))
    assert found["deviation"]["ndcg@10"] == pytest.approx(np.std(values))


def test_finished_cuts_are_kept_and_others_resumed(done: Path) -> None:
    before = json.loads((done / "backtest.json").read_text())
    first, last = done / "cut-1" / "result.json", done / "cut-3" / "result.json"
    last.unlink()  # as if it had been killed before its end
    written = first.stat().st_mtime_ns
    assert backtest(given(), 3, [], str(done)) == before
    assert first.stat().st_mtime_ns == written and last.is_file()
    with pytest.raises(ValueError, match=r"cut-1 holds a run of another config; name another"):
        backtest(given(train__epochs=3), 3, [], str(done))


def test_a_finished_cut_of_somebody_else(done: Path, tmp_path: Path) -> None:
    """Its figures are shown where they are numbers of metrics that all cuts have, or refused."""
    folder = tmp_path / "theirs"
    shutil.copytree(done, folder)
    file = folder / "cut-2" / "result.json"
    own = json.loads(file.read_text())
    words = [f"--{key}={json.dumps(value)}" for key, value in SHORT.items()]
    words = ["backtest", "--model=BPR", *words, "--cuts=3", f"--output={folder}"]

    def call(**result: Any) -> Any:
        file.write_text(json.dumps({**own, **result}))
        return CliRunner().invoke(app, words)

    assert call(test={}).exit_code == 0
    only = call(test={"ndcg@10": 0.5, "of their own": 1.0})
    assert only.exit_code == 0 and "ndcg@10" in only.output and "own" not in only.output
    for wrong in ({"test": {"ndcg@10": "0.5"}}, {"test": 5}, {"best_valid": []}):
        refused = call(**wrong)
        assert "remove that run's folder" in str(refused.exception)


def test_the_command_prints_a_table(done: Path, tmp_path: Path) -> None:
    words = [f"--{key}={json.dumps(value)}" for key, value in SHORT.items()]
    asked = ["backtest", "--model=BPR", *words, "--cuts", "3", "--output", str(done)]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, ran.output
    found = json.loads((done / "backtest.json").read_text())
    for value in found["mean"].values():
        assert f"{value:.4f} ± " in ran.output
    assert "mrr@10" in ran.output and f"runs: {done}" in ran.output
    for more, told in ((["--at", "1998-01-01"], "give one"), (["--run.output=x"], "give --output")):
        assert told in CliRunner().invoke(app, [*asked, *more]).output


@pytest.mark.parametrize(
    ("more", "cuts", "at", "told"),
    [
        ({}, None, ["1996-01-01"], "1996-01-01 has too few interactions before there; times run"),
        ({}, None, ["2030-01-01"], "2030-01-01 has too few interactions from there"),
        ({}, None, ["1998-03-01", "1998-02-01"], "every date must come after the one before"),
        ({}, None, ["soon"], "'soon' is no date"),
        ({}, 100_000, [], "too few interactions from there.*choose fewer cuts"),
        ({"model": "DeepFM"}, 2, [], "DeepFM predicts clicks"),
        ({"data__split__order": "file"}, 2, [], "has no times to cut at"),
        ({"data__filter__values": {"timestamp": "[5,inf)"}}, 2, [], "leave it out"),
    ],
)
def test_what_cannot_be_cut(
    more: dict[str, Any], cuts: int | None, at: list[str], told: str, tmp_path: Path
) -> None:
    values = {**DATA, **{key.replace("__", "."): value for key, value in more.items()}}
    with pytest.raises(ValueError, match=told):
        backtest(resolve(values={"model": "BPR", **values}), cuts, at, str(tmp_path / "all"))
    assert not (tmp_path / "all").exists()
