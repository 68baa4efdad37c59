"""SubWorld: some of the ranks, who talk among themselves, whatever the others do meanwhile."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from shoal.distributed.world import Arriving, Subset, World


def cut(world: World, groups: int) -> tuple[World, World]:
    """Ranks as groups of neighbours: this rank's, and those with its place in each group.

    All ranks call it. Ranks 0 1 2 3 as two groups: 0 1 | 2 3, and 0 2 | 1 3.
    """
    group_size = world.size // groups
    assert group_size * groups == world.size
    if groups == 1:
        return world, World(world.device)
    ranks = [list(range(g * group_size, (g + 1) * group_size)) for g in range(groups)]
    return _own_part(world, ranks), _own_part(world, [list(some) for some in zip(*ranks)])


def _own_part(world: World, parts: list[list[int]]) -> World:
    """This rank's part, of parts that contain every rank once."""
    if len(parts) == world.size:
        return World(world.device)
    subsets = [world.subset(ranks) for ranks in parts]  # all ranks make every one
    return SubWorld(world, next(one for one in subsets if world.rank in one.ranks))


class SubWorld(World):
    """One rank of a subset; every collective is an all-to-all among its ranks."""

    def __init__(self, whole: World, subset: Subset):
        self.whole, self._subset, self.device = whole, subset, whole.device
        self._made_group = False
        self.rank, self.size = subset.ranks.index(whole.rank), len(subset.ranks)
        self.host = whole.host

    @property
    def bytes_sent(self) -> int:
        return self.whole.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self.whole.bytes_sent = value

    def start_all_to_all(
        self,
        tensor: Tensor,
        sent: list[int],
        received: list[int],
        out: Tensor | None = None,
        among: Subset | None = None,
    ) -> Arriving:
        assert among is None
        return self.whole.start_all_to_all(tensor, sent, received, out, self._subset)

    def stack(self, tensor: Tensor) -> Tensor:
        flat = tensor.reshape(1, -1)
        ones = [1] * self.size
        received = self.all_to_all(flat.expand(self.size, -1).contiguous(), ones, ones)
        return received.view(self.size, *tensor.shape)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Every member adds up a slice, in order of rank: all have the same bits."""
        flat, size = tensor.reshape(-1), self.size
        bounds = [len(flat) * r // size for r in range(size + 1)]
        lengths = [b - a for a, b in pairwise(bounds)]
        own_length = lengths[self.rank]
        first, *others = self.all_to_all(flat, lengths, [own_length] * size).split(
            [own_length] * size
        )
        total = sum(others, first)
        sums = self.all_to_all(total.repeat(size), [own_length] * size, lengths)
        return tensor.copy_(sums.view_as(tensor))

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        counts = [len(tensor) for tensor in tensors]
        lengths = self.stack(torch.tensor(counts, device=self.device)).tolist()
        joined = []
        for number, tensor in enumerate(tensors):
            sent = [len(tensor)] * self.size
            received = [some[number] for some in lengths]
            joined.append(self.all_to_all(torch.cat([tensor] * self.size), sent, received))
        return joined, lengths

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1, device=self.device))
