"""SubWorld: some ranks talk among themselves, while others talk more, or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

from shoal.distributed.subworld import cut
from shoal.distributed.world import World


def everything(world: World) -> dict[str, Any]:
    """Two groups of two ranks; the second group talks more often than the first."""
    group, peers = cut(world, 2)
    mine = torch.tensor([world.rank + 1.0])
    found: dict[str, Any] = {
        "who": [group.rank, group.size, group.is_main, peers.rank, peers.size],
        "sums": [float(part.all_reduce(mine.clone())) for part in (group, peers)],
        "stacked": group.stack(torch.tensor([[world.rank, 7]])).tolist(),
    }
    for _ in range(3 * peers.rank):
        group.barrier()
    lists = [torch.arange(world.rank), torch.full((world.rank, 2), 0.5)]
    (numbers, halves), lengths = peers.gather(lists)
    found["gathered"] = [numbers.tolist(), list(halves.shape), lengths]
    sent = [1, 2] if group.rank == 0 else [0, 1]
    received = [1, 0] if group.rank == 0 else [2, 1]
    before = world.bytes_sent
    numbers = torch.arange(sum(sent)) + 10 * world.rank
    found["moved"] = group.all_to_all(numbers, sent, received).tolist()
    found["bytes"] = world.bytes_sent - before
    wide = torch.arange(5.0) * world.rank  # not as many as ranks, or a multiple
    found["wide"] = peers.all_reduce(wide).tolist()
    found["all"] = float(world.all_reduce(mine))
    return found


@pytest.mark.parametrize("shared_memory", [True, False])
def test_parts_of_four_ranks(tmp_path: Path, shared_memory: bool) -> None:
    ranks = run_ranks(everything, 4, tmp_path, shared_memory=shared_memory)
    for rank, found in enumerate(ranks):
        place, group = rank % 2, rank // 2
        low, high = 2 * group, 2 * group + 1
        assert found["who"] == [place, 2, place == 0, group, 2]
        assert found["sums"] == [low + high + 2, 2 * place + 4]
        assert found["stacked"] == [[[low, 7]], [[high, 7]]]
        numbers = [*range(place), *range(place + 2)]
        assert found["gathered"] == [numbers, [len(numbers), 2], [[place] * 2, [place + 2] * 2]]
        of_low, of_high = [20 * group, 20 * group + 1, 20 * group + 2], 20 * group + 10
        assert found["moved"] == (of_low[:1] if place == 0 else [*of_low[1:], of_high])
        assert found["bytes"] == (16 if place == 0 else 0)
        assert found["wide"] == [(2 * place + 2) * k for k in range(5)]
        assert found["all"] == 10.0


def test_one_group_and_groups_of_one(tmp_path: Path) -> None:
    assert cut(World(), 1)[1].size == 1
    for found in run_ranks(edges, 2, tmp_path):
        assert found == [2, 1, 1, 2, 3.0]


def edges(world: World) -> list[Any]:
    whole, nobody = cut(world, 1)
    alone, peers = cut(world, 2)
    total = float(peers.all_reduce(torch.tensor([world.rank + 1.0])))
    return [whole.size, nobody.size, alone.size, peers.size, total]
