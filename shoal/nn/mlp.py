"""The multi-layer perceptron of this field: dropout, linear, relu, for every layer."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


class MLP(nn.Sequential):
    """[..., sizes[0]] -> [..., sizes[-1]]; the last layer is activated as well."""

    def __init__(self, sizes: list[int], dropout: float = 0.0):
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            layers += [nn.Dropout(dropout), nn.Linear(width_in, width_out), nn.ReLU()]
        super().__init__(*layers)
