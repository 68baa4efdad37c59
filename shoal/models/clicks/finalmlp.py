"""FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, Mao et al., AAAI 2023.

Two perceptrons read the features through separate gates, and meet in a bilinear form:

    s_k   = relu layers of 2 sigmoid(gate_k(x)) * x        for k = 1, 2
    logit = b + <w_1, s_1> + <w_2, s_2> + sum over heads of s_1h^T W_h s_2h
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat
from shoal.models.nn.mlp import MLP, begin_normal


class FinalMLP(Flat):
    """Gates read all features."""

    class Options(Flat.Options):
        layers: list[int] = field(default_factory=lambda: [400, 400])
        # widths of the second perceptron's layers
        second_layers: list[int] = field(default_factory=lambda: [400])
        # widths inside the gates that choose features for each
        gate_layers: list[int] = field(default_factory=lambda: [64])
        heads: int = 1  # parts that the two outputs are multiplied in
        dropout: float = 0.0

        def __post_init__(self) -> None:
            for sizes in (self.layers, self.second_layers):
                if not sizes or sizes[-1] % self.heads:
                    raise ValueError(
                        f"FinalMLP splits its last layers into {self.heads} heads of equal width, "
                        f"and they are {sizes}; make the last a multiple of model.heads"
                    )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = self.flat_width
        self.gates, self.streams = nn.ModuleList(), nn.ModuleList()
        for layers in (options.layers, options.second_layers):
            gate = [width, *options.gate_layers]
            self.gates.append(nn.Sequential(MLP(gate), nn.Linear(gate[-1], width)))
            self.streams.append(MLP([width, *layers], options.dropout))
        ends = options.layers[-1], options.second_layers[-1]
        self.out = nn.ModuleList([nn.Linear(ends[0], 1), nn.Linear(ends[1], 1, bias=False)])
        begin_normal(self)
        first, second = (end // options.heads for end in ends)
        form = torch.randn(options.heads, first, second) * (first * second) ** -0.5
        self.form = nn.Parameter(form)

    def logits(self, batch: Batch) -> Tensor:
        x, heads = self.features(batch), self.options.heads
        first, second = (
            stream(2.0 * gate(x).sigmoid() * x) for gate, stream in zip(self.gates, self.streams)
        )
        alone = self.out[0](first) + self.out[1](second)
        sent = torch.einsum("bhi,hij->bhj", first.unflatten(1, (heads, -1)), self.form)
        return alone.squeeze(1) + (sent * second.unflatten(1, (heads, -1))).sum((1, 2))
