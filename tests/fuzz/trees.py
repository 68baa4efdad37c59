"""Texts of boosted trees, as a checkpoint holds them: what is not refused is predicted with."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.target import Target

LIGHTGBM = """tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=binary sigmoid:1
feature_names=Column_0 Column_1
feature_infos=none none
tree_sizes=588

Tree=0
num_leaves=4
num_cat=2
split_feature=0 1 0
split_gain=30.8938 317.29 207.446
threshold=0 0.0074144776444882163 1
decision_type=1 2 1
left_child=-1 -2 -3
right_child=1 2 -4
leaf_value=-0.031371778164113739 -0.18787650974619377 -0.1949495863942117 0.0959544615254736
leaf_count=989 530 100 381
cat_boundaries=0 2 4
cat_threshold=1952488345 212018 81924 8
is_linear=0
shrinkage=1


end of trees
"""
TREE: dict[str, Any] = {
    "base_weights": [-5.7150964e-09, 0.27868277, -0.22957806, 0.1, -0.2],
    "categories": [1, 2, 5, 6, 47],
    "categories_nodes": [0],
    "categories_segments": [0],
    "categories_sizes": [5],
    "default_left": [1, 0, 0, 0, 0],
    "id": 0,
    "left_children": [1, 3, -1, -1, -1],
    "loss_changes": [32.092606, 95.621475, 0.0, 0.0, 0.0],
    "parents": [2147483647, 0, 0, 1, 1],
    "right_children": [2, 4, -1, -1, -1],
    "split_conditions": [1e-45, 0.05, -0.3, 0.27, -0.11],
    "split_indices": [0, 1, 0, 0, 0],
    "split_type": [1, 0, 0, 0, 0],
    "sum_hessian": [499.608, 225.573, 274.035, 117.408, 108.165],
    "tree_param": {
        "num_deleted": "0",
        "num_feature": "2",
        "num_nodes": "5",
        "size_leaf_vector": "1",
    },
}
XGBOOST = {
    "learner": {
        "gradient_booster": {
            "model": {"tree_info": [0], "trees": [TREE]},
            "name": "gbtree",
        },
        "learner_model_param": {"base_score": "[4.86E-1]"},
        "objective": {"name": "binary:logistic"},
    },
    "version": [2, 1, 0],
}
SAMPLES = np.array([[0, 0.5], [47, -1], [9999, 1e30], [np.nan, np.nan]], np.float32)


def trees() -> dict[str, Target]:
    """A target for each library."""
    return {
        "lightgbm": Target([LIGHTGBM.encode()], "booster.txt", _read_lightgbm),
        "xgboost": Target([json.dumps(XGBOOST).encode()], "booster.json", _read_xgboost),
    }


def _columns() -> Any:
    from shoal.trees.columns import TreeColumns

    return TreeColumns(("category",), (np.arange(1, 50),), num_dense=1)


def _read_lightgbm(path: Path) -> None:
    from shoal.trees.lightgbm_text import checked_text

    text = checked_text(path.read_bytes(), _columns(), "binary")
    try:
        import lightgbm
    except (ImportError, OSError):
        return
    assert len(lightgbm.Booster(model_str=text).predict(SAMPLES, raw_score=True)) == len(SAMPLES)


def _read_xgboost(path: Path) -> None:
    from shoal.trees.xgboost_text import checked_text

    text = checked_text(path.read_bytes(), _columns(), "binary:logistic")
    try:
        import xgboost
    except (ImportError, OSError):
        return
    booster = xgboost.Booster()
    booster.load_model(bytearray(text))
    assert len(booster.inplace_predict(SAMPLES, predict_type="margin")) == len(SAMPLES)
