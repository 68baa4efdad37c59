"""XGBoost: A Scalable Tree Boosting System, Chen and Guestrin, KDD 2016.

    logit = b + sum over trees of the value of a leaf

Each tree is fitted to the first and second derivatives of the loss that the trees before it leave,
level by level. The package xgboost trains it (the extra trees).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import torch

from shoal.models.clicks.tree_parameters import XGBoostParameters
from shoal.models.clicks.trees import Trees
from shoal.trees.columns import TreeColumns
from shoal.trees.matrix import Matrix
from shoal.trees.xgboost_text import checked_text, types_of


class XGBoost(Trees):
    """Trees that grow level by level, with a penalty on their leaves."""

    package = "xgboost"
    metric_key = "eval_metric"
    objectives: ClassVar[Mapping[str, str]] = {
        "logistic": "binary:logistic",
        "squared": "reg:squarederror",
    }
    recbole_options: ClassVar[Mapping[str, str]] = {
        "xgb_params": "params",
        "xgb_num_boost_round": "rounds",
        "xgb_early_stopping_rounds": "stopping_rounds",
    }
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "xgb_silent": "the library prints nothing",
        "xgb_verbose_eval": "a long training logs its progress every ten seconds",
    }
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "xgb_nthread": (None, "run.threads says how many threads there are"),
        "xgb_model": (None, "a booster is trained anew, from all samples"),
    }

    class Options(Trees.Options):
        max_depth: int = 4  # splits from the root of a tree to a leaf, at most
        # parameters of XGBoost by its own names, which hold before the options above; those left
        # out have its defaults
        params: XGBoostParameters = field(default_factory=XGBoostParameters)

    def train_booster(
        self, train: Matrix, valid: Matrix | None, seed: int, after_round: Callable[[int], None]
    ) -> bytes:
        library, options = self.library, self.options
        parameters: dict[str, Any] = {
            "objective": self.objective,
            "seed": seed,
            "nthread": torch.get_num_threads(),
            "tree_method": "hist",
            "verbosity": 0,
            "max_depth": options.max_depth,
        }
        if "eta" not in options.params:  # its other name
            parameters["learning_rate"] = options.learning_rate
        if options.ids == "one_hot":
            parameters["max_cat_to_onehot"] = options.max_categories + 1
        parameters |= options.params
        if valid is None:
            parameters.pop("eval_metric", None)
            parameters["disable_default_eval_metric"] = True
        bins = {"max_bin": parameters["max_bin"]} if "max_bin" in parameters else {}
        dataset = self._dataset(train, **bins)
        validation = []
        if valid is not None:
            validation.append((self._dataset(valid, ref=dataset, **bins), "valid"))

        class AfterRound(library.callback.TrainingCallback):  # type: ignore[name-defined]
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                after_round(epoch + 1)
                return False

        booster = library.train(
            parameters,
            dataset,
            options.rounds,
            evals=validation,
            early_stopping_rounds=options.stopping_rounds,
            verbose_eval=False,
            callbacks=[AfterRound()],
        )
        if valid is not None:
            booster = booster[: booster.best_iteration + 1]
        return bytes(booster.save_raw("json"))

    def _dataset(self, matrix: Matrix, **options: Any) -> Any:
        """Samples as XGBoost reads them."""
        return self.library.QuantileDMatrix(
            matrix.values,
            matrix.labels,
            weight=matrix.weights,
            feature_types=types_of(matrix.columns),
            enable_categorical=True,
            nthread=torch.get_num_threads(),
            **options,
        )

    def open_booster(self, text: bytes, columns: TreeColumns) -> Any:
        booster = self.library.Booster({"verbosity": 0})
        booster.load_model(bytearray(checked_text(text, columns, self.objective)))
        return booster

    def raw_scores(self, booster: Any, values: np.ndarray) -> np.ndarray:
        booster.set_param("nthread", torch.get_num_threads())
        return booster.inplace_predict(values, predict_type="margin", validate_features=False)

    @property
    def num_trees(self) -> int:
        return self.ready[1].num_boosted_rounds()
