"""A perceptron of all pairs of users and items, whose first layer is a sum of a part of each.

Pairs are made in blocks of users that are alike and items that are alike. Within a block most units
are above 0 for every pair or for none: the first pass on what they are given, which is a sum of a
user's part and an item's part and so is made once for each of them, not for each pair; the second
say nothing. Products of matrices are left with the units that relu cuts for some of the pairs.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

USERS = 64  # of a block: more are less alike
PAIRS = 1 << 14  # of a block: fewer cost more in calls than in products


def scores_of_all(
    users: Tensor, items: Tensor, layers: list[tuple[Tensor, Tensor]], out: Tensor
) -> Tensor:
    """<out, relu layers of relu(user + item)> of all pairs: [b, w], [n, w] -> [b, n].

    layers: weights [w', w] and biases [w'] of those behind the first; out: [the last w']
    """
    if not (len(users) and len(items)):
        return users.new_zeros(len(users), len(items))
    user_order, item_order = alike(users), alike(items)
    users, items = users[user_order].T, items[item_order].T  # pairs are columns
    step = max(1, PAIRS // min(USERS, users.shape[1]))
    item_blocks = [_Side(part) for part in items.split(step, 1)]
    last = [*layers, (out.unsqueeze(0), out.new_zeros(1))]
    rows = [
        torch.cat([_block(side, other, last) for other in item_blocks])
        for side in map(_Side, users.split(USERS, 1))
    ]
    scores = torch.cat(rows, 1)  # [n, b]
    return scores[item_order.argsort()].T[user_order.argsort()]


def alike(vectors: Tensor) -> Tensor:
    """An order in which neighbours are alike: along the direction in which vectors differ most."""
    apart = vectors - vectors.mean(0)
    along = apart[apart.square().sum(1).argmax()]
    for _ in range(4):  # the power method
        along = torch.nn.functional.normalize(apart.T @ (apart @ along), dim=0)
    return (apart @ along).argsort(stable=True)


class _Side:
    """What the users or the items of a block give to each unit: [w, n], and its bounds [w]."""

    def __init__(self, given: Tensor):
        self.given = given.contiguous()

    @cached_property
    def bounds(self) -> Tensor:
        """The lowest and the highest, [2, w]."""
        return torch.stack(self.given.aminmax(dim=1))


def _block(user: _Side, item: _Side, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Scores [items, users] of one block.

    What a layer is given is always the sum of a user's part, an item's part and matrices times what
    relu left of mixed units before: each of those is [units, items * users], from 0 to its highest.
    """
    made: list[tuple[Tensor, Tensor]] = []  # of mixed units: what is left of them, its highest
    matrices: list[Tensor] = []  # what the layer makes of each of those, [w, units]
    for weight, bias in layers:
        low, high = user.bounds + item.bounds
        for matrix, (_, most) in zip(matrices, made):
            low, high = low + matrix.clamp(max=0) @ most, high + matrix.clamp(min=0) @ most
        above = low >= 0
        on = above.nonzero().squeeze(1)
        # What is not a number is among the mixed ones, and goes on.
        mixed = (above | (high <= 0)).logical_not_().nonzero().squeeze(1)
        given = (item.given[mixed].unsqueeze(2) + user.given[mixed].unsqueeze(1)).flatten(1)
        for matrix, (left, _) in zip(matrices, made):
            given.addmm_(matrix[mixed], left)
        passing = weight[:, on]
        matrices = [*(passing @ matrix[on] for matrix in matrices), weight[:, mixed]]
        made.append((given.relu_(), high[mixed]))
        user = _Side(torch.addmm(bias.unsqueeze(1), passing, user.given[on]))
        item = _Side(passing @ item.given[on])
    scores = item.given.T + user.given
    for matrix, (left, _) in zip(matrices, made):
        scores += (matrix[0] @ left).view(scores.shape)
    return scores
