"""A small model over lists of ids, and the batches it learns from, the same on every rank.

Lists of table `long` hold ids that come once, so owners send sums; those of `short` hold a few ids
again and again, so rows travel. Table `one` has a single id for each sample.
"""

from typing import Any

import torch

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.data.reader import one_ahead
from shoal.distributed.shared_gpu import SharedGpu
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.placements.row_requests import BagPieces
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategies import Strategy, make_strategy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, LONG, SHORT, ONE = 12, 600, 12, 40
BY_ROW = ("rowwise_adagrad", "lamb")  # such optimizers look at whole rows


class Lists(Model):
    """Sums, means and weighted sums, two of them of one table."""

    def __init__(self, grows: bool) -> None:
        super().__init__(None, Facts())
        begin = Init("uniform", 0.5)
        rows = {"long": LONG, "short": SHORT, "one": ONE}
        made = {
            name: Table(name, 4, None if grows else count, begin, padding=0)
            for name, count in rows.items()
        }
        long = made["long"]
        self.embed = Embeddings(tags=long, seen=long, words=made["short"], item=made["one"])
        self.layer = torch.nn.Linear(16, 1)
        torch.nn.init.constant_(self.layer.weight, 0.2)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, batch: Batch) -> Output:
        found = self.embed.each_pooled(batch, {"tags": "sum", "seen": "mean", "words": "sum"})
        vectors = [*found.values(), self.embed.field("item", batch)]
        logits = self.layer(torch.cat(vectors, 1)).squeeze(1)
        assert batch.labels is not None
        return Output((torch.sin(logits) - batch.labels).square().sum(), batch.size)


def global_batch(step: int) -> Batch:
    """Lists with padding, and empty ones; a third of the batches come again."""
    random = torch.Generator().manual_seed(step % 5)
    ids: dict[str, Any] = {"item": torch.randint(0, ONE, (SIZE,), generator=random)}
    for name, rows, longest in (("tags", LONG, 12), ("seen", LONG, 12), ("words", SHORT, 30)):
        lengths = torch.randint(0, longest, (SIZE,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values = torch.randint(0, rows, (int(offsets[-1]),), generator=random)
        weights = torch.rand(len(values), generator=random) if name == "words" else None
        ids[name] = Jagged(values, offsets, weights)
    return Batch(SIZE, ids, labels=torch.rand(SIZE, generator=random))


def slice_of(world: World, step: int) -> Batch:
    """A rank's samples."""
    start, stop = world.slice(SIZE)
    return global_batch(step).rows(start, stop, start)


def on_device(world: World) -> World:
    """The ranks on a GPU, which they share, where there is one."""
    return world if DEVICE == "cpu" else SharedGpu(world, DEVICE)


def set_up(
    world: World,
    section: dict[str, Any],
    optimizer: str,
    rows: dict[str, Any] | None = None,
    grows: bool = False,
    clip: float | None = None,
) -> Strategy:
    strategy = make_strategy(StrategySection(**{"graph": False, **section}), world)
    chosen = OptimizerSection(name="sgd", lr=0.05, rows={"name": optimizer, "lr": 0.05})
    strategy.setup(Lists(grows), chosen, 1, clip, rows=RowsSection.model_validate(rows or {}))
    return strategy


def train(strategy: Strategy, begin: int, end: int) -> list[float]:
    """Losses of steps, ids sent one batch ahead."""
    slices = [strategy.receive(slice_of(strategy.world, step)) for step in range(begin, end)]
    found = []
    for batch, following in one_ahead(slices):
        if following is not None:
            strategy.prefetch(following)
        found.append(float(strategy.train_step(batch)))
    strategy.synchronize()
    return found


def summed_tables(strategy: Strategy) -> list[str]:
    """All ranks, after some steps: tables of which owners send this rank sums."""
    batch = strategy.receive(slice_of(strategy.world, 0))
    rows: Any = strategy.rows
    trip = rows._trip(rows._worth_staging(strategy.lookups(batch)))
    trip.arrive()
    return [name for name, part in trip.parts.items() if isinstance(part.request, BagPieces)]
