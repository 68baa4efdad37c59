"""iALS: Collaborative Filtering for Implicit Feedback Datasets, Hu et al., ICDM 2008; in the form
of Revisiting the Performance of iALS on Item Recommendation Benchmarks, Rendle et al., RecSys 2022.

    loss = sum over taken of (<u, i> - 1)^2 + alpha * sum over all pairs of <u, i>^2
           + reg * sum of (taken + alpha * others)^nu |vector|^2

Users and items are solved for in turn. A user's vector is a function of the user's items and the
items' vectors, so users are never stored: a new one is folded in like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Retrieval
from shoal.models.nn.user_items import Taken, owners

PAIRS = 1 << 16  # outer products held at a time


class IALS(Retrieval):
    """Implicit alternating least squares."""

    trainable: ClassVar[bool] = False
    items: Tensor  # [num_items, d]

    @dataclass
    class Options(Retrieval.Options):
        embedding_size: int = 64
        epochs: int = 16
        alpha: float = 0.1  # weight of every pair, beside 1 of those taken
        reg_weight: float = 0.01
        nu: float = 1.0  # 1: who has more is held back more, 0: all alike

        def __post_init__(self) -> None:
            if self.epochs < 1 or not self.reg_weight > 0.0 or self.alpha < 0.0:
                raise ValueError(
                    f"epochs is {self.epochs}, reg_weight {self.reg_weight}, alpha {self.alpha}; "
                    "at least 1, above 0, at least 0"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = facts.num_users, facts.num_items
        self.taken = Taken(facts.train_users, facts.train_items, *sizes)
        takers = Taken(facts.train_items, facts.train_users, *sizes[::-1])
        items = torch.randn(facts.num_items, options.embedding_size)
        items *= 0.1 / options.embedding_size**0.5
        for _ in range(options.epochs):
            users = self._solve(self.taken, items)
            items = self._solve(takers, users)
        self.register_buffer("items", items)

    def _solve(self, taken: Taken, others: Tensor) -> Tensor:
        """The best vectors of all, where those of the other side are as given."""
        numbers = torch.arange(len(taken.starts) - 1)
        most = max(1, PAIRS // max(1, int(taken.starts.diff().max())))
        return torch.cat([solve(self.options, taken.lists(n), others) for n in numbers.split(most)])

    def fold_in(self, lists: Jagged) -> Tensor:
        """Vectors of users by what they took, known or new: b lists of items -> [b, d]."""
        return solve(self.options, lists, self.items)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.items[ids]


def solve(options: IALS.Options, lists: Jagged, others: Tensor) -> Tensor:
    """argmin of the loss for each list of what was taken, given vectors [n, d]: [lists, d]."""
    width, owner = others.shape[1], owners(lists)
    rows = others[lists.values]
    right = rows.new_zeros(len(lists), width).index_add(0, owner, rows)
    left = rows.new_zeros(len(lists), width * width)
    outer = (rows.unsqueeze(2) * rows.unsqueeze(1)).view(len(rows), width * width)
    left = left.index_add(0, owner, outer).view(-1, width, width)
    count = lists.lengths + options.alpha * len(others)
    reg = options.reg_weight * count.to(rows.dtype) ** options.nu
    left = left + options.alpha * (others.T @ others)
    left = left + reg.view(-1, 1, 1) * torch.eye(width, device=rows.device)
    return torch.linalg.solve(left, right)
