"""Features of click logs: a table of its own for each slot, with its own width."""

from __future__ import annotations

from typing import Any

import pytest
from click_model import click_config, tiny_clicks

from shoal.clicks.per_feature import slot
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.runs.build import build

__all__ = ["tiny_clicks"]  # used by being there
FEATURES: dict[str, dict[str, Any]] = {
    "1": {"kind": "id", "dim": 4},
    "2": {"kind": "id", "dim": 4, "table": "1"},
    "5": {"kind": "ids"},
    "dense_feature": {"kind": "numbers", "length": 4},
}


def test_slots_read_tables_of_their_own() -> None:
    parts = build(click_config(model="DNN", data__features=FEATURES), World())
    tables = parts.strategy.tables
    assert {name: table.dim for name, table in tables.items()} == {"1": 4, "5": 9}
    assert next(parts.reader.batches(0)).dense["dense_feature"].shape == (100, 4)
    batch = next(parts.evaluator.readers["valid"].batches(0))  # of which GAUC may ask for a slot
    assert batch.tensor("5").equal(batch.tensor("slots")[:, 4])
    losses = [float(parts.strategy.train_step(one)) for one in parts.reader.batches(0)]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert parts.evaluator.evaluate(parts.model, "valid")["auc"] > 0.55


def test_one_slot_of_lists() -> None:
    lists = Jagged.from_lists([[1], [2, 3], [], [4], [5, 6, 7], [8]])
    batch = Batch(2, {"slots": lists})
    for number, expected in enumerate([[[1], [4]], [[2, 3], [5, 6, 7]], [[], [8]]]):
        found = slot(lists, number, batch)
        assert isinstance(found, Jagged)
        assert [found.lists(k, k + 1).values.tolist() for k in range(2)] == expected
    assert len(slot(Jagged.from_lists([]), 1, Batch(0, {}))) == 0


@pytest.mark.parametrize(
    ("model", "features", "said"),
    [
        ("DNN", {"9": {"kind": "id"}}, "the log has no column '9'; it has 1, 2"),
        ("DNN", {"1": {"kind": "number"}}, "a column of a click log is read as it is, ids"),
        ("DNN", {"1": {"kind": "ids", "weights": "2"}}, "data.features.1.weights: a click log has"),
        ("TinyClicks", FEATURES, "TinyClicks reads all slots from one table"),
    ],
)
def test_what_does_not_fit(model: str, features: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(click_config(model=model, data__features=features), World())
    assert said in str(caught.value)
