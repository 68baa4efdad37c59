"""A click log with described features: a field of the batch for each, and so a table for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.clicks.layout import Layout
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature, declared


def log_features(layout: Layout, config: DataSection) -> tuple[Feature, ...]:
    """The features that data.features describes: slots and dense values of the log, by name."""
    columns = {feature.name: feature for feature in layout.features()}
    features = []
    for name, settings in (config.features or {}).items():
        described = declared(name, dict(settings))
        column = columns.get(described.column)
        if column is None:
            raise ValueError(
                f"data.features.{name}: the log has no column {described.column!r}; it has "
                f"{', '.join(columns)}{did_you_mean(described.column, columns)}"
            )
        if (
            described.is_sparse != column.is_sparse
            or described.buckets is not None
            or described.transforms
        ):
            raise ValueError(
                f"data.features.{name}: a column of a click log is read as it is, {column.kind}: "
                "leave out buckets and transforms, and give that kind"
            )
        for key in ("weights", "cross", "default", "time"):
            if getattr(described, key):
                raise ValueError(f"data.features.{name}.{key}: a click log has none; leave it out")
        length = column.length if not column.is_sparse else None
        rows, words = (column.rows, column.vocabulary) if column.is_sparse else (None, "exact")
        features.append(replace(described, rows=rows, vocabulary=words, length=length))
    return tuple(features)


def per_feature(batch: Batch, layout: Layout, columns: Mapping[str, str]) -> Batch:
    """The batch with a further field for each feature; columns: its slot or dense column."""
    ids, dense = dict(batch.ids), dict(batch.dense)
    for name, column in columns.items():
        if column in layout.slots:
            ids[name] = slot(batch.ids["slots"], layout.slots.index(column), batch)
        else:
            places = [k for k, one in enumerate(layout.dense) if one == column]
            values = batch.dense["dense"][:, places]
            dense[name] = values[:, 0] if len(places) == 1 else values
    return replace(batch, ids=ids, dense=dense)


def slot(ids: Tensor | Jagged, number: int, batch: Batch) -> Tensor | Jagged:
    """One slot of all samples: ids [b], or a list for each."""
    if isinstance(ids, Tensor):
        return ids[:, number].contiguous()
    num_slots = len(ids) // max(1, batch.size)
    return ids.take(torch.arange(batch.size) * num_slots + number)
