"""What both sides are told when models stand beside RecBole's, in its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "zoo"

GENERAL: dict[str, Any] = {
    "load_col": {"inter": ["user_id", "item_id"]},
    "train_batch_size": 2048,
    "eval_batch_size": 4096,
    "eval_args": {
        "group_by": "user",
        "order": "RO",
        "split": {"RS": [0.8, 0.1, 0.1]},
        "mode": "full",
    },
    "metrics": ["Recall", "MRR", "NDCG", "Hit", "Precision"],
    "topk": [10],
    "valid_metric": "MRR@10",
    "stopping_step": 10,
    "learning_rate": 0.001,
}
SEQUENTIAL: dict[str, Any] = {
    **GENERAL,
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
    "eval_args": {
        "group_by": "user",
        "order": "TO",
        "split": {"LS": "valid_and_test"},
        "mode": "full",
    },
    "repeatable": True,
    "MAX_ITEM_LIST_LENGTH": 50,
    "train_neg_sample_args": None,
    "loss_type": "CE",
}
USERS = {"train_neg_sample_args": None, "train_batch_size": 64}  # a sample is a user
# model -> settings of both sides, in RecBole's words. Those of a model are RecBole's defaults.
RUNS: dict[str, dict[str, Any]] = {
    "EASE": {**GENERAL, "epochs": 1, "reg_weight": 250.0},
    "ItemKNN": {**GENERAL, "epochs": 1, "k": 100, "shrink": 0.0},
    "BPR": {**GENERAL, "epochs": 200, "embedding_size": 64},
    "LightGCN": {**GENERAL, "epochs": 200, "embedding_size": 64, "n_layers": 2},
    "NGCF": {
        **GENERAL,
        "epochs": 100,
        "embedding_size": 64,
        "hidden_size_list": [64, 64, 64],
        "message_dropout": 0.1,
        "reg_weight": 1e-5,
    },
    "ENMF": {
        **GENERAL,
        **USERS,
        "epochs": 100,
        "embedding_size": 64,
        "dropout_prob": 0.7,
        "negative_weight": 0.5,
    },
    "MultiVAE": {
        **GENERAL,
        **USERS,
        "epochs": 100,
        "mlp_hidden_dimension": [600],
        "latent_dimension": 128,
        "dropout_prob": 0.5,
        "anneal_cap": 0.2,
        "total_anneal_steps": 200_000,
    },
    "GRU4Rec": {
        **SEQUENTIAL,
        "epochs": 50,
        "embedding_size": 64,
        "hidden_size": 128,
        "num_layers": 1,
        "dropout_prob": 0.3,
    },
    "NARM": {**SEQUENTIAL, "epochs": 20, "embedding_size": 64, "hidden_size": 128, "n_layers": 1},
    "STAMP": {**SEQUENTIAL, "epochs": 20, "embedding_size": 64},
}
