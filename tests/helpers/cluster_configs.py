"""Configs of the runs that tests start as real processes."""

from pathlib import Path
from typing import Any

import yaml

DATA = {
    "data.name": "synthetic",
    "data.synthetic.users": 131,
    "data.synthetic.items": 97,
    "data.synthetic.interactions": 4000,
    "data.max_len": 12,
    "data.split.by": "ratio",
    "data.split.order": "random",
    "eval.repeatable": False,
    "run.threads": 1,
    "run.progress": False,
    "run.trackers": [],
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
