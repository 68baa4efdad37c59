"""A click model for tests: logistic regression over one table of weights and the dense values."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal import models
from shoal.config.schema import Config
from shoal.data.batch import Batch, Jagged
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import ClickModel, Facts
from shoal.runs.run import resolve


def register() -> None:
    """Let configs name the model below, in this process."""
    models.MODELS["TinyClicks"] = "click_model"


@pytest.fixture(scope="module", autouse=True)
def tiny_clicks() -> Iterator[None]:
    """The same for the tests of a module that imports this: others count the models there are."""
    register()
    yield
    del models.MODELS["TinyClicks"]


class TinyClicks(ClickModel):
    """The sum of the ids' weights and a linear layer."""

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.embed = Embeddings(slots=Table("weights", 1, facts.rows, Init("normal", 0.01)))
        self.linear = nn.Linear(max(1, facts.num_dense), 1)

    def logits(self, batch: Batch) -> Tensor:
        slots, device = batch.ids["slots"], self.linear.weight.device
        if isinstance(slots, Jagged):
            sample = torch.repeat_interleave(
                torch.arange(len(slots), device=device) // self.facts.num_slots, slots.lengths
            )
            weights = self.embed.rows("slots", slots.values)[:, 0]
            total = torch.zeros(batch.size, device=device).index_add(0, sample, weights)
        else:
            total = self.embed.rows("slots", slots).sum((1, 2))
        dense = batch.dense.get("dense", torch.ones(batch.size, 1, device=device))
        return total + self.linear(dense)[:, 0]


def click_config(**values: Any) -> Config:
    """A config of the model above on small synthetic clicks; keyword a__b is the key a.b."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    small = {
        "model": "TinyClicks",
        "data.name": "synthetic",
        "data.clicks.synthetic.samples": 3000,
        "data.clicks.synthetic.slots": 5,
        "data.clicks.synthetic.ids_per_slot": 40,
        "train.batch_size": 100,
        "train.epochs": 2,
        "train.optimizer.lr": 0.01,
        "run.progress": False,
        "run.trackers": [],
    }
    return resolve(values={**small, **given}).config
