"""Trackers: each follows a real run from its beginning to its end, and none of them ends it."""

import json
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from commands import shoal
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import shoal as package
from shoal.config.launch_section import TRACKERS
from shoal.runs.run import resolve_run
from shoal.runs.trained_run import open_config

ROOT = Path(__file__).parents[2]
SMALL = {
    "data.synthetic": {"users": 90, "items": 60, "interactions": 2000},
    "run.log_level": "warning",
    "run.progress": False,
    "train.eval_every": 2,
}
WORDS = (
    "train",
    "--model=BPR",
    "--dataset=synthetic",
    "--data.synthetic.users=90",
    "--data.synthetic.items=60",
    "--data.synthetic.interactions=2000",
    "--train.epochs=100000",
    "--run.progress=false",
    "--output=run",
)
OWN = """
import json

class Written:
    def begin(self, config, folder):
        self.file = open(folder / "followed.jsonl", "a")
        self.say(begin=config["model"]["name"], epochs=config["train"]["epochs"])

    def epoch(self, line):
        self.say(epoch=line["epoch"], loss=line["loss"], valid=line.get("valid"))

    def end(self, result):
        self.say(end=result and result["test"])
        self.file.close()

    def say(self, **said):
        print(json.dumps(said), file=self.file, flush=True)

class Broken(Written):
    def epoch(self, line):
        raise RuntimeError("the server is down\\nand more")

class Half:
    def begin(self, config, folder): ...
"""


def train(folder: Path, **values: Any) -> dict[str, Any]:
    values = {"epochs": 3, "run.output": str(folder), **SMALL, **values}
    return package.run("BPR", "synthetic", **values)


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows, by tag: steps and values."""
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in tags}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_has_its_methods_and_its_extra(name: str) -> None:
    place, _, class_name = TRACKERS[name].partition(":")
    tracker = getattr(import_module(place), class_name)
    assert all(callable(getattr(tracker, method)) for method in ("begin", "epoch", "end"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras["optional-dependencies"][name][0].startswith(name)


def test_tensorboard_shows_every_epoch_once_also_of_a_resumed_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, epochs=2)
    train(folder, epochs=4, resume=True)
    lines = read_lines(folder / "metrics.jsonl")
    found = curves_of(folder)
    assert found["loss/train"] == [(k, pytest.approx(one["loss"])) for k, one in enumerate(lines)]
    assert [step for step, _ in found["valid/ndcg@10"]] == [1, 3]


def test_a_custom_tracker_follows_a_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    result = train(tmp_path / "run", **{"run.trackers": [f"{tmp_path}/own.py:Written"]})
    said = read_lines(tmp_path / "run" / "followed.jsonl")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert said[0] == {"begin": "BPR", "epochs": 3} and said[-1] == {"end": result["test"]}
    assert said[1:-1] == [
        {"epoch": one["epoch"], "loss": one["loss"], "valid": one.get("valid")} for one in lines
    ]
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_failing_tracker_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    names = [f"{tmp_path}/own.py:Broken", "tensorboard"]
    train(tmp_path / "run", **{"run.trackers": names})
    (told,) = (tmp_path / "run" / "train.log").read_text().splitlines()
    assert told.endswith("own.py:Broken failed: the server is down; the run goes on without it")
    assert len(curves_of(tmp_path / "run")["loss/train"]) == 3


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_its_trackers_without_a_result(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = (*WORDS, "--run.trackers=own.py:Written", "--launch.nproc=2")
    command = shoal(*words, cwd=tmp_path)
    file = tmp_path / "run" / "followed.jsonl"
    command.until("an epoch", lambda: file.is_file() and file.read_text().count("\n") > 2)
    command.process.terminate()
    assert command.wait() == 143
    assert read_lines(file)[-1] == {"end": None}
    assert [one["epochs"] for one in read_lines(file) if "begin" in one] == [100_000]


@pytest.mark.parametrize(
    "given, said",
    [
        ("tensorbord", "did you mean tensorboard?"),
        ("own.py:Missing", "is no class with begin(config, folder), epoch(line) and end(result)"),
        ("own.py:Half", "is no class with begin(config, folder), epoch(line) and end(result)"),
        ("gone.py:Written", "cannot read"),
    ],
)
def test_a_wrong_name_is_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        train(tmp_path / "run", **{"run.trackers": given})
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="wandb is not installed: make extras EXTRAS=wandb"):
        train(tmp_path / "run", log_wandb=True)


def test_without_tensorboard_a_run_logs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    train(tmp_path / "run", **{"run.log_level": "info"})
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("no curves: tensorboard is not installed: make extras EXTRAS=tensorboard") == 1
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_tracker_named_by_a_run_folder_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    train(tmp_path / "run", **{"run.trackers": [f"{tmp_path}/own.py:Written"]})
    own = [f"--run.output={tmp_path}/run"]
    with pytest.raises(ValueError, match=r"run.trackers is .*which would be run.*--trust"):
        resolve_run(tmp_path / "run", own)
    assert resolve_run(tmp_path / "run", own, trust=True).config.run.trackers
    assert open_config(tmp_path / "run").config.run.trackers == []  # to use it takes none
    file = tmp_path / "run" / "config.yaml"
    file.write_text(re.sub("trackers: .*", "trackers: [mlflow]", file.read_text()))
    assert resolve_run(tmp_path / "run", own).config.run.trackers == ["mlflow"]


@pytest.mark.slow
def test_mlflow_keeps_one_run_of_a_resumed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    values = {"run.trackers": ["mlflow"], "run.project": "fish"}
    train(tmp_path / "run", epochs=2, **values)
    result = train(tmp_path / "run", epochs=4, resume=True, **values)
    client = MlflowClient()
    experiment = client.get_experiment_by_name("fish")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params["model.name"] == "BPR" and run.data.params["train.epochs"] == "2"
    losses = client.get_metric_history(run.info.run_id, "loss/train")
    assert [one.step for one in losses] == [0, 1, 2, 3]
    assert run.data.metrics["test/ndcg_at_10"] == pytest.approx(result["test"]["ndcg@10"])


@pytest.mark.slow
def test_wandb_writes_a_run_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(tmp_path / "run", log_wandb=True, wandb_project="fish")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    data = file.read_bytes()
    for text in (b"loss/train", b"valid/ndcg@10", b"test/ndcg@10", b"fish"):
        assert text in data
    assert (tmp_path / "run" / "wandb.id").read_text().strip() in file.name
