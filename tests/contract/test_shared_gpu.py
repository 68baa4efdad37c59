"""Processes that share a device train as one does; on a GPU where there is one, else on the CPU."""

from __future__ import annotations

import pytest
import torch
from click_batches import global_batch, make_model
from ranks import run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.training.strategy import make_strategy
from shoal.world.sharing import SharedGpu
from shoal.world.world import World

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRATEGIES = [{"name": "ddp"}, {"name": "sharded", "place": "row"}]
CASES = [(model, rows) for model in ("DLRM", "DeepFM") for rows in ("fixed", "grows")]


def curve(world, strategy, model, rows):
    made = make_strategy(StrategySection(**strategy), world)
    made.setup(make_model(model, rows), OptimizerSection(name="adagrad", lr=0.05), seed=1)
    found = []
    for step in range(10):
        batch = global_batch(step, "one", rows)
        cuts = [batch.size * rank // world.size for rank in (world.rank, world.rank + 1)]
        found.append(float(made.train_step(made.receive(batch.rows(*cuts)))))
    return found


def curves(world):
    shared = SharedGpu(world, DEVICE)
    return [[curve(shared, how, *case) for case in CASES] for how in STRATEGIES]


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", [True, False])
def test_two_processes_on_one_device_train_as_one_does(shared_memory, tmp_path):
    want = [curve(World(DEVICE), {"name": "single"}, *case) for case in CASES]
    for rank in run_ranks(curves, 2, tmp_path, shared_memory=shared_memory):
        for of_strategy in rank:
            for got, one in zip(of_strategy, want):
                assert got == pytest.approx(one, rel=1e-4, abs=1e-6)
