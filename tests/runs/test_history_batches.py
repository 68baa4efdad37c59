"""Which histories of a batch a service extends, and that the others are computed together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.serving.artifact.kept_histories import (
    ALWAYS_EXTENDED,
    HistoryCosts,
    KeptHistories,
    measure_costs,
)

MAX_LEN, DIM = 8, 2
# A batch is cheap for each of many, extension for one; what is new is cheap.
CHEAP_BATCHES = HistoryCosts(batch=10.0, history=0.5, extension=2.0, place=0.1)


class Model:
    """The sum of items stands for a query vector; counts how it was computed."""

    def __init__(self, costs: HistoryCosts):
        self.batches: list[int] = []
        self.places = 0
        self.kept = KeptHistories(self.extend, DIM, MAX_LEN, 1 << 20, costs)

    def whole(self, query: Mapping[str, Tensor]) -> Tensor:
        self.batches.append(len(query["history"]))
        return query["history"].sum(1, keepdim=True).float().expand(-1, DIM)

    def extend(self, fields: dict[str, Tensor]) -> Tensor:
        self.places += len(fields["new"])
        before = float(fields["kept"][-1, 0]) if len(fields["kept"]) else 0.0
        sums = before + fields["new"].float().cumsum(0)
        return sums[:, None].expand(-1, 2 * DIM).clone()

    def ask(self, *histories: list[int]) -> None:
        padded = torch.zeros(len(histories), MAX_LEN, dtype=torch.int64)
        for row, items in enumerate(histories):
            padded[row, : len(items)] = torch.tensor(items)
        found = self.kept.queries({"history": padded}, self.whole)
        assert found[:, 0].tolist() == [sum(items) for items in histories]


def test_many_histories_are_one_batch() -> None:
    """Each was computed by itself, which took batching from all for what it saved a few."""
    model = Model(CHEAP_BATCHES)
    model.ask(*[[number, 3, 5] for number in range(1, 65)])
    assert model.batches == [64] and model.places == 0 and len(model.kept) == 0
    assert model.kept.requests == 64


def test_one_asker_pays_for_new_places_alone() -> None:
    model = Model(CHEAP_BATCHES)
    model.ask([1, 2, 3])
    model.ask([1, 2, 3, 4])
    assert model.batches == [] and model.places == 3 + 2


def test_in_one_batch_the_kept_are_extended_and_the_others_computed_together() -> None:
    costs = HistoryCosts(batch=0.0, history=1.0, extension=0.0, place=0.4)
    model = Model(costs)
    model.ask([1, 2])  # 4 places by this request and the next, for less than twice the whole
    assert model.batches == [] and model.places == 2
    model.ask([9, 8, 7, 6, 5], [1, 2, 3], [7, 7, 7, 7], [])
    assert model.batches == [3] and model.places == 2 + 2


def test_a_history_that_will_not_be_kept_is_not_paid_for_twice() -> None:
    costs = HistoryCosts(batch=0.0, history=1.0, extension=0.2, place=0.1)
    assert costs.favor_extension(7, 1, kept=False)
    assert not costs.favor_extension(8, 1, kept=False)
    assert costs.favor_extension(8, 1, kept=True)  # the next one costs two places


@pytest.mark.parametrize("timed", [False, True])
def test_costs_are_measured(timed: bool) -> None:
    """Every figure is a duration; which way wins is the machine's affair."""
    model = Model(ALWAYS_EXTENDED)
    history = torch.arange(1, MAX_LEN)
    padded = torch.nn.functional.pad(history, (0, 1)).expand(4, -1)
    query = {"history": padded}
    if timed:
        query["history_time"] = torch.from_numpy(np.arange(MAX_LEN + 1)).expand(4, -1)
    costs = measure_costs(model.kept, model.whole, query)
    assert all(0.0 <= seconds < 60.0 for seconds in vars(costs).values())
    assert 4 in model.batches or 2 in model.batches
