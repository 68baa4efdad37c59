"""Lists under strategy sharded: no tensor of a step is as large as the rows of all their ids."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategy import make_strategy
from shoal.world.world import World

LISTS, LENGTH, DIM, ROWS = 20, 300, 32, 50_000


class Largest(TorchDispatchMode):
    """The most values that a tensor of floats has which torch makes in here."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.is_floating_point():
            self.values = max(self.values, made.numel())
        return made


class Sums(Model):
    def __init__(self) -> None:
        super().__init__(None, Facts())
        self.embed = Embeddings(tags=Table("t", DIM, ROWS, Init("uniform", 0.1)))

    def forward(self, batch: Batch) -> Output:
        return Output(self.embed.pooled("tags", batch).square().sum(), batch.size)


@pytest.mark.parametrize("weighted", [False, True])
def test_only_sums_are_in_memory(weighted: bool) -> None:
    strategy = make_strategy(StrategySection(name="sharded", place="row"), World())
    strategy.setup(Sums(), OptimizerSection(name="adagrad", lr=1e-4), seed=1)
    count = LISTS * LENGTH
    weights = torch.rand(count) if weighted else None
    ids = torch.randint(0, ROWS, (count,))
    batch = Batch(LISTS, {"tags": Jagged(ids, torch.arange(0, count + 1, LENGTH), weights)})
    before = float(strategy.train_step(batch))
    with Largest() as largest:
        after = float(strategy.train_step(batch))
    assert after < before
    assert LISTS * DIM <= largest.values <= max(count, 2 * LISTS * DIM)  # ids × dim are 32 times it
