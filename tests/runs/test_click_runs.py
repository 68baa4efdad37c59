"""Runs on click logs: synthetic truth, defaults of a config, metrics, training, resuming."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from click_model import TinyClicks, click_config, tiny_clicks

import shoal
from shoal.clicks import InMemory, Layout, Samples
from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import EvalSection, SyntheticClicksSection
from shoal.distributed.world import World
from shoal.models.base import Facts
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained
from shoal.training.evaluation import ClickEvaluator
from shoal.training.metrics import MetricSet, Valued

__all__ = ["tiny_clicks"]  # used by being there
SHORT = {
    "data.name": "synthetic",
    "data.clicks.synthetic.samples": 3000,
    "data.clicks.synthetic.slots": 5,
    "data.clicks.synthetic.ids_per_slot": 40,
    "train.batch_size": 100,
    "train.epochs": 3,
    "train.optimizer.lr": 0.02,
    "run.progress": False,
    "run.trackers": [],
}


# ---- synthetic clicks ---------------------------------------------------------------------------


def test_synthetic_clicks_are_what_they_say() -> None:
    section = SyntheticClicksSection(samples=20_000, slots=6, ids_per_slot=50, dense=3)
    train, valid, test = (synthetic_clicks(section, p) for p in ("train", "valid", "test"))  # type: ignore[arg-type]
    assert [len(part.samples) for part in (train, valid, test)] == [20_000, 2000, 2000]
    ids = train.samples.ids
    assert (ids > 50 * np.arange(6)).all() and (ids <= 50 * (np.arange(6) + 1)).all()
    counts = np.bincount(ids[:, 0], minlength=51)[1:51]
    assert counts[0] == counts.max() and counts[0] / counts[9] == pytest.approx(10**1.05, rel=0.2)
    # Clicks come as often as their probabilities say, in every part of the range.
    order = np.argsort(train.probabilities)
    for part in np.array_split(order, 10):
        rate, expected = train.samples.labels[part].mean(), train.probabilities[part].mean()
        assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / len(part))
    assert train.best_auc() == pytest.approx(
        sklearn.metrics.roc_auc_score(train.samples.labels, train.probabilities), abs=1e-12
    )
    assert 0.7 < test.best_auc() < 0.9
    again = synthetic_clicks(section, "test")
    assert (again.samples.ids == test.samples.ids).all()
    assert (again.samples.labels == test.samples.labels).all()
    other = synthetic_clicks(section.model_copy(update={"seed": 8}), "test")
    assert (other.samples.ids != test.samples.ids).any()


def test_synthetic_weights_depend_on_seed_slot_and_id_alone() -> None:
    """A longer log begins with the shorter one."""
    short = synthetic_clicks(SyntheticClicksSection(samples=500), "train")
    long = synthetic_clicks(SyntheticClicksSection(samples=1000), "train")
    assert (long.samples.ids[:500] == short.samples.ids).all()
    assert (long.probabilities[:500] == short.probabilities).all()


def test_without_strength_nothing_can_be_learnt() -> None:
    none = synthetic_clicks(SyntheticClicksSection(strength=0), "test")
    assert len(set(none.probabilities.tolist())) == 1 and none.best_auc() == 0.5


# ---- metrics ----------------------------------------------------------------------------------


class Given(TinyClicks):
    """Predicts the first dense value."""

    def logits(self, batch):
        return batch.dense["dense"][:, 0]


@pytest.mark.parametrize("distinct", [7, 10**6])
def test_metrics_against_scikit_learn(distinct: int) -> None:
    generator = np.random.default_rng(5)
    n = 5000
    logits = (generator.integers(0, distinct, n) / distinct * 6 - 4).astype(np.float32)
    labels = (generator.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    groups = generator.integers(1, 60, n)
    layout = Layout(("user", "item"), ("d",), "click", 100)
    ids = np.stack([groups, np.ones(n, np.int64)], axis=1)
    reader = InMemory(Samples(2, labels, logits[:, None], ids), layout, 1024, tile=1024)
    section = EvalSection(metrics=["AUC", "LogLoss", "Calibration", "GAUC"], mode="labeled")
    model = Given(None, Facts(num_slots=2, num_dense=1, rows=100))
    evaluator = ClickEvaluator({"valid": reader}, section, World(), group=0)
    found, share = evaluator.evaluate(model, "valid"), labels.mean(dtype=np.float64)
    base = {"clicks": share, "auc": 0.5}
    base["logloss"] = sklearn.metrics.log_loss(labels, np.full(n, share))
    assert evaluator.base == pytest.approx(base, abs=1e-9)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert found["auc"] == pytest.approx(
        sklearn.metrics.roc_auc_score(labels, probabilities), abs=1e-9
    )
    assert found["logloss"] == pytest.approx(
        sklearn.metrics.log_loss(labels, probabilities), abs=1e-9
    )
    assert found["calibration"] == pytest.approx(
        probabilities.sum() / labels.sum(dtype=np.float64), abs=1e-9
    )
    total = weight = 0.0
    for group in np.unique(groups):
        mine = groups == group
        positives = float(labels[mine].sum())
        if 0 < positives < mine.sum():
            total += positives * sklearn.metrics.roc_auc_score(labels[mine], probabilities[mine])
            weight += positives
    assert found["gauc"] == pytest.approx(total / weight, abs=1e-9)


def test_calibration_by_hand() -> None:
    metrics = MetricSet(["Calibration"], [1], 1, torch.zeros(1))
    for scores, labels in [([0.5, 0.25], [1.0, 0.0]), ([0.75], [1.0])]:
        users = torch.zeros(len(scores), dtype=torch.int64)
        metrics.update(Valued(users, torch.tensor(scores), torch.tensor(labels)))
    assert metrics.compute() == {"calibration": 1.5 / 2}


# ---- configs ----------------------------------------------------------------------------------


def test_defaults_of_click_models() -> None:
    resolved = resolve(values={"model": "TinyClicks"})
    config = resolved.config
    assert config.eval.metrics == ["AUC", "LogLoss"] and config.eval.valid_metric == "AUC"
    assert config.eval.mode == "labeled" and config.train.negatives is None
    assert resolved.origins["eval.metrics"] == "default of click models"
    assert resolve(values={"model": "BPR"}).config.eval.valid_metric == "MRR@10"
    assert resolve(
        values={"model": "TinyClicks", "eval.metrics": ["logloss"], "valid_metric": "LogLoss"}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"eval.metrics": ["AUC", "NDCG"]},
            "NDCG rank items for a user, and TinyClicks predicts clicks of single samples; choose "
            "among GAUC, UAUC, AUC, LogLoss, Calibration, MAE, RMSE",
        ),
        ({"eval.mode": "full"}, "click logs have labels"),
        ({"train.negatives.num": 2}, "TinyClicks learns from labels"),
        (
            {"eval.metrics": ["Calibration"], "eval.valid_metric": "Calibration"},
            "Calibration is best at 1",
        ),
        ({"train.print_every": -1}, "train.print_every"),
    ],
)
def test_what_click_models_refuse(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(values={"model": "TinyClicks", **given})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eval__metrics": ["AUC", "GAUC"]}, "that it groups by: data.clicks.group"),
        ({"data__format": "atomic"}, "synthetic.inter does not exist"),
        ({"data__name": "ml-100k"}, "no data set 'ml-100k' in dataset"),
        ({"data__format": "slots"}, "data.clicks.train must name the files"),
        ({"data__clicks__split_files": True}, "data.clicks.split_files is for raw files"),
        ({"data__clicks__group": "9"}, "there is no slot 9; slots are 1, 2"),
        (
            {"data__clicks__train": "nowhere", "data__format": "slots"},
            "neither a file nor a folder",
        ),
        (
            {"data__clicks__train": __file__, "data__clicks__reader": "custom"},
            "needs data.clicks.custom",
        ),
    ],
)
def test_data_that_cannot_be_built(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(click_config(**given), World())
    assert said in str(caught.value)


def write(folder: Path, samples: int = 400) -> Path:
    """Lines of slots of synthetic clicks."""
    made = synthetic_clicks(
        SyntheticClicksSection(samples=samples, slots=3, ids_per_slot=20), "train"
    )
    lines = [
        " ".join(
            [f"click:{label:.0f}", *[f"dense_feature:{x:.4f}" for x in dense]]
            + [f"{k + 1}:{i}" for k, i in enumerate(ids)]
        )
        for label, dense, ids in zip(made.samples.labels, made.samples.dense, made.samples.ids)
    ]
    (folder / "log.txt").write_text("\n".join(lines) + "\n")
    return folder / "log.txt"


def test_clicks_and_interactions_do_not_mix(tmp_path: Path) -> None:
    config = resolve(values={"model": "BPR", "data.clicks.train": str(write(tmp_path))}).config
    with pytest.raises(ValueError, match=r"data\.clicks\.train names a click log, and this model"):
        build(config, World())
    config = resolve(values={"model": "BPR", "data.format": "synthetic_clicks"}).config
    with pytest.raises(ValueError, match=r"names a click log.*choose a click model"):
        build(config, World())


def test_nothing_to_evaluate_on_and_nothing_to_train_on(tmp_path: Path) -> None:
    given = {"data__clicks__train": str(write(tmp_path)), "data__clicks__slots": 3}
    given["data__clicks__dense"] = 4
    with pytest.raises(ValueError, match="nothing to evaluate on: name files"):
        build(click_config(**given), World())
    assert build(click_config(**given, train__eval_every=0), World()).reader.num_batches == 4
    (tmp_path / "empty").write_text("\n\n")
    given |= {"data__clicks__train": str(tmp_path / "empty"), "train__eval_every": 0}
    for reader in ("memory", "stream"):
        with pytest.raises(ValueError, match="has no samples"):
            build(click_config(**given, data__format="slots", data__clicks__reader=reader), World())


# ---- runs -------------------------------------------------------------------------------------

SPLITS = ("train", "dev", "test")


def of_files(folder: Path, **clicks: Any) -> dict[str, Any]:
    """A short run on a click log in files."""
    given = {"slots": 3, "dense": 4, **clicks}
    keys = {f"data.clicks.{key}": value for key, value in given.items() if value is not None}
    short = {key: value for key, value in SHORT.items() if not key.startswith("data.")}
    return {**short, "data.path": str(folder), **keys}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = str(tmp_path_factory.mktemp("runs") / "run")
    values = {**SHORT, "train.print_every": 20, "run.output": output}
    return shoal.run(model="TinyClicks", config_dict=values)


def test_a_run_learns(result: dict[str, Any]) -> None:
    section = SyntheticClicksSection(samples=3000, slots=5, ids_per_slot=40)
    best = synthetic_clicks(section, "test").best_auc()
    assert 0.65 < result["test"]["auc"] <= best + 0.02
    assert set(result["test"]) == {"auc", "logloss"} and result["best_valid"]["logloss"] < 0.65
    said = (Path(result["folder"]) / "train.log").read_text()
    assert "The train log: 3000 samples, click rate 0." in said
    lines = [line for line in said.splitlines() if "samples/s" in line]
    begins = [line[line.index("epoch") :].split(":")[0] for line in lines[:3]]
    assert begins == ["epoch 0 step 20 [loss", "epoch 1 step 40 [loss", "epoch 1 step 60 [loss"]
    assert float(lines[-1].rpartition("auc: ")[2].rstrip("]")) > 0.65


def test_a_run_is_evaluated_again(result: dict[str, Any]) -> None:
    again = shoal.evaluate(result["folder"])
    assert again["test"] == result["test"] and again["best_valid"] == result["best_valid"]
    more = shoal.evaluate(result["folder"], ["--eval.metrics=[AUC,GAUC]", "--data.clicks.group=2"])
    assert more["test"]["auc"] == result["test"]["auc"] and 0.5 < more["test"]["gauc"] < 1


def test_click_models_recommend_nothing(result: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="TinyClicks predicts clicks of samples, not items"):
        Trained(result["folder"]).recommend("1")


class Stop(Exception):
    pass


@pytest.mark.parametrize("reader", ["memory", "stream", "piped"])
def test_a_stopped_run_goes_on(
    tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 1 to 6, a stop, and the rest equal one run of eight: nothing lost, nothing twice."""
    piped = {"data.clicks.reader": "stream", "data.clicks.pipe_command": "cat"}
    values = {
        **of_files(tmp_path, train=write(tmp_path).name, test="log.txt"),
        **(piped if reader == "piped" else {"data.clicks.reader": reader}),
        **{"train.epochs": 2, "checkpoint.every_steps": 1},
    }
    whole = shoal.run("TinyClicks", config_dict={**values, "run.output": str(tmp_path / "whole")})

    from shoal.training.trainer import Trainer

    save = Trainer._save

    def stop(trainer: Trainer) -> None:
        save(trainer)
        if trainer.cursor.step == 6:
            trainer.checkpoints.wait()
            raise Stop

    monkeypatch.setattr(Trainer, "_save", stop)
    stopped = {**values, "run.output": str(tmp_path / "stopped")}
    with pytest.raises(Stop):
        shoal.run("TinyClicks", config_dict=stopped)
    monkeypatch.setattr(Trainer, "_save", save)
    resumed = shoal.run("TinyClicks", config_dict=stopped, resume=True)
    assert resumed["test"] == whole["test"] and resumed["best_epoch"] == whole["best_epoch"]
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").open()]
        for name in ("whole", "stopped")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    with open(tmp_path / "log.txt", "a") as file:
        file.write("click:0 dense_feature:1 dense_feature:1 dense_feature:1 dense_feature:1\n")
    with pytest.raises(ValueError, match=r"another run: data.clicks.train: log.txt has changed"):
        shoal.run("TinyClicks", config_dict=stopped, resume=True)


def test_schedules_need_a_known_number_of_steps(tmp_path: Path) -> None:
    values = of_files(tmp_path, train=write(tmp_path).name, valid="log.txt", reader="stream")
    values |= {"data.clicks.pipe_command": "cat", "train.optimizer.schedule": "cosine"}
    values["run.output"] = str(tmp_path / "run")
    with pytest.raises(ValueError, match="schedule cosine depends on the number of steps"):
        shoal.run("TinyClicks", config_dict=values)


def test_the_real_criteo_sample_is_learnt_from(tmp_path: Path) -> None:
    folder = os.environ.get("SHOAL_TEST_DATA")
    if folder is None or not (Path(folder) / "criteo").is_dir():
        pytest.skip("SHOAL_TEST_DATA names no folder with criteo/ in it")
    names = {key: f"criteo_{name}.csv" for key, name in zip(("train", "valid", "test"), SPLITS)}
    values = of_files(Path(folder) / "criteo", **names, rows=100_000, slots=None, dense=None)
    values |= {"train.optimizer.lr": 0.003, "run.output": str(tmp_path / "run")}
    result = shoal.run("TinyClicks", config_dict=values)
    assert result["best_valid"]["auc"] > 0.68 and result["test"]["auc"] > 0.68
