"""MultiVAE: Variational Autoencoders for Collaborative Filtering, Liang et al., WWW 2018.

A user's items are drawn from a multinomial whose logits a network makes of a latent vector, which
another network makes of the items:

    h = tanh(sum of item rows / sqrt(items))    mu, ln sigma^2 = W h    z = mu + sigma * normal
    loss = - sum of ln softmax(decoder(z))_i over the items + beta * KL(q(z) | N(0, 1))
"""

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Jagged, Output
from shoal.models.folding import FoldingLayer, LayersFolding, layers_of
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.nn.dropout import normal_like
from shoal.models.nn.mlp import begin_xavier


class MultiVAE(Autoencoder):
    """A variational autoencoder of what a user took."""

    updates: Tensor
    recbole_options: ClassVar[Mapping[str, str]] = {"mlp_hidden_size": "mlp_hidden_dimension"}

    class Options(Autoencoder.Options):
        # widths of the encoder's layers; the decoder's are their mirror
        mlp_hidden_dimension: list[int] = field(default_factory=lambda: [600])
        anneal_cap: float = 0.2  # largest weight of the prior (beta), which grows from 0 to it
        # steps after which the weight of the prior would be 1 (anneal_cap stops it)
        total_anneal_steps: int = 200_000
        # factor of sigma in the noise on the latent vector in training; RecBole has 0.01
        noise: float = 1.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [*options.mlp_hidden_dimension, options.latent_dimension]
        self.make_tables(sizes[0], sizes[0])
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        self.encoder = layers([*sizes[:-1], 2 * sizes[-1]])
        self.decoder = nn.Sequential(layers(sizes[::-1]), nn.Tanh())
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def posterior(self, lists: Jagged, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.pooled(lists, kept) + self.bias)
        mean, logvar = self.encoder(hidden).chunk(2, 1)
        return mean, logvar

    def decode(self, latent: Tensor) -> Tensor:
        return self.decoder(latent)

    def folding(self) -> LayersFolding | None:
        kept = ("posterior", "encode", "decode", "fold_in")
        if any(getattr(type(self), name) is not getattr(MultiVAE, name) for name in kept):
            return None
        *first, last = layers_of(self.encoder)
        assert last.weight is not None
        mean = replace(last, weight=last.weight.chunk(2)[0], bias=last.bias.chunk(2)[0])
        stack = [FoldingLayer(None, self.bias, tanh=True), *first, mean, *layers_of(self.decoder)]
        return LayersFolding(power=0.5, vectors=self.embed.whole("shown"), layers=stack)

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        kept = self.kept_items(lists, self.options.dropout_prob)
        mean, logvar = self.posterior(lists, kept)
        noise = normal_like(mean) * self.options.noise
        loss = self.cross_entropy(mean + noise * torch.exp(0.5 * logvar), lists)
        distance = -0.5 * (1.0 + logvar - mean.square() - logvar.exp()).sum()
        self.updates += 1
        grown = self.updates / max(1, self.options.total_anneal_steps)
        return Output(loss + grown.clamp(max=self.options.anneal_cap) * distance, batch.size)


def layers(sizes: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them: [b, sizes[0]] -> [b, sizes[-1]]."""
    modules: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        modules += [nn.Linear(width_in, width_out), nn.Tanh()]
    perceptron = nn.Sequential(*modules[:-1])
    begin_xavier(perceptron)
    return perceptron
