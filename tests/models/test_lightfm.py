"""LightFM: features of items carry what is known of items that nobody has taken yet."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.config.schema import DataSection, SyntheticSection
from shoal.data.loading.load import load_dataset
from shoal.data.sources.synthetic import new_items
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve

SYNTHETIC = {
    "users": 300,
    "items": 1000,
    "interactions": 12000,
    "drift": 0.0,
    "popularity": 0.3,
    "item_features": 2,
    "new_items": 0.3,
}
VALUES: dict[str, Any] = {
    "data.name": "synthetic",
    "data.synthetic": SYNTHETIC,
    "data.split.order": "time",
    "model.embedding_size": 16,
    "train.batch_size": 1024,
    "train.optimizer.lr": 0.01,
    "train.optimizer.weight_decay": 0.001,
    "run.progress": False,
}
IDS_ONLY = {"user_id": {"kind": "id"}, "item_id": {"kind": "id"}}


@cache
def recall(model: str, ids_only: bool = False, epochs: int = 20) -> float:
    more = {"data.features": IDS_ONLY} if ids_only else {}
    parts = build(resolve(values={"model": model, **VALUES, **more}).config, World())
    parts.model.train()
    for epoch in range(epochs):
        for batch in parts.reader.batches(epoch):
            parts.strategy.train_step(batch)
    return parts.evaluator.evaluate(parts.model, "test")["recall@10"]


def test_new_items_come_last() -> None:
    section = SyntheticSection(**SYNTHETIC)  # type: ignore[arg-type]
    split = {"by": "ratio", "order": "time"}
    dataset = load_dataset(DataSection(name="synthetic", synthetic=section, split=split), 1)  # type: ignore[arg-type]
    names = dataset.vocab["item_id"][1:].astype(np.int64) - 1
    new = np.concatenate([[False], new_items(section)[names]])
    # A user with few interactions trains on some of the last eighth.
    assert new.sum() == 300 and new[dataset.item_ids("train")].mean() < 0.01
    assert new[dataset.item_ids("test")].mean() > 0.2
    assert [*dataset.items] == ["feature_0", "feature_1"]


def test_item_features_find_new_items() -> None:
    """The margin: 0.1 of recall@10, and twice what models of ids alone find."""
    told, bpr, ids = recall("LightFM"), recall("BPR"), recall("LightFM", True)
    assert told > max(bpr, ids) + 0.1 and told > 2 * max(bpr, ids), (told, bpr, ids)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="one of BPR, WARP, logistic"):
        resolve(values={"model": "LightFM", "model.loss": "hinge"})
