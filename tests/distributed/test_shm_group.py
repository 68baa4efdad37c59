"""Collectives through shared memory and by sockets: the same answers, and the same errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import forked
from ranks import free_port, run_ranks
from torch import Tensor

from shoal.distributed.rank_variables import set_rank
from shoal.distributed.shm_group import RING, can_share_memory
from shoal.distributed.world import PeerLost, World, connect

# Elsewhere all ranks talk by sockets, which the other cases here show.
needs_memory = pytest.mark.skipif(
    not can_share_memory(), reason="no native core, or a system without memfd and pidfd"
)
WAYS = [
    pytest.param(2, True, marks=[needs_memory, pytest.mark.slow], id="memory-2"),
    pytest.param(3, True, marks=needs_memory, id="memory-3"),
    pytest.param(3, False, id="sockets-3"),
]
MUCH = RING // 4 + 1000  # floats: more than the ring between two ranks holds


def numbers(rank: int, count: int) -> Tensor:
    """Whole numbers, so that sums are exact in any order."""
    return (torch.arange(count) * 7 + rank * 13) % 1009 - 500


def collectives(world: World) -> list[Any]:
    rank, size = world.rank, world.size
    right: list[Any] = [world.shm is not None]
    for count in (0, 1, 5, 20_000, MUCH):
        for dtype in (torch.float32, torch.float64, torch.int64):
            mine = numbers(rank, count).to(dtype)
            total = sum(numbers(r, count) for r in range(size)).to(dtype)
            right.append(torch.equal(world.all_reduce(mine), total))
        both = world.stack(numbers(rank, count).view(-1, 1).float())
        want = torch.stack([numbers(r, count).view(-1, 1) for r in range(size)]).float()
        right.append(torch.equal(both, want))
        gathered = world.all_gather(numbers(rank, count + rank))
        right.append(torch.equal(gathered, torch.cat([numbers(r, count + r) for r in range(size)])))
    transposed = numbers(rank, 600).view(20, 30).float().t()
    world.all_reduce(transposed)  # in place, whatever the strides
    right.append(
        torch.equal(transposed, sum(numbers(r, 600) for r in range(size)).view(20, 30).t())
    )
    for count in (0, 3, MUCH // 2):
        right.append(all_to_all(world, count))
    if world.shm is not None:
        right += [sum_of_floats(world, 1000), sum_of_floats(world, RING)]
    world.barrier()
    return right


def all_to_all(world: World, count: int) -> bool:
    """Three under way at once, with other collectives between; one that is never waited for."""
    rank, size = world.rank, world.size
    sent = [(count + r + rank) % (count + 2) for r in range(size)]
    received = [(count + r + rank) % (count + 2) for r in range(size)]

    def rows(sender: int, receiver: int, length: int) -> Tensor:
        return numbers(10 * sender + receiver, 3 * length).view(length, 3).float()

    mine = torch.cat([rows(rank, r, n) for r, n in enumerate(sent)])
    want = torch.cat([rows(r, rank, n) for r, n in enumerate(received)])
    under_way = [world.start_all_to_all(mine, sent, received) for _ in range(3)]
    total = world.all_reduce(torch.ones(MUCH))
    (others,), lengths = world.gather([numbers(rank, rank + count)])
    world.start_all_to_all(mine, sent, received)
    first, last = under_way[0].wait(), under_way[2].wait()
    sums = bool((total == size).all())
    parts = others.split([length for (length,) in lengths])
    same = all(torch.equal(o, numbers(r, r + count)) for r, o in enumerate(parts))
    return sums and same and torch.equal(first, want) and torch.equal(last, want)


def sum_of_floats(world: World, count: int) -> bool:
    """In order of rank, on every rank the same bits."""
    torch.manual_seed(world.rank)
    mine = torch.randn(count)
    everyone = world.stack(mine)
    total = everyone[0]
    for one in everyone[1:]:
        total = total + one
    return torch.equal(world.all_reduce(mine), total)


@pytest.mark.parametrize(("size", "shared_memory"), WAYS)
def test_answers(tmp_path: Path, size: int, shared_memory: bool) -> None:
    for right in run_ranks(collectives, size, tmp_path, shared_memory=shared_memory):
        assert right == [shared_memory] + [True] * (5 * 5 + 1 + 3 + 2 * shared_memory)


def lose(rank: int, port: int, folder: str) -> None:
    """Rank 1 is killed; the others wait for what it would have sent."""
    set_rank(rank, 3, rank, 3, "127.0.0.1", port)
    world = connect("cpu", 60.0, threads=1)
    world.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        world.all_reduce(torch.ones(RING))
    except PeerLost as error:
        (Path(folder) / f"rank-{rank}").write_text(str(error))


@needs_memory
def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    port = free_port()
    ranks = [forked(lose, rank, port, str(tmp_path)) for rank in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL, 0]
    for rank in (0, 2):
        told = (tmp_path / f"rank-{rank}").read_text()
        assert told.startswith(f"rank {rank} lost its peers during all_reduce: rank ")
        assert told.endswith(" is gone")
    assert "rank 1 is gone" in (tmp_path / "rank-0").read_text() + (tmp_path / "rank-2").read_text()
