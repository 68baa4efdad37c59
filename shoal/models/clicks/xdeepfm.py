"""xDeepFM: Combining Explicit and Implicit Feature Interactions, Lian et al., KDD 2018.

The compressed interaction network makes vectors of products of one degree more in each layer:

    x_k of layer l+1 = sum over i, j of W_kij (x_i of layer l) * v_j
    logit = LR + <w, sums of all vectors of all layers> + tower of [v_1, v_2, ...]
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Penalised
from shoal.models.clicks.fm import FM
from shoal.models.clicks.lr import LR
from shoal.models.nn.mlp import Tower, begin_normal


class xDeepFM(Penalised, FM):
    """All vectors of a layer go on to the next one and to the end, or half of them to each."""

    recbole_options: ClassVar[Mapping[str, str]] = {"cin_layer_size": "cross_layers"}

    class Options(Penalised.Options, FM.Options):
        initial_range: float = 0.1  # first values lie within +- this; near 0 their products vanish
        # widths of the layers that multiply features by each other
        cross_layers: list[int] = field(default_factory=lambda: [64, 64])
        # true: all vectors of a layer go on, and to the end; false: half of them each
        direct: bool = True
        layers: list[int] = field(default_factory=lambda: [400, 400])
        dropout: float = 0.0
        reg_weight: float = 0.0  # weight of the norms of the layers' weights

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        number, before = self.num_vectors, self.num_vectors
        self.cross = nn.ModuleList()
        ends: list[int] = []  # how many vectors of each layer go to the end
        for size in options.cross_layers:
            self.cross.append(nn.Linear(before * number, size, bias=False))
            last = len(ends) == len(options.cross_layers) - 1
            ends.append(size if options.direct or last else size - size // 2)
            before = size if options.direct else size // 2
        self.ends = ends
        self.out = nn.Linear(sum(ends), 1, bias=False)
        begin_normal(self)
        self.deep = Tower([number * options.dim, *options.layers], options.dropout)

    def penalised(self) -> list[Tensor]:
        return [*self.cross.parameters(), *self.deep.parameters()]

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.vectors(batch)
        columns = vectors.transpose(1, 2)  # [b, dim, n]
        layer, sums = columns, []
        for cross, end in zip(self.cross, self.ends):
            every = (layer.unsqueeze(3) * columns.unsqueeze(2)).flatten(2)  # [b, dim, h * n]
            products = cross(every)
            sums.append(products[..., -end:].sum(1))
            layer = products if self.options.direct else products[..., : products.shape[2] // 2]
        crossed = self.out(torch.cat(sums, 1)).squeeze(1)
        return LR.logits(self, batch) + crossed + self.deep(vectors.flatten(1))
