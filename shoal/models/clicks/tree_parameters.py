"""Parameters of the libraries of trees, by their own names: what `model.params` may have."""

from __future__ import annotations

from typing import Literal

from pydantic import with_config
from typing_extensions import TypedDict

from shoal.models.options import STRICT

LightGBMMetric = Literal[
    "auc",
    "average_precision",
    "binary_logloss",
    "binary_error",
    "cross_entropy",
    "rmse",
    "l1",
    "l2",
]
XGBoostMetric = Literal["auc", "aucpr", "logloss", "error", "rmse", "mae"]


@with_config(STRICT)
class LightGBMParameters(TypedDict, total=False):
    """LightGBM's parameters of learning, by its own names."""

    boosting: Literal["gbdt", "dart"]
    objective: Literal["binary", "regression"]
    metric: LightGBMMetric | list[LightGBMMetric]
    num_leaves: int
    max_depth: int
    learning_rate: float
    min_data_in_leaf: int
    min_sum_hessian_in_leaf: float
    min_gain_to_split: float
    lambda_l1: float
    lambda_l2: float
    path_smooth: float
    max_delta_step: float
    extra_trees: bool
    feature_fraction: float
    feature_fraction_bynode: float
    bagging_fraction: float
    bagging_freq: int
    data_sample_strategy: Literal["bagging", "goss"]
    top_rate: float
    other_rate: float
    drop_rate: float
    max_drop: int
    skip_drop: float
    max_bin: int
    min_data_in_bin: int
    bin_construct_sample_cnt: int
    cat_l2: float
    cat_smooth: float
    max_cat_threshold: int
    max_cat_to_onehot: int
    min_data_per_group: int
    is_unbalance: bool
    scale_pos_weight: float
    force_row_wise: bool
    force_col_wise: bool
    seed: int


XGBoostParameters = TypedDict(
    "XGBoostParameters",
    {
        "booster": Literal["gbtree"],
        "objective": Literal["binary:logistic", "reg:squarederror"],
        "eval_metric": XGBoostMetric | list[XGBoostMetric],
        "eta": float,
        "learning_rate": float,
        "max_depth": int,
        "max_leaves": int,
        "grow_policy": Literal["depthwise", "lossguide"],
        "gamma": float,
        "min_child_weight": float,
        "max_delta_step": float,
        "lambda": float,
        "alpha": float,
        "subsample": float,
        "sampling_method": Literal["uniform"],
        "colsample_bytree": float,
        "colsample_bylevel": float,
        "colsample_bynode": float,
        "tree_method": Literal["hist"],
        "max_bin": int,
        "max_cat_to_onehot": int,
        "max_cat_threshold": int,
        "scale_pos_weight": float,
        "seed": int,
    },
    total=False,
)
with_config(STRICT)(XGBoostParameters)
