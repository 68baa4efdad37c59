"""k-means: centres of groups of vectors, groups of any size or of equal ones.

Equal groups (`balanced_k_means`): each vector asks for the nearest centre that has room, and a
centre keeps those that are nearest to it; who was turned away asks the next one.
"""

import torch
from torch import Tensor

BLOCK = 1 << 15  # vectors whose distances to all centres are held at a time
WISHES = 32  # centres that a vector asks, before distances are computed again


def nearest(vectors: Tensor, centres: Tensor) -> Tensor:
    """The centre that is nearest to each vector: [n, d], [k, d] -> [n]."""
    lengths = centres.square().sum(1)
    parts = [(lengths - 2.0 * part @ centres.T).argmin(1) for part in vectors.split(BLOCK)]
    return torch.cat(parts) if parts else vectors.new_zeros(0, dtype=torch.int64)


def k_means(
    vectors: Tensor, count: int, rounds: int = 10, generator: torch.Generator | None = None
) -> Tensor:
    """Centres of so many groups of vectors: [n, d] -> [count, d].

    generator: draws where groups begin; None: torch's own.
    """
    centres = _first_centres(vectors, count, generator)
    for _ in range(rounds):
        centres = _means(vectors, nearest(vectors, centres), centres)
    return centres


def balanced_k_means(
    vectors: Tensor, count: int, rounds: int = 10, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Centres of groups of equal sizes, and the group of each vector: [count, d], [n].

    Sizes differ by less than n / count rounded up: no group is larger than that.
    """
    centres = _first_centres(vectors, count, generator)
    group = _equal_groups(vectors, centres)
    for _ in range(rounds):
        centres = _means(vectors, group, centres)
        group = _equal_groups(vectors, centres)
    return centres, group


def _first_centres(vectors: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    order = torch.randperm(len(vectors), generator=generator)
    return vectors[order[torch.arange(count) % len(vectors)]].clone()


def _means(vectors: Tensor, group: Tensor, centres: Tensor) -> Tensor:
    """The mean of each group; a centre without vectors stays."""
    sums = torch.zeros_like(centres).index_add_(0, group, vectors)
    counts = torch.bincount(group, minlength=len(centres)).unsqueeze(1)
    return torch.where(counts > 0, sums / counts.clamp(min=1), centres)


def _equal_groups(vectors: Tensor, centres: Tensor) -> Tensor:
    """The group of each vector [n]; a group has at most n / k vectors, rounded up."""
    room = torch.full((len(centres),), -(-len(vectors) // len(centres)))
    group = torch.empty(len(vectors), dtype=torch.int64)
    waiting, (wishes, distances) = torch.arange(len(vectors)), _wishes(vectors, centres)
    while len(waiting):  # each round fills a group, or is the last
        has_room = room[wishes] > 0
        if not bool(has_room.any(1).all()):  # of the groups with room others are nearest now
            open_groups = room.nonzero().squeeze(1)
            wishes, distances = _wishes(vectors[waiting], centres[open_groups])
            wishes = open_groups[wishes]
            has_room = torch.ones_like(wishes, dtype=torch.bool)
        first = has_room.int().argmax(1, keepdim=True)
        wanted = wishes.gather(1, first).squeeze(1)
        order = distances.gather(1, first).squeeze(1).argsort(stable=True)
        order = order[wanted[order].argsort(stable=True)]  # by group, the nearest first
        counts = torch.bincount(wanted, minlength=len(centres))
        rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[wanted[order]]
        kept = rank < room[wanted[order]]
        group[waiting[order[kept]]] = wanted[order[kept]]
        room -= torch.minimum(counts, room)
        left = order[~kept].sort().values
        waiting, wishes, distances = waiting[left], wishes[left], distances[left]
    return group


def _wishes(vectors: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centres of each vector, the nearest first, and how far: [n, at most WISHES]."""
    lengths, count = centres.square().sum(1), min(WISHES, len(centres))
    wishes, distances = [], []
    for part in vectors.split(BLOCK):
        nearest_centres = (lengths - 2.0 * part @ centres.T).topk(count, largest=False)
        wishes.append(nearest_centres.indices)
        distances.append(nearest_centres.values + part.square().sum(1, keepdim=True))
    return torch.cat(wishes), torch.cat(distances)
