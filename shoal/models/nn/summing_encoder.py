"""SummingEncoder: the mean and variance of a latent vector, by layers that read all before them.

x(1) = norm(silu(first + bias))    x(k+1) = norm(silu(W x(k) + x(1) + ... + x(k)))
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.nn.mlp import begin_xavier


class SummingEncoder(nn.Module):
    """Five layers, each of which reads the sum of all before it: [b, hidden] -> [b, latent] twice.

    What comes in is the first product, which is a sum of rows.
    """

    def __init__(self, hidden: int, latent: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, eps=0.1) for _ in range(5))
        self.out = nn.Linear(hidden, 2 * latent)
        begin_xavier(self)

    def forward(self, first: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norms[0](F.silu(first + self.bias))
        before = x
        for layer, norm in zip(self.layers, list(self.norms)[1:]):
            x = norm(F.silu(layer(x) + before))
            before = before + x
        mean, logvar = self.out(x).chunk(2, 1)
        return mean, logvar
