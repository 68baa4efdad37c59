"""Lists under strategy sharded: a step allocates nothing as large as the rows of their ids."""

import pytest
import torch

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategies import make_strategy

LISTS, LENGTH, DIM, ROWS = 20, 300, 32, 50_000


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
    with torch.profiler.profile(profile_memory=True) as profile:
        after = float(strategy.train_step(batch))
    assert after < before
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    # An id takes 8 bytes, a row 128: ids are in memory several times, rows of all of them never.
    assert 8 * count <= largest < 4 * count * DIM / 4
