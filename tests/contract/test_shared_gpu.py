"""Processes that share a device train as one does; on a GPU where there is one, else on the CPU.

And a group of one over NCCL does, which is all of NCCL that one GPU can run.
"""

import json
import threading

import pytest
import torch
import torch.multiprocessing as mp
from click_batches import global_batch, make_model
from ranks import free_port, run_ranks

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.rank_variables import set_rank
from shoal.distributed.shared_gpu import SharedGpu
from shoal.distributed.world import Group, World
from shoal.ps.server.server import Server
from shoal.training.strategies import make_strategy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRATEGIES = [{"name": "ddp"}, {"name": "sharded", "place": "row"}]
CASES = [("DLRM", "fixed"), ("DeepFM", "grows")]
STEPS = 6


def curve(world, strategy, model, rows):
    made = make_strategy(StrategySection(**strategy), world)
    made.setup(make_model(model, rows), OptimizerSection(name="adagrad", lr=0.05), seed=1)
    found = []
    for step in range(STEPS):
        batch = global_batch(step, "one", rows)
        found.append(float(made.train_step(made.receive(batch.rows(*world.slice(batch.size))))))
    made.close()
    return found


def curves(world, addresses):
    shared = SharedGpu(world, DEVICE)
    made = [[curve(shared, how, *case) for case in CASES] for how in STRATEGIES]
    served = [{"name": "ps", "ps": {"mode": "sync", "addresses": at}} for at in addresses]
    return [*made, [curve(shared, how, *case) for how, case in zip(served, CASES)]]


def alone():
    return [curve(World(DEVICE), {"name": "single", "graph": False}, *case) for case in CASES]


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", [True, False])
def test_two_processes_on_one_device_train_as_one_does(shared_memory, tmp_path):
    servers = [Server(index=0) for _ in CASES]
    threads = [threading.Thread(target=server.serve, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    addresses = [[server.address] for server in servers]
    want = alone()
    for rank in run_ranks(curves, 2, tmp_path, addresses, shared_memory=shared_memory):
        for of_strategy in rank:
            for got, one in zip(of_strategy, want):
                assert got == pytest.approx(one, rel=1e-4, abs=1e-6)


def over_nccl(_, port, file):
    set_rank(0, 1, 0, 1, "127.0.0.1", port)
    world = Group("cuda", 60.0)
    try:
        found = [[curve(world, how, *case) for case in CASES] for how in STRATEGIES]
    finally:
        world.close()
    file.write_text(json.dumps(found))


@pytest.mark.slow
# Gloo, which CPUs have, carries the same steps in the tests above.
@pytest.mark.skipif(DEVICE == "cpu", reason="NCCL needs a CUDA GPU")
def test_a_group_of_one_over_nccl_trains_as_one_process_does(tmp_path):
    file, want = tmp_path / "curves.json", alone()
    mp.spawn(over_nccl, (free_port(), file), nprocs=1, join=True)
    for of_strategy in json.loads(file.read_text()):
        for got, one in zip(of_strategy, want):
            assert got == pytest.approx(one, rel=1e-4, abs=1e-6)
