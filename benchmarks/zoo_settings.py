"""What both sides are told when models stand beside RecBole's, in its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "zoo"
SPEED = STORED / "speed.json"
QUALITY = STORED / "quality.json"  # both by zoo_recbole.py

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
        "mlp_hidden_size": [600],
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

CLICKS: dict[str, Any] = {
    "load_col": {
        "inter": ["user_id", "item_id", "rating"],
        "user": ["user_id", "age", "gender", "occupation"],
        "item": ["item_id", "release_year", "class"],
    },
    "threshold": {"rating": 4},
    "normalize_all": True,
    "train_neg_sample_args": None,
    "train_batch_size": 2048,
    "eval_batch_size": 4096,
    "eval_args": {
        "group_by": None,
        "order": "RO",
        "split": {"RS": [0.8, 0.1, 0.1]},
        "mode": "labeled",
    },
    "metrics": ["AUC", "LogLoss"],
    "valid_metric": "AUC",
}
KNOWLEDGE: dict[str, Any] = {
    **GENERAL,
    "load_col": {
        "inter": ["user_id", "item_id"],
        "kg": ["head_id", "relation_id", "tail_id"],
        "link": ["item_id", "entity_id"],
    },
    "embedding_size": 64,
}
# What RecBole has and Shoal too. Options of a model are RecBole's defaults; those here agree, but
# for click models: see HERE.
MODELS: dict[str, dict[str, Any]] = {
    **{name: RUNS[name] for name in ("BPR", "LightGCN", "NGCF", "ENMF", "MultiVAE")},
    **{name: GENERAL for name in ("NeuMF", "SGL")},
    "SimpleX": {**GENERAL, "margin": 0.9, "train_neg_sample_args": {"sample_num": 100}},
    "RecVAE": {**GENERAL, **USERS},
    **{name: RUNS[name] for name in ("GRU4Rec", "NARM", "STAMP")},
    "FPMC": {**SEQUENTIAL, "loss_type": "BPR", "train_neg_sample_args": {"sample_num": 1}},
    **{name: SEQUENTIAL for name in ("SASRec", "BERT4Rec", "Caser", "SRGNN", "NextItNet", "CORE")},
    **{name: CLICKS for name in ("LR", "FM", "NFM", "AFM", "PNN", "FwFM", "FFM", "DeepFM")},
    **{name: CLICKS for name in ("WideDeep", "DCN", "DCNV2", "xDeepFM", "AutoInt")},
    **{name: KNOWLEDGE for name in ("CKE", "CFKG", "KGCN", "KGAT", "RippleNet", "KGIN", "MKR")},
}
# These run by RecBole's own file of the model, on both sides.
FEATURED: dict[str, Any] = {
    **SEQUENTIAL,
    "load_col": {**SEQUENTIAL["load_col"], "item": ["item_id", "class"]},
    "selected_features": ["class"],
}
SOLVED = {**GENERAL, "epochs": 1}
BY_FILE: dict[str, dict[str, Any]] = {
    **{name: SOLVED for name in ("ADMMSLIM", "AsymKNN", "NCEPLRec", "SLIMElastic", "Pop")},
    **{name: {**GENERAL, **USERS} for name in ("MultiDAE", "CDAE", "MacridVAE", "RaCT")},
    **{name: {**GENERAL, **USERS} for name in ("DiffRec", "LDiffRec")},
    **{name: GENERAL for name in ("LINE", "SpectralCF", "DGCF", "ConvNCF")},
    "NCL": {**GENERAL, "num_clusters": 100},  # 1000 of the file are more than there are users
    **{name: GENERAL for name in ("DMF", "FISM", "GCMC", "NNCF", "NAIS")},
    **{name: SEQUENTIAL for name in ("LightSANs", "FEARec", "GCSAN", "SINE", "RepeatNet")},
    **{name: SEQUENTIAL for name in ("GRU4RecCPR", "SASRecCPR", "HGN", "SHAN", "NPE", "HRM")},
    "FOSSIL": SEQUENTIAL,
    "TransRec": {**SEQUENTIAL, "train_neg_sample_args": {"sample_num": 1}},
    **{name: FEATURED for name in ("GRU4RecF", "SASRecF", "FDSA")},
    **{name: KNOWLEDGE for name in ("KTUP", "KGNNLS", "MCCLK")},
    **{name: CLICKS for name in ("FNN", "EulerNet", "FiGNN", "KD_DAGFM", "lightgbm", "xgboost")},
}
# What only the side of Shoal is told: vectors of click models as large at the start as there.
BEGIN_SMALL = (
    *("FM", "FwFM", "FFM", "AFM", "NFM", "PNN", "DeepFM", "WideDeep", "DCN", "DCNV2"),
    *("xDeepFM", "AutoInt", "EulerNet"),
)
HERE: dict[str, dict[str, Any]] = {
    **{name: {"initial_range": 0.047} for name in BEGIN_SMALL},
    # RecBole gives half of the latent dimension to means, half to variances, and next to no noise.
    "MultiVAE": {"latent_dimension": 64, "noise": 0.01},
}
HERE["WideDeep"]["wide_slots"] = True
# What RecBole alone is told: models here have no penalty on the weights of layers, and a layer
# of xDeepFM hands on all that it has. Where samples have labels, RecBole counts the negatives that
# it draws as samples of the batch.
THERE: dict[str, dict[str, Any]] = {
    "MultiVAE": {"latent_dimension": 64, "noise": 0.01},
    **{name: {"train_batch_size": 4096} for name in ("NeuMF", "MKR", "RippleNet")},
    **{name: {"train_batch_size": 4096} for name in ("DMF", "FISM", "GCMC", "NNCF", "NAIS")},
    "SimpleX": {"train_batch_size": 204_800},
    **{name: {"reg_weight": 0.0} for name in ("DCN", "DCNV2", "AFM")},
    "xDeepFM": {"reg_weight": 0.0, "direct": True},
}

# Passes over the samples in one of RecBole's epochs, where it is not one: the encoder's and the
# decoder's. Here a step has users of both kinds, and an epoch is one pass.
PASSES = {"RecVAE": 4}
