"""MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models, Wang et al., 2021.

Masks that all features together decide multiply the features, or the layer before:

    mask  = W_2 relu(W_1 [v_1, v_2, ...])        block(x) = relu(norm(W (mask * x)))
    parallel   logit = tower of [block(norm of v), block(norm of v), ...]
    serial     logit = <w, block(... block(norm of v))>
"""

from dataclasses import field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.nn.mlp import Tower, begin_normal


class MaskBlock(nn.Module):
    """relu(norm(W (mask * x))), the mask made of the vectors: [b, width] -> [b, size]."""

    def __init__(self, vectors: int, reduction: float, width: int, size: int):
        super().__init__()
        inner = max(1, int(vectors * reduction))
        out = nn.Linear(inner, width)
        self.mask = nn.Sequential(nn.Linear(vectors, inner), nn.ReLU(), out)
        self.linear = nn.Linear(width, size, bias=False)
        self.norm = nn.LayerNorm(size)
        begin_normal(self)
        nn.init.ones_(out.bias)  # a mask begins near 1

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(self.mask(vectors) * x)))


class MaskNet(Vectors):
    """Blocks beside each other, or one after the other."""

    class Options(Vectors.Options):
        # parallel: blocks side by side; serial: one upon the other
        structure: Literal["parallel", "serial"] = "parallel"
        blocks: list[int] = field(default_factory=lambda: [64, 64, 64])  # widths of the blocks
        reduction: float = 1.0  # width inside the mask, as a share of that of all vectors
        # structure parallel: widths of the perceptron above the blocks
        layers: list[int] = field(default_factory=lambda: [400, 400])
        dropout: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        width = self.num_vectors * options.dim
        self.norm = nn.LayerNorm(options.dim)
        self.serial = options.structure == "serial"
        inputs = [width, *options.blocks[:-1]] if self.serial else [width] * len(options.blocks)
        self.blocks = nn.ModuleList(
            MaskBlock(width, options.reduction, before, size)
            for before, size in zip(inputs, options.blocks)
        )
        sizes = [options.blocks[-1]] if self.serial else [sum(options.blocks), *options.layers]
        self.deep = Tower(sizes, options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        every, x = vectors.flatten(1), self.norm(vectors).flatten(1)
        if not self.serial:
            return self.deep(torch.cat([block(x, every) for block in self.blocks], 1))
        for block in self.blocks:
            x = block(x, every)
        return self.deep(x)
