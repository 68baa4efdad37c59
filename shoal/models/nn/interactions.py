"""How the vectors of a sample's features meet: sums of products of all pairs, or each pair."""

import torch
from torch import Tensor, nn

from shoal.kernels.dots import dots_beside, takes_dots
from shoal.models.former_names import former_method


def sum_of_dots(vectors: Tensor) -> Tensor:
    """The dot products of all pairs i < j, summed: [b, n, d] -> [b]."""
    return sum_of_products(vectors).sum(1)


def sum_of_products(vectors: Tensor) -> Tensor:
    """The products of all pairs i < j, element by element, summed: [b, n, d] -> [b, d].

    sum over pairs of v_i * v_j  =  ((sum of v_i)^2 - sum of v_i^2) / 2, so n steps, not n^2.
    """
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1))


class Dots(nn.Module):
    """The dot products of all pairs i > j, each by itself: [b, n, d] -> [b, n * (n - 1) / 2]."""

    lower: Tensor

    def __init__(self, n: int):
        super().__init__()
        rows, columns = torch.tril_indices(n, n, -1).unbind()
        self.register_buffer("lower", rows * n + columns, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        every = torch.bmm(vectors, vectors.transpose(1, 2))  # [b, n, n]
        return every.flatten(1).index_select(1, self.lower)

    def concat_dots(self, first: Tensor, vectors: Tensor) -> Tensor:
        """[first, dots of first and all vectors]: [b, d], [b, n - 1, d] -> [b, d + pairs].

        On a GPU by one kernel, with zeros behind for `mlp.Linear` to read.
        """
        if vectors.is_cuda and takes_dots(vectors):
            return dots_beside(first, vectors)
        return torch.cat([first, self(torch.cat([first.unsqueeze(1), vectors], 1))], 1)

    beside = former_method("beside", concat_dots)
