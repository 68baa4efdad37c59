"""Dense gradients that travel in buckets during backward: the bits of one large sum afterwards."""

from __future__ import annotations

import pytest
import torch
from click_batches import global_batch, make_model
from ranks import run_ranks
from torch import nn

from shoal.config.schema import OptimizerSection
from shoal.training.strategy import buckets, ddp
from shoal.world.world import World

STEPS = 5


def train(world, overlap, parts=1):
    """Losses and all dense weights after some steps, to the last bit; and how many buckets."""
    ddp.SMALL_DENSE, buckets.BUCKET = 0, 300  # bytes: of small gradients, too
    made = ddp.DDP(world)
    made.overlap = overlap
    model = make_model("DLRM")
    model.unused = nn.Parameter(torch.ones(3))  # a gradient that never comes
    made.setup(model, OptimizerSection(name="adagrad", lr=0.05), seed=1)
    found = []
    for step in range(1, STEPS + 1):
        batch = global_batch(step, "one", "fixed")
        size, count = batch.size, world.size * parts
        cuts = [size * part // count for part in range(count + 1)][world.rank * parts :]
        slices = [batch.rows(*cuts[part : part + 2]) for part in range(parts)]
        found.append(float(made.step(slices)))
    weights = [p.detach().flatten().tolist() for p in made.dense]
    return found, weights, len(made.buckets._parts) if made.buckets else 0


@pytest.mark.parametrize("parts", [1, 2])
def test_one_process(parts, monkeypatch):
    monkeypatch.setattr(ddp, "SMALL_DENSE", ddp.SMALL_DENSE)  # both are as before afterwards
    monkeypatch.setattr(buckets, "BUCKET", buckets.BUCKET)
    (losses, weights, none), (ours, own, many) = (train(World(), how, parts) for how in (0, 1))
    assert (losses, weights) == (ours, own) and none == 0 and many > 2


def both(world):
    return [train(world, overlap) for overlap in (False, True)]


@pytest.mark.parametrize("shared_memory", [pytest.param(True, marks=pytest.mark.slow), False])
def test_two_ranks(shared_memory, tmp_path):
    for plain, ours in run_ranks(both, 2, tmp_path, shared_memory=shared_memory):
        assert plain[:2] == ours[:2] and plain[2] == 0 and ours[2] > 2
