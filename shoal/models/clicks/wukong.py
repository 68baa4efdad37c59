"""Wukong: Towards a Scaling Law for Large-Scale Recommendation, Zhang et al., ICML 2024.

Layers of factorization machines: from vectors X [n, d] each makes `crossed` new ones of products
and `linear` new ones of sums, so that l layers hold products of up to 2^l features:

    crossed  = relu layers of norm of flat(X X^T Y), as vectors        linear = W X
    X        <- norm([crossed, linear] + W' X)        logit = tower of X
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.nn.mlp import MLP, Tower, begin_normal


class WukongLayer(nn.Module):
    """[b, n, dim] -> [b, crossed + linear, dim]."""

    def __init__(self, n: int, dim: int, crossed: int, linear: int, rank: int, inner: int):
        super().__init__()
        self.crossed, self.dim = crossed, dim
        self.compress = nn.Parameter(torch.randn(n, rank) * n**-0.5)
        self.dots_norm = nn.LayerNorm(n * rank)
        self.cross = nn.Sequential(MLP([n * rank, inner]), nn.Linear(inner, crossed * dim))
        self.linear = nn.Linear(n, linear, bias=False)
        same = n == crossed + linear
        self.residual = nn.Identity() if same else nn.Linear(n, crossed + linear, bias=False)
        self.norm = nn.LayerNorm(dim)
        begin_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        columns = x.transpose(1, 2)  # [b, dim, n]
        dots = torch.bmm(x, columns @ self.compress).flatten(1)  # X (X^T Y): no n * n
        crossed = self.cross(self.dots_norm(dots)).view(x.shape[0], self.crossed, self.dim)
        linear = self.linear(columns).transpose(1, 2)
        before = self.residual(columns).transpose(1, 2)
        return self.norm(torch.cat([crossed, linear], 1) + before)


class Wukong(Vectors):
    """A stack of factorization machines below a perceptron."""

    class Options(Vectors.Options):
        dim: int = 16
        initial_range: float = 0.1
        num_layers: int = 2
        crossed: int = 8  # number of vectors that a layer makes of products
        linear: int = 8  # number of vectors that are weighted sums of the inputs
        rank: int = 8  # columns of the matrix Y that compresses the products
        inner: int = 128  # width of a layer's perceptron
        layers: list[int] = field(default_factory=lambda: [256, 128])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        self.stack = nn.Sequential()
        number = self.num_vectors
        for _ in range(options.num_layers):
            layer = WukongLayer(
                number,
                options.dim,
                crossed=options.crossed,
                linear=options.linear,
                rank=options.rank,
                inner=options.inner,
            )
            self.stack.append(layer)
            number = options.crossed + options.linear
        self.deep = Tower([number * options.dim, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        return self.deep(self.stack(self.vectors(batch)).flatten(1))
