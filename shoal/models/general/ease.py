"""EASE: Embarrassingly Shallow Autoencoders for Sparse Data, Steck, WWW 2019.

The weights that best tell a user's items from the others, in closed form:

    P = (X^T X + reg I)^-1        W = I - P / diag(P), with zeros on the diagonal
"""

import torch
from torch import Tensor

from shoal.models.base import Facts
from shoal.models.general.item_weights import ItemWeights
from shoal.models.nn.closed_form import check_memory, expect_solution, negative_inverse_
from shoal.models.options import Positive


class EASE(ItemWeights):
    """A linear autoencoder without a hidden layer."""

    weights: Tensor  # [num_items, num_items], row: the item that is scored

    class Options(ItemWeights.Options):
        reg_weight: Positive = 250.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        expect_solution(self, "weights", facts.num_items, facts.num_items)

    def solve(self) -> None:
        count = self.facts.num_items
        check_memory(f"EASE of {count:,} items", 12 * count**2)
        matrix = torch.empty(count, count, dtype=torch.float64)
        for first, block in self.taken.common():
            matrix[first : first + len(block)] = block
        matrix.diagonal().add_(self.options.reg_weight)
        matrix = negative_inverse_(matrix, "EASE")
        weights = torch.empty(count, count)
        for own, rows in zip(weights.split(1 << 10), matrix.split(1 << 10)):
            own.copy_(rows)
        weights /= -matrix.diagonal().float().unsqueeze(1)
        self.weights = weights.fill_diagonal_(0.0)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.weights[ids]
