"""Replicated rows: ranks that exchange gradients, by shared memory as by sockets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from forks import forked
from ranks import free_port, run_ranks
from torch import Tensor

from shoal.distributed.rank_variables import set_rank
from shoal.distributed.shm_group import RING, can_share_memory
from shoal.distributed.world import PeerLost, World, connect
from shoal.embedding.engines.local import make_local
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup
from shoal.optimizers.row_optimizer import RowOptimizer

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="ranks share no memory here")
TABLES = {"user": Table("user", 3, 9), "item": Table("item", 2, None)}


def steps(world: World, size: int) -> list[object]:
    """Some steps; the sums of dense pieces, the gradients, and all rows in the end."""
    engines = {
        name: make_local(table, RowOptimizer("adagrad"), 1) for name, table in TABLES.items()
    }
    rows = ReplicatedRows(engines, None, world)
    found: list[object] = []
    for step in range(5):
        torch.manual_seed(10 * step + world.rank)
        wanted = [torch.randint(0, 9, (n + world.rank,)) for n in (40, 0 if step == 1 else 20, 20)]
        rows.begin(object(), [])
        lookups = [Lookup(name, ids) for name, ids in zip(("user", "item", "item"), wanted)]
        pulled = rows.pull(lookups, learn=True)
        used = pulled[: 2 if step == 2 and world.rank == 1 else 3]  # a lookup without gradients
        loss = torch.stack([(one * torch.randn_like(one)).sum() for one in used]).sum()
        loss.backward()
        # Whole numbers: Gloo adds up many floats in its own order.
        collected = rows.collect([torch.full((size,), loss.detach().round()), torch.ones(2)])
        for name, one in collected.rows.items():
            assert isinstance(one.ids, Tensor)
            summed = one.summed()
            found.append([name, summed.ids.tolist(), summed.grads.tolist()])
        found += [collected.dense[:3].tolist(), collected.dense[-2:].tolist()]
        rows.apply(collected.rows, 0.1, 0.3)
    ids = torch.arange(9)
    return found + [rows.pull([Lookup(n, ids)], learn=False)[0].tolist() for n in TABLES]


@pytest.mark.parametrize("floats", [3, RING // 4])
def test_shared_memory_gives_what_sockets_give(tmp_path: Path, floats: int) -> None:
    ways = [
        run_ranks(steps, 3, tmp_path / str(shared), floats, shared_memory=shared)
        for shared in (True, False)
    ]
    assert ways[0] == ways[1]
    assert all(one == ways[0][0] for one in ways[0])  # and every rank has the same


def die(rank: int, port: int, folder: str, before: bool) -> None:
    """Rank 1 is killed, before it has sent its gradients, or when it has not applied them."""
    set_rank(rank, 2, rank, 2, "127.0.0.1", port)
    world = connect("cpu", 60.0, threads=1)
    engine = make_local(Table("item", 12, 500, padding=0), RowOptimizer("adam"), 7)
    rows = ReplicatedRows({"item": engine}, None, world)
    try:
        for step in range(6):
            (pulled,) = rows.pull([Lookup("item", torch.arange(1, 300))], learn=True)
            pulled.sum().backward()
            if rank == 1 and step == 3 and before:
                os.kill(os.getpid(), signal.SIGKILL)
            collected = rows.collect([torch.ones(3)])
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            rows.apply(collected.rows, 0.1)
    except PeerLost as error:
        (Path(folder) / "error").write_text(f"{step}: {error}")


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_dies_is_named(tmp_path: Path, before: bool) -> None:
    port = free_port()
    ranks = [forked(die, rank, port, str(tmp_path), before) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL]
    error = (tmp_path / "error").read_text()
    assert error.startswith(f"{3 if before else 4}: rank 0 lost its peers during gather")
    assert error.endswith("rank 1 is gone")
