"""A script of two ranks: how fast they communicate, and how long almost empty steps take.

probes.py starts it, and rank 0 writes the times into FILE:

python -m shoal.launch --nproc 2 link_probes.py FILE cpu|cuda SCALE
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
from shoal.distributed.world import World, connect
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.models.base import Facts, Model, Output
from shoal.training.strategies import make_strategy

LARGE = 1 << 26  # bytes
STRATEGIES = ("ddp", "sharded")


class TinyModel(Model):
    """A lookup and a linear layer: its steps are Python and little else."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        self.embed = Embeddings(item=Table("items", 4, 1000))
        self.layer = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> Output:
        return Output(self.layer(self.embed.field("item", batch)).square().sum(), batch.size)


def make_tiny_step(world: World, strategy: str) -> Callable[[], object]:
    """Make a step of eight samples on each rank."""
    strategy_object = make_strategy(StrategySection(name=strategy), world)
    strategy_object.setup(TinyModel(), OptimizerSection(name="adagrad"), seed=1)
    ids = torch.arange(1, 9) + 8 * world.rank
    batch = strategy_object.receive(Batch(8, {"item": ids}, first=8 * world.rank))
    return lambda: strategy_object.train_step(batch)


def time_calls(run: Callable[[], object], world: World, seconds: float, most: int) -> list[float]:
    """Seconds of each call, as many on every rank; the first two do not count."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    continue_flag = torch.ones(1)
    while len(times) < 7 or continue_flag.item():
        world.barrier()
        begin = time.perf_counter()
        run()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        has_time = time.perf_counter() < end and len(times) < most
        continue_flag = world.all_reduce(torch.full((1,), float(has_time), device=world.device))
    return times[2:]


def main(file: str, device: str, scale: float) -> None:
    """All-reduce and all-to-all of a large tensor, and a message of a few bytes."""
    world = connect(device=device, threads=1)
    numbers = max(64, int(LARGE * scale) // 4 // 64 * 64)
    x = torch.ones(numbers, device=world.device)
    small = torch.ones(2, device=world.device)
    half, seconds = [numbers // 2, numbers // 2], 1.5 * scale
    # Bytes that a rank sends: all of a sum of two, half of what is exchanged.
    times_by_probe = {
        "all_reduce": (time_calls(lambda: world.all_reduce(x), world, seconds, 50), 4.0 * numbers),
        "all_to_all": (
            time_calls(lambda: world.all_to_all(x, half, half), world, seconds, 50),
            2.0 * numbers,
        ),
        "latency": (
            time_calls(lambda: world.all_to_all(small, [1, 1], [1, 1]), world, seconds / 4, 500),
            None,
        ),
    }
    for name in STRATEGIES:
        step = make_tiny_step(world, name)
        times_by_probe[name] = time_calls(step, world, seconds / 4, 200), None
    if world.is_main:
        Path(file).write_text(json.dumps(times_by_probe))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
