"""EulerNet: Adaptive Feature Interaction Learning via Euler's Formula for CTR Prediction, Tian et
al., SIGIR 2023.

A feature is a complex number for each place of its vector, mu_i e^(i v_i). A layer has n neurons,
each a product of powers of all features (explicit) beside a layer of their two parts (implicit):

    ln |y_k| = sum of a_ki ln |x_i| + b_k        arg y_k = sum of a_ki arg x_i + c_k
    re <- relu(W re) + |y| cos(arg y)        im <- relu(W im) + |y| sin(arg y)
    logit = <w, re> + <w, im> + 2 b, of the last layer

The powers a_ki are learned, and are no whole numbers.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.clicks.base import Vectors
from shoal.models.nn.dropout import Dropout


class EulerNet(Vectors):
    """Products of learned orders: adding logarithms and angles multiplies complex numbers."""

    recbole_options: ClassVar[Mapping[str, str]] = {"embedding_size": "dim"}

    class Options(Vectors.Options):
        dim: int = 16
        initial_range: float = 0.3  # first values lie within +- this: they are angles
        order_list: list[int] = field(default_factory=lambda: [30])  # neurons of each layer
        drop_ex: float = 0.3  # dropout of logarithms and angles
        drop_im: float = 0.3  # dropout of real and imaginary parts
        apply_norm: bool = False  # layer norms behind each layer
        reg_weight: float = 1e-5

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        self.scale = nn.Parameter(torch.ones(self.num_vectors, 1))
        sizes = [self.num_vectors, *options.order_list]
        self.layers = nn.ModuleList(EulerLayer(a, b, options) for a, b in pairwise(sizes))
        self.out = nn.Linear(sizes[-1] * options.dim, 1)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def logits(self, batch: Batch) -> Tensor:
        angles = self.vectors(batch)
        real, imaginary = self.scale * angles.cos(), self.scale * angles.sin()
        for layer in self.layers:
            real, imaginary = layer(real, imaginary)
        return (self.out(real.flatten(1)) + self.out(imaginary.flatten(1))).squeeze(1)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        learned = [self.scale, *self.layers.parameters(), *self.out.parameters()]
        penalty = 0.5 * sum(parameter.square().sum() for parameter in learned)
        # a term of every sample: the mean over any number of them is the same
        penalty = self.options.reg_weight * penalty * batch.size
        return replace(output, loss=output.loss + penalty)


class EulerLayer(nn.Module):
    """Complex features [b, n, dim] twice (real and imaginary parts) -> [b, neurons, dim] twice."""

    def __init__(self, number: int, neurons: int, options: EulerNet.Options):
        super().__init__()
        dim, self.neurons = options.dim, neurons
        # each neuron begins with nearly one feature alone
        self.orders = nn.Parameter((torch.randn(neurons, number) / 0.01).softmax(1))
        self.log_bias = nn.Parameter(torch.randn(neurons, dim) * 0.01)
        self.angle_bias = nn.Parameter(torch.randn(neurons, dim) * 0.01)
        self.implicit = nn.Linear(number * dim, neurons * dim)
        nn.init.normal_(self.implicit.weight, std=0.1)
        nn.init.zeros_(self.implicit.bias)
        self.explicit_dropouts = nn.ModuleList(Dropout(options.drop_ex) for _ in range(2))
        self.implicit_dropouts = nn.ModuleList(Dropout(options.drop_im) for _ in range(2))
        self.norms: nn.ModuleList | None = None
        if options.apply_norm:
            self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
        logs = 0.5 * (real.square() + imaginary.square() + 1e-8).log()
        logs = self.orders @ self.explicit_dropouts[0](logs) + self.log_bias
        angles = self.explicit_dropouts[1](torch.atan2(imaginary, real))
        angles = self.orders @ angles + self.angle_bias
        lengths = logs.exp()
        new_real = self._implicit(real, 0) + lengths * angles.cos()
        new_imaginary = self._implicit(imaginary, 1) + lengths * angles.sin()
        if self.norms is None:
            return new_real, new_imaginary
        return self.norms[0](new_real), self.norms[1](new_imaginary)

    def _implicit(self, part: Tensor, number: int) -> Tensor:
        dropped = self.implicit_dropouts[number](part).flatten(1)
        return self.implicit(dropped).relu().unflatten(1, (self.neurons, -1))
