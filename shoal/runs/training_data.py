"""The first stage of a run: its data set, features and codes, and what a model may know of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import Config, DataSection, NegativesSection, StartSection
from shoal.data.dataset import Dataset
from shoal.data.encode import encode
from shoal.data.feature_table import FeatureTable
from shoal.data.features import features_of, labels_of, with_actions
from shoal.data.ids import Ids
from shoal.data.item_codes import fitted, read_codes
from shoal.data.knowledge import knowledge_of
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.sampler import log_weights
from shoal.distributed.world import World
from shoal.models import find
from shoal.models.base import Facts, Model
from shoal.runs.vocabulary_growth import grow, refuse_new_words
from shoal.runs.warm_start import known_words


def load_data(
    data: DataSection,
    start: StartSection,
    seed: int,
    title: str,
    world: World,
    reads_features: bool = False,
    reads_history: bool = False,
    reads_actions: bool = False,
) -> tuple[Dataset, FeatureTable | None]:
    """The data set and, where they are read, its features, with histories and their actions.

    Rank 0 prepares first, so that the others find what it prepared. title: the model, for errors.
    """
    data = with_side_files(data) if reads_features else data
    if world.is_main:
        dataset = load_dataset(data, seed)
        world.barrier()
    else:
        world.barrier()
        dataset = load_dataset(data, seed)
    features = features_of(dataset, data, reads_history) if reads_features else ()
    if start.vocabulary is not None:
        vocabulary = known_words(Path(start.vocabulary))
        if reads_features:
            refuse_new_words(title, dataset, features, vocabulary)
        dataset = grow(dataset, vocabulary)
    if not reads_features:
        return dataset, None
    if reads_actions:
        features = with_actions(dataset, features, labels_of(dataset, data))
    return dataset, encode(dataset, features, all_labels=reads_actions)


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
        knowledge=knowledge_of(dataset),
        **extra_facts,
    )


def codes_of(path: str, dataset: Dataset, title: str, model_class: type[Model]) -> Tensor:
    """The codes of a data set's items from a file; title: the model, for errors."""
    if not model_class.reads_codes:
        raise ValueError(
            f"data.codes: {title} reads no codes of items; leave it out, or choose TIGER"
        )
    return fitted(path, read_codes(path), Ids(dataset.vocab[dataset.item_field]))


def refuse_labels(data: DataSection, title: str, weighted: bool = False) -> None:
    """Refuse labels and weights of samples where they are not read; weighted: weights are read."""
    for key in ("labels",) if weighted else ("labels", "sample_weight"):
        if getattr(data, key) is not None:
            also = ", for IALS and for ItemKNN" if key == "sample_weight" else ""
            raise ValueError(
                f"data.{key} is for click models on tables of interactions (data.files, atomic "
                f"files){also}, and {title} reads something else here; leave it out"
            )


def describe_items(config: Config, features: bool) -> tuple[Dataset, Facts]:
    """The data set of a config, and the facts that a model would know about it.

    features: whether they are read where the config's model has no use for them.
    """
    dataset, table = load_data(
        config.data,
        config.start,
        config.run.seed,
        config.model.title,
        World(),
        reads_features=features or find(config.model.name).reads_features,
    )
    return dataset, facts_of(dataset, table, config.train.negatives, config.data.max_len)
