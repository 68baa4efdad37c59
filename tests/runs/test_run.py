"""Runs from Python: train, evaluate and recommend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as parse_tensors
from small import DATA, NO_DROPOUT

import shoal
from shoal.data.loading.load import load_dataset
from shoal.distributed.gpus import choose_gpus
from shoal.distributed.world import World, WorldError, connect, first_words
from shoal.runs.run import agree, comparable, resolve
from shoal.runs.trained_run import Trained, open_config
from shoal.training.checkpoint.writing import Checkpoints

SHORT = {**DATA, "train.epochs": 2, "train.batch_size": 256}
del SHORT["data.name"]  # given as `dataset`


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = str(tmp_path_factory.mktemp("runs") / "run")
    values = {**SHORT, **NO_DROPOUT["BPR"], "run.output": output}
    return shoal.run(model="BPR", dataset="synthetic", config_dict=values)


@pytest.fixture(scope="module")
def trained(result: dict[str, Any]) -> Trained:
    return Trained(result["folder"])


def test_run_can_be_called_again(result: dict[str, Any], tmp_path: Path) -> None:
    """The function must not be hidden by the module of its name."""
    again = shoal.run(
        "BPR", "synthetic", None, {**SHORT, **NO_DROPOUT["BPR"], "run.root": str(tmp_path / "runs")}
    )
    assert again["test"] == result["test"]
    assert Path(again["folder"]).parent == tmp_path / "runs"
    assert (Path(again["folder"]) / "result.json").is_file()


def test_names_of_the_package_are_functions() -> None:
    """Whatever was imported before: `shoal.runs.run` is a module, `shoal.run` never."""
    code = (
        "import shoal.runs.run, shoal.runs.trained_run, shoal; from shoal.runs import run\n"
        "assert shoal.run is run.run and callable(shoal.run) and shoal.run_rank is run.run_rank\n"
        "assert shoal.evaluate is shoal.runs.trained_run.evaluate\n"
        "assert type(shoal).__name__ == 'module' and not callable(run)\n"
        "from shoal import run; assert run is shoal.run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_trained_run_is_used_without_what_training_needs(
    result: dict[str, Any], trained: Trained
) -> None:
    written = Path(result["folder"]) / "config.yaml"
    resolved = open_config(result["folder"], ["--eval.topk=[10, 20]"])
    assert resolved.origins["strategy.graph"] == resolved.origins["rows.admission.threshold"]
    assert resolved.origins["strategy.graph"] == "use of a trained run"
    assert resolved.origins["eval.topk"].startswith("command line")
    assert resolved.origins["train.epochs"].startswith(str(written))
    assert not trained.config.rows.enabled


def test_a_loss_that_becomes_nan_is_not_saved(tmp_path: Path) -> None:
    """In the place of what was good: of checkpoints only the last ones are kept."""
    values = {**SHORT, **NO_DROPOUT["SASRec"], "checkpoint.every_steps": 1, "train.batch_size": 16}
    values |= {"train.optimizer.lr": 1e20, "run.output": str(tmp_path / "run")}
    with pytest.raises(ValueError, match=r"became NaN in epoch 0.* before it are kept"):
        shoal.run("SASRec", "synthetic", None, values)
    saved = Checkpoints(tmp_path / "run" / "checkpoints", World()).load_newest()
    assert saved is not None
    dense = parse_tensors(saved.files["dense.safetensors"])
    assert all(torch.isfinite(tensor).all() for tensor in dense.values())


def test_what_a_lost_peer_leaves_of_the_message() -> None:
    gloo = (
        "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:30439. This "
        "is typically caused by a remote worker crashing. Check the logs before reporting"
    )
    assert first_words(gloo) == "Connection closed by peer [10.0.0.7]:30439"
    assert first_words("rank 1 is gone\nand more") == "rank 1 is gone"


def test_evaluate(result: dict[str, Any], tmp_path: Path) -> None:
    again = shoal.evaluate(result["folder"], output=tmp_path / "out")
    assert again["test"] == result["test"] and again["best_valid"] == result["best_valid"]
    assert (tmp_path / "out" / "result.json").is_file()
    wider = shoal.evaluate(result["folder"], ["--topk=[20]", "--valid_metric=MRR@20"])
    assert wider["test"]["recall@20"] > again["test"]["recall@10"]


def test_recommend_is_the_best_of_the_unseen(result: dict[str, Any], trained: Trained) -> None:
    config = trained.config
    dataset = load_dataset(config.data, config.run.seed)
    users, items = dataset.vocab["user_id"], dataset.vocab["item_id"]
    row = 7
    seen = {
        str(items[item])
        for split in ("train", "valid", "test")
        for user, item in zip(dataset.user_ids(split), dataset.item_ids(split))
        if user == row
    }
    vectors = {name: next(store.export()) for name, store in trained.parts.strategy.stores.items()}
    tables = {}
    for name, rows in vectors.items():
        tables[name] = torch.empty(len(rows.ids), rows.values.shape[1], dtype=rows.values.dtype)
        tables[name][rows.ids] = rows.values
    scores = tables["item"].double() @ tables["user"][row].double()
    order = [str(items[i]) for i in scores.argsort(descending=True).tolist() if i]
    expected = [name for name in order if name not in seen]

    given = shoal.recommend(result["folder"], str(users[row]), topk=10)
    assert [item for item, _ in given] == expected[:10]
    # More than there are: as many as there are.
    everything = trained.recommend(str(users[row]), topk=10_000)
    assert [item for item, _ in everything] == expected
    assert 0 < len(everything) == dataset.num_items - 1 - len(seen)


def test_recommend_takes_a_number_for_an_id(trained: Trained) -> None:
    assert trained.recommend(5, 3) == trained.recommend("5", 3)  # type: ignore[arg-type]


def test_unknown_user_and_bad_topk(trained: Trained) -> None:
    dataset = trained.parts.dataset
    counts = np.bincount(dataset.item_ids("train"))  # type: ignore[union-attr]
    for nobody in ("nobody", "[PAD]"):
        found = trained.recommend(nobody, 3)
        assert found.by == "popularity" and found.unknown == (nobody,)
        assert [score for _, score in found] == sorted(counts.tolist(), reverse=True)[:3]
    for wrong in ({"user": "5", "topk": 0}, {"user": "nobody", "topk": 0}):
        with pytest.raises(ValueError, match="topk is 0; it must be 1 or more"):
            trained.recommend(**wrong)
    for wrong in ({}, {"user": "5", "history": ["1"]}):
        with pytest.raises(ValueError, match="give a user or a history, one of them"):
            trained.recommend(**wrong)


def test_not_a_run(tmp_path: Path) -> None:
    for use in (shoal.evaluate, lambda folder: shoal.recommend(folder, "1")):
        with pytest.raises(ValueError, match=r"is not a run's folder: it has no config.yaml"):
            use(tmp_path)


def test_run_rank_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="takes config_dict and queue, not colour"):
        shoal.run_rank(0, "BPR", "synthetic", [], {"colour": "red"})
    with pytest.raises(ValueError, match="ip and port"):
        shoal.run_rank(0, "BPR", "synthetic", [], {"config_dict": {"nproc": 2}})
    with pytest.raises(ValueError, match="give spawn nprocs=nproc"):
        values = {"nproc": 2, "port": "5678", "ip": "localhost"}
        shoal.run_rank(2, "BPR", "synthetic", [], {"config_dict": values})
    assert "RANK" not in os.environ


class Rank1(World):
    """A rank that was told something by rank 0."""

    rank, size = 1, 2

    def __init__(self, told: bytes):
        super().__init__()
        self.told = told

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is None
        return self.told


def test_ranks_must_agree() -> None:
    first = comparable(resolve(values={"learning_rate": 0.01}).config)
    rank = Rank1(json.dumps(first).encode())
    agree(rank, "config", first)
    same = resolve(values={"learning_rate": 0.01, "data.path": "/elsewhere", "nproc": 2}).config
    agree(rank, "config", comparable(same))
    with pytest.raises(
        ValueError,
        match=r"config of rank 1 on host .* train.optimizer.lr is 0.02 here and 0.01 there",
    ):
        agree(rank, "config", comparable(resolve(values={"learning_rate": 0.02}).config))
    with pytest.raises(ValueError, match=r"run.seed is 1 here and 2020 there"):
        agree(rank, "config", comparable(resolve(values={"learning_rate": 0.01, "seed": 1}).config))


def test_gpu_ids_do_nothing_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    choose_gpus("0,1,2,3")
    choose_gpus("")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert connect("auto", gpu_ids="0,1,2,3").device.type == "cpu"
    with pytest.raises(WorldError, match="no usable GPU; use auto or cpu"):
        connect("cuda")
