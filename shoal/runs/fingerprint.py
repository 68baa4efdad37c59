"""What must be the same of a run for a checkpoint to fit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from shoal.config.schema import Config
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.features import Feature
from shoal.optimizers.selection import row_optimizer_names_of


def fingerprint(
    config: Config, dataset: Dataset, table: FeatureTable | None = None
) -> dict[str, Any]:
    """All that must be the same for a checkpoint to fit."""
    facts: dict[str, Any] = {} if table is None else {"features": feature_shapes(table.features)}
    digests = dataset.digests or _digests(dataset)
    if dataset.encoded:
        facts["encoded"] = dataset.encoded
    facts |= {"num_users": dataset.num_users, "num_items": dataset.num_items}
    return (
        facts
        | {key: digests[key] for key in ("interactions", "splits")}
        | training_fingerprint(config)
    )


def training_fingerprint(config: Config) -> dict[str, Any]:
    """What training must have in common for a checkpoint to fit, whatever the data."""
    return {
        "model": config.model.title,
        "options": config.model.options,
        "optimizer": config.train.optimizer.name,
        "row_optimizers": row_optimizer_names_of(config.train.optimizer),
        "batch_size": config.train.samples,
        "batch_tokens": config.train.batch_tokens,
        "seed": config.run.seed,
    }


def feature_shapes(features: tuple[Feature, ...]) -> list[list[Any]]:
    """Name, kind, table, rows and width of every feature."""
    return [[f.name, f.kind, f.table, f.rows, f.dim] for f in features]


def _digests(dataset: Dataset) -> dict[str, str]:
    """Digests of the interactions and of their splits; a prepared folder has them already."""
    digest = hashlib.sha256()
    for split in ("train", "valid", "test"):
        rows = np.ascontiguousarray(dataset.splits[split])
        digest.update(np.int64(len(rows)).tobytes() + rows.tobytes())
    contents = hashlib.sha256()
    for field in (dataset.user_field, dataset.item_field):
        contents.update(np.ascontiguousarray(dataset.inter[field]).tobytes())
        contents.update("\n".join(map(str, dataset.vocab[field])).encode())
    return {"interactions": contents.hexdigest(), "splits": digest.hexdigest()}
