"""EASE: Embarrassingly Shallow Autoencoders for Sparse Data, Steck, WWW 2019.

The weights that best tell a user's items from the others, in closed form:

    P = (X^T X + reg I)^-1        W = I - P / diag(P), with zeros on the diagonal

Where users are fewer than items, their smaller matrix is inverted, and W is the same:

    S = X^T (X X^T + reg I)^-1 X        W = S / (1 - diag(S)), with zeros on the diagonal

Matrices of more than 20,000 rows are inverted in single precision: half the memory and the time.
"""

import torch
from torch import Tensor

from shoal.models.base import Facts
from shoal.models.general.item_weights import ItemWeights
from shoal.models.nn.closed_form import check_memory, expect_solution, negative_inverse_
from shoal.models.nn.user_items import UserItems, summed, takers_of_items
from shoal.models.options import Positive

LARGE = 20_000  # rows of a matrix that is inverted in single precision


class EASE(ItemWeights):
    """A linear autoencoder without a hidden layer."""

    weights: Tensor  # [num_items, num_items], row: the item that is scored

    class Options(ItemWeights.Options):
        reg_weight: Positive = 250.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        expect_solution(self, "weights", facts.num_items, facts.num_items)

    def solve(self) -> None:
        num_users, num_items = self.facts.num_users, self.facts.num_items
        inverted = min(num_users, num_items)
        size = 8 if inverted <= LARGE else 4
        in_place = size == 4 and inverted == num_items
        num_bytes = size * inverted**2 + 4 * num_items**2 * (not in_place)
        check_memory(f"EASE of {num_items:,} items", num_bytes)
        weights = self._by_users() if num_users < num_items else self._by_items()
        self.weights = weights.fill_diagonal_(0.0)

    def _inverse(self, taken: UserItems) -> Tensor:
        """-(X^T X + reg I)^-1, where X has a column for each item of `taken`."""
        count = taken.num_items
        dtype = torch.float64 if count <= LARGE else torch.float32
        matrix = torch.empty(count, count, dtype=dtype)
        for first, block in taken.common():
            matrix[first : first + len(block)] = block
        matrix.diagonal().add_(self.options.reg_weight)
        return negative_inverse_(matrix, "EASE")

    def _by_items(self) -> Tensor:
        """W, but for its diagonal."""
        matrix = self._inverse(self.taken)
        scales = -matrix.diagonal().float().unsqueeze(1)
        weights = matrix if matrix.dtype == torch.float32 else torch.empty(matrix.shape)
        for own, rows in zip(weights.split(1 << 10), matrix.split(1 << 10)):
            own.copy_(rows)
        weights /= scales
        return weights

    def _by_users(self) -> Tensor:
        """W, but for its diagonal, from the users' matrix, some items at a time."""
        takers = takers_of_items(self.facts)
        matrix = self._inverse(takers)
        items = torch.arange(self.facts.num_items)
        every = takers.lists(items)
        weights = torch.empty(len(items), len(items))
        for own, scored in zip(weights.split(1 << 10), items.split(1 << 10)):
            rows = summed(matrix, takers.lists(scored))  # [b, num_users]
            block = summed(rows.T.contiguous(), every)  # -S: [num_items, b]
            block /= -1.0 - block[scored].diagonal()
            own.copy_(block.T)
        return weights

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.weights[ids]
