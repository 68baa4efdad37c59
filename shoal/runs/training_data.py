"""The first stage of a run: its data set, features and codes, and what a model may know of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import DataSection, NegativesSection
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.ids import Ids
from shoal.data.item_codes import ItemCodes, fitted, read_codes
from shoal.data.knowledge import knowledge_of
from shoal.data.sampler import log_weights
from shoal.models.base import Facts, Model


def facts_of(
    dataset: Dataset,
    table: FeatureTable | None,
    negatives: NegativesSection | None,
    max_len: int,
    **extra_facts: Any,
) -> Facts:
    """The facts that a model may know about interactions; max_len: of a history."""
    logq = torch.empty(0)
    if negatives is not None:
        popularity = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items)
        drawn = log_weights(popularity, negatives.distribution, negatives.alpha)
        logq = torch.from_numpy(drawn)
    return Facts(
        num_users=dataset.num_users,
        num_items=dataset.num_items,
        user_field=dataset.user_field,
        item_field=dataset.item_field,
        max_len=max_len,
        train_users=torch.from_numpy(dataset.user_ids("train")),
        train_items=torch.from_numpy(dataset.item_ids("train")),
        num_negatives=negatives.num if negatives else 0,
        negative_logq=logq,
        features=() if table is None else table.features,
        per_feature=table is not None,
        table=table,
        knowledge=knowledge_of(dataset) if "kg" in dataset.extra else None,
        **extra_facts,
    )


def codes_of(
    path: str, dataset: Dataset, title: str, model_class: type[Model]
) -> tuple[Tensor, ItemCodes]:
    """The codes of a data set's items, and the file that has them; title: the model, for errors."""
    if not model_class.reads_codes:
        raise ValueError(
            f"data.codes: {title} reads no codes of items; leave it out, or choose TIGER"
        )
    item_codes = read_codes(path)
    items = Ids(dataset.vocab[dataset.item_field])
    return fitted(path, item_codes.codes, items), item_codes


def refuse_labels(data: DataSection, title: str, weighted: bool = False) -> None:
    """Refuse labels and weights of samples where they are not read; weighted: weights are read."""
    for key in ("labels",) if weighted else ("labels", "sample_weight"):
        if getattr(data, key) is not None:
            also = ", for IALS and for ItemKNN" if key == "sample_weight" else ""
            raise ValueError(
                f"data.{key} is for click models on tables of interactions (data.files, atomic "
                f"files){also}, and {title} reads something else here; leave it out"
            )


def refuse_encoded(data: DataSection, reason: str) -> None:
    """Refuse texts to encode where nothing would read their vectors."""
    if data.encode:
        raise ValueError(
            f"data.encode: {reason}; leave it out, or choose a model that reads features, such as "
            "LightFM, SASRecF or DeepFM"
        )
