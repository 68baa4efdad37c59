"""MultiDAE: Variational Autoencoders for Collaborative Filtering, Liang et al., WWW 2018.

MultiVAE without chance: a user's latent vector is what the encoder says, and no prior pulls it.

    h = tanh(sum of item rows / sqrt(items))        z = tanh(encoder(h))
    loss = - sum of ln softmax(decoder(z))_i over the items
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Jagged, Output
from shoal.models.folding import FoldingLayer, LayersFolding, layers_of
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.general.multivae import layers


class MultiDAE(Autoencoder):
    """A denoising autoencoder of what a user took, with a multinomial likelihood."""

    class Options(Autoencoder.Options):
        # widths of the encoder's layers; the decoder's are their mirror
        mlp_hidden_size: list[int] = field(default_factory=lambda: [600])
        latent_dimension: int = 64

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [*options.mlp_hidden_size, options.latent_dimension]
        self.make_tables(sizes[0], sizes[0])
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        self.encoder = nn.Sequential(layers(sizes), nn.Tanh())
        self.decoder = nn.Sequential(layers(sizes[::-1]), nn.Tanh())

    def encode(self, lists: Jagged) -> Tensor:
        kept = self.kept_items(lists, self.options.dropout_prob)
        return self.encoder(torch.tanh(self.pooled(lists, kept) + self.bias))

    def folding(self) -> LayersFolding:
        stack = [FoldingLayer(None, self.bias, tanh=True), *layers_of(self.encoder)]
        stack += layers_of(self.decoder)
        return LayersFolding(power=0.5, vectors=self.embed.whole("shown"), layers=stack)

    def decode(self, latent: Tensor) -> Tensor:
        return self.decoder(latent)

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        return Output(self.cross_entropy(self.encode(lists), lists), batch.size)
