"""LightGBM: A Highly Efficient Gradient Boosting Decision Tree, Ke et al., NeurIPS 2017.

    logit = sum over trees of the value of a leaf

Each tree is fitted to the gradients of the loss that the trees before it leave; the leaf that gains
most is split next. The package lightgbm trains it (the extra trees).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from shoal.models.clicks.tree_parameters import LightGBMParameters
from shoal.models.clicks.trees import Trees
from shoal.trees.checks import MOST_LEAVES
from shoal.trees.columns import TreeColumns
from shoal.trees.lightgbm_text import checked_text, trees_alone
from shoal.trees.matrix import Matrix


class LightGBM(Trees):
    """Trees that grow leaf by leaf."""

    package = "lightgbm"
    metric_key = "metric"
    objectives: ClassVar[Mapping[str, str]] = {"logistic": "binary", "squared": "regression"}
    recbole_options: ClassVar[Mapping[str, str]] = {
        "lgb_params": "params",
        "lgb_num_boost_round": "rounds",
    }

    class Options(Trees.Options):
        num_leaves: Annotated[int, Field(ge=2, le=MOST_LEAVES)] = 31  # leaves of a tree, at most
        # parameters of LightGBM by its own names, which hold before the options above; those left
        # out have its defaults
        params: LightGBMParameters = field(default_factory=LightGBMParameters)

    def train_booster(
        self, train: Matrix, valid: Matrix | None, seed: int, after_round: Callable[[int], None]
    ) -> bytes:
        library, options = self.library, self.options
        parameters: dict[str, Any] = {
            "objective": self.objective,
            "seed": seed,
            "deterministic": True,
            "num_threads": torch.get_num_threads(),
            "verbosity": -1,
            "num_leaves": options.num_leaves,
            "learning_rate": options.learning_rate,
        }
        if not {"force_row_wise", "force_col_wise"} & options.params.keys():
            parameters["force_row_wise"] = True  # else the quicker one is tried, and differs
        if options.ids == "one_hot":
            parameters["max_cat_to_onehot"] = options.max_categories + 1
        parameters |= options.params
        if valid is None:
            parameters["metric"] = "none"
        elif parameters.get("boosting") == "dart":
            raise ValueError(
                "model.stopping_rounds: boosting dart changes earlier trees, so there is no best "
                "round to return to; leave one of them out"
            )
        categories = np.flatnonzero(train.columns.are_categories).tolist()
        dataset = library.Dataset(
            train.values,
            train.labels,
            weight=train.weights,
            categorical_feature=categories,
            params=parameters,
        )
        callbacks = [lambda state: after_round(state.iteration + 1)]
        validation = []
        if valid is not None:
            rounds = options.stopping_rounds
            callbacks.append(library.early_stopping(rounds, first_metric_only=True, verbose=False))
            held_out = dataset.create_valid(valid.values, valid.labels, weight=valid.weights)
            validation.append(held_out)
        try:
            booster = library.train(
                parameters, dataset, options.rounds, validation, callbacks=callbacks
            )
        except library.basic.LightGBMError as error:
            raise ValueError(f"LightGBM: {error}") from error
        return trees_alone(booster.model_to_string())

    def open_booster(self, text: bytes, columns: TreeColumns) -> Any:
        checked = checked_text(text, columns, self.objective)
        return self.library.Booster(model_str=checked)

    def raw_scores(self, booster: Any, values: np.ndarray) -> np.ndarray:
        threads = torch.get_num_threads()
        return booster.predict(values, raw_score=True, num_threads=threads)

    @property
    def num_trees(self) -> int:
        return self.ready[1].num_trees()
