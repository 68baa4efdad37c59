"""World.gather: everybody's tensors, whatever their lengths, also when they change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import free_port, run_ranks
from torch import Tensor

from shoal.distributed.world import Group, World

LENGTHS = [5, 3, 0, 400, 1 << 14, 7]


def tensors(rank: int, length: int) -> list[Tensor]:
    count = length + 2 * rank if length else 0
    return [
        torch.arange(count * 3).view(count, 3).float() + 100 * rank,
        torch.arange(count) - rank,
        (torch.arange(max(0, count - 1)) % 2).bool(),
    ]


def everything(world: World) -> list[bool]:
    right = []
    for length in LENGTHS:
        got, lengths = world.gather(tensors(world.rank, length))
        want = [tensors(rank, length) for rank in range(world.size)]
        right += [
            torch.equal(g, torch.cat(w)) and g.dtype == w[0].dtype for g, w in zip(got, zip(*want))
        ]
        right.append(lengths == [[len(one) for one in some] for some in want])
    before = world.bytes_sent
    world.gather(tensors(world.rank, 0))
    right.append(world.bytes_sent - before == 3 * 8)  # sizes alone
    right.append(world.gather([]) == ([], [[]] * world.size))
    return right


@pytest.mark.parametrize("shared_memory", [pytest.param(True, marks=pytest.mark.slow), False])
def test_all_ranks_have_everything(tmp_path: Path, shared_memory: bool) -> None:
    for right in run_ranks(everything, 3, tmp_path, shared_memory=shared_memory):
        assert right == [True] * (len(LENGTHS) * (3 + 1) + 2)


def test_a_group_of_one_has_what_it_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one line is contiguous whatever its width, and counts in front of it are int64."""
    given = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    world = Group("cpu", 30.0, shared_memory=False)
    try:
        assert all(everything(world))
    finally:
        world.close()
