"""Fixtures of the tests with real processes: configs, shared runs, and a check of what is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import finish, processes

DATA = {
    "data.name": "planted",
    "data.planted.users": 131,
    "data.planted.items": 97,
    "data.planted.interactions": 4000,
    "data.max_len": 12,
    "run.threads": 1,
    "run.progress": False,
    "run.tensorboard": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "BPR": {"model": "BPR", "model.embedding_size": 16},
    "NeuMF": {  # with dropout
        "model": "NeuMF",
        "model.mf_embedding_size": 8,
        "model.mlp_embedding_size": 8,
        "model.mlp_hidden_size": [16, 8],
        "model.dropout_prob": 0.3,
    },
    "SASRec": {  # with dropout
        "model": "SASRec",
        "model.hidden_size": 16,
        "model.inner_size": 32,
        "model.hidden_dropout_prob": 0.3,
        "model.attn_dropout_prob": 0.3,
    },
}
SHORT = {"train.epochs": 4, "train.batch_size": 256}
# Long enough to be met in its midst: some 50 steps an epoch, a checkpoint every few of them.
LONG = {
    "train.epochs": 8,
    "train.batch_size": 64,
    "train.patience": 100,
    "checkpoint.every_steps": 11,
}


def write_config(path: Path, *parts: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {}
    for part in (DATA, *parts):
        values |= part
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def short(place: Path) -> Path:
    """A config of a short BPR run."""
    return write_config(place / "short.yaml", MODELS["BPR"], SHORT)


@pytest.fixture(scope="session")
def alone(place: Path, short: Path) -> Path:
    """The folder of that run on one process: what all others must equal."""
    finish("train", short, "--output", place / "alone", cwd=place)
    return place / "alone"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every process that a test started is gone when it ends."""
    yield
    deadline = time.monotonic() + 60
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, _, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"
