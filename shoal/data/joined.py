"""Labelled interactions as samples of click models: features are joined by id, batch by batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Dataset, Split
from shoal.data.feature_table import FeatureTable, fold
from shoal.data.features import Feature, Label
from shoal.data.random import hash64


def weights_of(dataset: Dataset, column: str) -> np.ndarray:
    """How much each interaction counts (data.sample_weight): float32 [rows]."""
    if column not in dataset.inter or dataset.types[column] != "float":
        raise ValueError(
            f"data.sample_weight: the interactions have no column of numbers {column!r}"
        )
    weights = np.asarray(dataset.inter[column], np.float32)
    if (weights < 0).any():
        raise ValueError(f"data.sample_weight: {column!r} has values below 0")
    return weights


class JoinedSamples:
    """The samples of some interactions (their row numbers).

    packed: ids of all features lie in one field, `slots`, numbered one feature after the other.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        table: FeatureTable,
        labels: tuple[Label, ...],
        weight: str | None = None,
        packed: bool = False,
    ):
        self.rows = dataset.splits[split]
        self.table = table
        self.packed = packed
        self.users = np.asarray(dataset.inter[dataset.user_field])
        self.items = np.asarray(dataset.inter[dataset.item_field])
        self.labels = [np.asarray(dataset.inter[one.column], np.float32) for one in labels]
        for label, column in zip(labels, self.labels):
            if label.loss == "logistic" and not ((column == 0) | (column == 1)).all():
                raise ValueError(
                    f"the label {label.column!r} of {dataset.name!r} is not 0 or 1 everywhere; "
                    f"make it so with data.threshold={{{label.column}: VALUE}}, or set "
                    f"data.labels.{label.name}.loss to squared"
                )
        self.weights = None if weight is None else weights_of(dataset, weight)

    def __len__(self) -> int:
        return len(self.rows)

    def batch_of(self, numbers: slice | np.ndarray) -> Batch:
        """The batch of the given samples, in the given order."""
        rows = np.asarray(self.rows[numbers])
        users = self.users[rows].astype(np.int64, copy=False)  # on disk ids are shorter
        items = self.items[rows].astype(np.int64, copy=False)
        ids, dense = self.table.join(rows, users, items)
        if self.packed:
            ids, dense = pack(self.table.features, ids, dense, len(rows))
        ids.setdefault(self.table.user_field, torch.from_numpy(users))  # what GAUC groups by
        label_tensors = [torch.from_numpy(column[rows]) for column in self.labels]
        labels = label_tensors[0] if len(label_tensors) == 1 else torch.stack(label_tensors, 1)
        weights = None if self.weights is None else torch.from_numpy(self.weights[rows])
        return Batch(len(rows), ids, dense, labels, weights=weights)


def candidates(
    table: FeatureTable,
    users: Tensor,
    items: Tensor,
    packed: bool,
    device: torch.device,
    histories: bool = True,
) -> Batch:
    """Samples of users with items that they have not taken, [n] each, for a click model."""
    ids, dense = table.join(None, users.cpu().numpy(), items.cpu().numpy(), histories)
    if packed:
        ids, dense = pack(table.features, ids, dense, len(users))
    return Batch(len(users), ids, dense).to(device)


class BatchSamples:
    """Samples that are a batch already; they are not shuffled."""

    def __init__(self, batch: Batch):
        self.batch = batch

    def __len__(self) -> int:
        return self.batch.size

    def batch_of(self, numbers: slice | np.ndarray) -> Batch:
        """The batch of a range of these samples, as views."""
        assert isinstance(numbers, slice)
        return self.batch.rows(numbers.start, numbers.stop)


def packed_rows(features: tuple[Feature, ...]) -> int | None:
    """Rows of the one table that packed ids read; None: it grows."""
    rows = [feature.rows for feature in features if feature.is_sparse]
    counted = [one for one in rows if one is not None]
    return sum(counted) if len(counted) == len(rows) else None


def check_packable(model: str, features: tuple[Feature, ...]) -> None:
    """Refuse features that need tables of their own, for a model that has one for all."""
    for feature in features:
        plain = Feature(feature.name, feature.kind)
        table_option = (
            "dim" if feature.dim is not None else "table" if feature.table != plain.table else ""
        )
        if feature.is_sparse and table_option:
            raise ValueError(
                f"{model} reads all features from one table of one width, and "
                f"data.features.{feature.name}.{table_option} asks for another; leave it out, or "
                "choose DNN"
            )


def pack(
    features: tuple[Feature, ...],
    ids: dict[str, Tensor | Jagged],
    dense: dict[str, Tensor],
    size: int,
) -> tuple[dict[str, Tensor | Jagged], dict[str, Tensor]]:
    """The fields `slots` and `dense` of all features together.

    Ids of a feature follow those of the features before it; where the table grows, they are hashed
    with the number of the feature.
    """
    sparse = [feature for feature in features if feature.is_sparse]
    grows = packed_rows(features) is None
    shifted: list[Tensor | Jagged] = []
    first = 0
    for number, feature in enumerate(sparse):
        values = ids[feature.name]
        flat = values.values if isinstance(values, Jagged) else values
        if grows:
            flat = torch.from_numpy(fold(hash64(number, flat.numpy()), None))
        else:
            flat = flat + first
        shifted.append(replace(values, values=flat) if isinstance(values, Jagged) else flat)
        first += feature.rows or 0
    packed: dict[str, Tensor] = {}
    numeric = [feature for feature in features if not feature.is_sparse]
    if numeric:
        packed["dense"] = torch.cat([dense[f.name].view(size, f.width) for f in numeric], 1)
    single = [values for values in shifted if isinstance(values, Tensor)]
    if len(single) == len(shifted):
        return {"slots": torch.stack(single, 1)}, packed
    plain = all(f.pooling == "sum" and f.weights is None for f in sparse)
    lists = []
    for values, feature in zip(shifted, sparse):
        jagged = values if isinstance(values, Jagged) else Jagged.of_single(values)
        if not plain:
            weights = torch.ones(len(jagged.values)) if jagged.weights is None else jagged.weights
            if feature.pooling == "mean" and isinstance(values, Jagged):
                weights = weights / jagged.lengths.repeat_interleave(jagged.lengths)
            jagged = replace(jagged, weights=weights)
        lists.append(jagged)
    order = torch.arange(size)[:, None] + size * torch.arange(len(lists))
    return {"slots": Jagged.cat(lists).take(order.reshape(-1))}, packed
