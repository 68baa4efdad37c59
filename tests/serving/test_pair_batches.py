"""A question's row, encoded once and paired with many items, is what each pair is alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from shop_pipeline import shop

import shoal
from shoal.clicks.encoder import FeatureEncoder
from shoal.data.batch import Batch, Jagged

ROWS: dict[str, list[dict[str, Any]]] = {
    "columns of the context": [
        {"user": "u3", "device": "phone"},
        {"user": "stranger", "device": None},
        {"user": None, "device": "watch"},
    ],
    "a column of the items": [
        {"user": "u3", "device": "phone", "category": "b"},
        {"user": "u4", "device": "desk", "category": None},
    ],
}


def lists(batch: Batch) -> dict[str, Any]:
    """All of a batch as plain lists."""
    fields = {
        name: (ids.values.tolist(), ids.offsets.tolist()) if isinstance(ids, Jagged) else ids
        for name, ids in {**batch.ids, **batch.dense}.items()
    }
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in fields.items()
    }


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_pairs_are_encoded_as_rows_that_name_the_item(rows: list[dict[str, Any]]) -> None:
    encoder = shoal.load(shop() / "FM").encoder
    assert isinstance(encoder, FeatureEncoder)
    places = np.array([0, 0, 1, len(rows) - 1, 1, 0])
    items = np.array([3, 9, 3, 0, 40, 1])
    words = [encoder.ids["item"].words[item] if item else "nothing" for item in items]
    frame = encoder.frame(rows).with_columns(pl.col("user").cast(pl.String))
    each = frame[places.tolist()].with_columns(pl.Series("item", words, dtype=pl.String))
    expected, pairs = encoder.batch(each), encoder.batch_of_pairs(frame, places, items)
    assert pairs.size == expected.size == 6 and lists(pairs) == lists(expected)
