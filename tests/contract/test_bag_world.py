"""Lists of ids, pooled in the lookup, on any number of processes: the losses of one process."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from ps_cluster import serving
from ranks import run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.optimizers.row_optimizer import DEFINITIONS
from shoal.training.strategies import make_strategy

ROWS, SIZE, STEPS = 40, 11, 8
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "row": {"name": "sharded", "place": "row"},
    "column": {"name": "sharded", "place": "column"},
    "table": {"name": "sharded", "place": "table"},
}
BY_ROW = ("rowwise_adagrad", "lamb")  # such optimizers look at whole rows


class Pooled(Model):
    """Sums, means and weighted sums of fixed and growing tables, one of which has two fields."""

    def __init__(self, grows: bool) -> None:
        super().__init__(None, Facts())
        begin = Init("uniform", 0.5)
        fixed = Table("fixed", 5, ROWS, begin, padding=0)
        other = Table("other", 3, None if grows else ROWS, begin, padding=0)
        self.embed = Embeddings(tags=fixed, seen=fixed, words=other)
        self.layer = torch.nn.Linear(13, 1)
        torch.nn.init.constant_(self.layer.weight, 0.3)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, batch: Batch) -> Output:
        found = self.embed.each_pooled(batch, {"tags": "sum", "seen": "mean", "words": "sum"})
        logits = self.layer(torch.cat(list(found.values()), 1)).squeeze(1)
        assert batch.labels is not None
        return Output((torch.sin(logits) - batch.labels).square().sum(), batch.size)


def global_batch(step: int) -> Batch:
    """Lists with repeated ids, padding, and empty ones."""
    random = torch.Generator().manual_seed(step)
    ids: dict[str, Any] = {}
    for name in ("tags", "seen", "words"):
        lengths = torch.randint(0, 6, (SIZE,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values = torch.randint(0, ROWS, (int(offsets[-1]),), generator=random) // 2
        weights = torch.rand(len(values), generator=random) if name == "words" else None
        ids[name] = Jagged(values, offsets, weights)
    return Batch(SIZE, ids, labels=torch.rand(SIZE, generator=random))


def train(world: World, section: dict[str, Any], optimizer: str, clip: float | None) -> list[float]:
    strategy = make_strategy(StrategySection(**section), world)
    chosen = OptimizerSection(name="sgd", lr=0.05, rows={"name": optimizer, "lr": 0.05})
    strategy.setup(Pooled(section.get("place") != "column"), chosen, 1, clip)
    slices = []
    for step in range(STEPS):
        start, stop = world.slice(SIZE)
        slices.append(global_batch(step % 3).rows(start, stop, start))
    found = []
    for batch, following in zip(slices, [*slices[1:], None]):
        if following is not None and section["name"] != "ps":
            strategy.prefetch(following)
        found.append(float(strategy.train_step(batch)))
    strategy.synchronize()
    strategy.close()
    return found


def cases(optimizers: list[str]) -> list[tuple[str, str, float | None]]:
    found: list[tuple[str, str, float | None]] = []
    for optimizer in optimizers:
        for name in STRATEGIES:
            if name != "column" or optimizer not in BY_ROW:
                found.append((name, optimizer, None))
    return [*found, ("ddp", "adagrad", 0.1), ("row", "adagrad", 0.1)]


def every_case(world: World, optimizers: list[str], addresses: list[str]) -> list[list[float]]:
    found = [train(world, STRATEGIES[name], o, clip) for name, o, clip in cases(optimizers)]
    served = {"name": "ps", "ps": {"mode": "sync", "addresses": addresses}}
    return [*found, train(world, served, "adagrad", None)]


@cache
def alone(optimizer: str, clip: float | None, grows: bool) -> list[float]:
    section: dict[str, Any] = {"name": "single"} if grows else {"name": "single", "place": "column"}
    return train(World(), section, optimizer, clip)


@pytest.mark.parametrize(
    ("size", "optimizers"),
    [
        (2, ["rowwise_adagrad"]),
        pytest.param(1, list(DEFINITIONS), marks=pytest.mark.slow),
        pytest.param(2, list(DEFINITIONS), marks=pytest.mark.slow),
        pytest.param(3, list(DEFINITIONS), marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_of_one_process(size: int, optimizers: list[str], tmp_path: Path) -> None:
    with serving() as served:
        ranks = run_ranks(every_case, size, tmp_path, optimizers, served.addresses)
    wanted = [
        (name, o, clip, alone(o, clip, name != "column")) for name, o, clip in cases(optimizers)
    ]
    wanted.append(("ps", "adagrad", None, alone("adagrad", None, True)))
    for found in ranks:
        for losses, (name, optimizer, clip, want) in zip(found, wanted, strict=True):
            assert losses == pytest.approx(want, rel=1e-4), (name, optimizer, clip)


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad", "adam"])
def test_what_is_compared_learns(optimizer: str) -> None:
    losses = alone(optimizer, None, True)
    assert all(after < before for before, after in zip(losses, losses[3:]))  # of the same batch
