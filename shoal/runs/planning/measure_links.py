"""A script of two ranks: how fast they talk, and how long steps take that compute next to nothing.

measure.py starts it, rank 0 writes the times down:

python -m shoal.launch --nproc 2 measure_links.py FILE cpu|cuda SCALE
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategy import make_strategy
from shoal.world.world import World, connect

LARGE = 1 << 26  # bytes
STRATEGIES = ("ddp", "sharded")


class Little(Model):
    """A lookup and a linear layer: its steps are Python and little else."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        self.embed = Embeddings(item=Table("items", 4, 1000))
        self.layer = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> Output:
        return Output(self.layer(self.embed.field("item", batch)).square().sum(), batch.size)


def little_step(world: World, strategy: str) -> Callable[[], object]:
    """A step of eight samples on each rank."""
    made = make_strategy(StrategySection(name=strategy), world)
    made.setup(Little(), OptimizerSection(name="adagrad"), seed=1)
    ids = torch.arange(1, 9) + 8 * world.rank
    batch = made.receive(Batch(8, {"item": ids}, first=8 * world.rank))
    return lambda: made.train_step(batch)


def times_of(run: Callable[[], object], world: World, seconds: float, most: int) -> list[float]:
    """Seconds of each call, as many on every rank; the first two do not count."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    go_on = torch.ones(1)
    while len(taken) < 7 or go_on.item():
        world.barrier()
        begin = time.perf_counter()
        run()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        more = time.perf_counter() < end and len(taken) < most
        go_on = world.all_reduce(torch.full((1,), float(more), device=world.device))
    return taken[2:]


def main(file: str, device: str, scale: float) -> None:
    """All-reduce and all-to-all of a large tensor, and a message of a few bytes."""
    world = connect(device=device, threads=1)
    numbers = max(64, int(LARGE * scale) // 4 // 64 * 64)
    x = torch.ones(numbers, device=world.device)
    small = torch.ones(2, device=world.device)
    half, seconds = [numbers // 2, numbers // 2], 1.5 * scale
    # Bytes that a rank sends: all of a sum of two, half of what is exchanged.
    found = {
        "all_reduce": (times_of(lambda: world.all_reduce(x), world, seconds, 50), 4.0 * numbers),
        "all_to_all": (
            times_of(lambda: world.all_to_all(x, half, half), world, seconds, 50),
            2.0 * numbers,
        ),
        "latency": (
            times_of(lambda: world.all_to_all(small, [1, 1], [1, 1]), world, seconds / 4, 500),
            None,
        ),
    }
    for name in STRATEGIES:
        step = little_step(world, name)
        found[name] = times_of(step, world, seconds / 4, 200), None
    if world.is_main:
        Path(file).write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
