"""LDiffRec: Diffusion Recommender Model, Wang et al., SIGIR 2023, in a latent space.

An encoder makes a latent vector of a user's items, DiffRec's diffusion works on it, and a decoder
answers with all items:

    mu, ln sigma^2 = encoder(items)        z = mu + sigma * normal        z' = denoiser(noisy z)
    loss = - sum of ln softmax(decoder(z'))_i over the items + beta KL(q(z) | N(0, 1))
           + lamda * w_t * mean of (z - z')^2

The paper's clusters of items, each with an encoder of its own, need vectors of items from
elsewhere (RecBole reads item_emb.npy): there is one cluster here.
"""

from dataclasses import field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Jagged, Output
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.general.diffrec import WITHOUT_EFFECT, DiffRec, diffusion_of
from shoal.models.nn.diffusion import Denoiser
from shoal.models.nn.dropout import dropout, normal_like
from shoal.models.nn.mlp import begin_xavier
from shoal.models.nn.transformer import ACTIVATIONS


class LDiffRec(Autoencoder):
    """Diffusion of a user's latent vector."""

    updates: Tensor
    recbole_options = DiffRec.recbole_options
    recbole_without_effect = WITHOUT_EFFECT

    class Options(DiffRec.Options):
        noise_scale: float = 0.1
        noise_min: float = 0.001
        n_cate: Literal[1] = 1  # clusters of items
        reparam: bool = True  # true: the latent vector is drawn; false: it is the mean
        # widths of the encoder's layers from the latent vector, the first, back to the items
        in_dims: list[int] = field(default_factory=lambda: [300])
        out_dims: list[int] = field(default_factory=list)  # widths of layers of the decoder
        # activation of encoder and decoder
        ae_act_func: Literal["tanh", "relu", "sigmoid"] = "tanh"
        lamda: float = 0.03  # weight of the diffusion's loss at first
        anneal_cap: float = 0.005  # and at the end
        anneal_steps: int = 1000  # steps in which it would fall to 0
        vae_anneal_cap: float = 0.3  # largest weight of the prior (beta), which grows from 0 to it
        vae_anneal_steps: int = 200  # steps after which the weight of the prior would be 1

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        latent = options.in_dims[0]
        sizes = [*options.in_dims[:0:-1], 2 * latent]
        self.make_tables(sizes[0], [latent, *options.out_dims][-1])
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        activation = ACTIVATIONS[options.ae_act_func]
        encoder = [part for pair in pairwise(sizes) for part in (activation(), nn.Linear(*pair))]
        sizes = [latent, *options.out_dims]
        decoder = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), activation())]
        self.encoder, self.decoder = nn.Sequential(*encoder), nn.Sequential(*decoder)
        self.first = nn.Linear(latent, options.dims_dnn[0], bias=False)
        time_size = options.embedding_size
        self.denoiser = Denoiser(latent, options.dims_dnn, time_size, options.mlp_act_func)
        self.last = nn.Linear(options.dims_dnn[-1], latent)
        for network in (self.encoder, self.decoder, self.last):
            begin_xavier(network)
        nn.init.xavier_normal_(self.first.weight)
        self.diffusion = diffusion_of(options)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def posterior(self, lists: Jagged) -> tuple[Tensor, Tensor]:
        kept = self.kept_items(lists, 0.1)
        encoded = self.encoder(self.pooled(lists, kept, scaled=False) + self.bias)
        mean, logvar = encoded.chunk(2, 1)
        return mean, logvar

    def denoised(self, latent: Tensor, steps: Tensor) -> Tensor:
        """The latent vector without its noise: [b, latent] -> [b, latent]."""
        latent = nn.functional.normalize(latent) if self.options.norm else latent
        latent = dropout(latent, 0.5) if self.training else latent
        return self.last(self.denoiser(self.first(latent), steps))

    def forward(self, batch: Batch) -> Output:
        lists, options = batch.ids["taken"], self.options
        assert isinstance(lists, Jagged)
        mean, logvar = self.posterior(lists)
        noise = normal_like(mean) * torch.exp(0.5 * logvar)
        latent = mean + noise if options.reparam else mean
        steps, share = self.diffusion.draw(batch.size)
        again = self.denoised(self.diffusion.noisy(latent, steps), steps)
        losses = self.diffusion.weights[steps] * (latent - again).square().mean(1)
        self.diffusion.remember(self.gather_global(steps), self.gather_global(losses.detach()))
        distance = -0.5 * (1.0 + logvar - mean.square() - logvar.exp()).sum()
        fallen = options.lamda * (1.0 - self.updates / max(1, options.anneal_steps))
        grown = self.updates / max(1, options.vae_anneal_steps)
        self.updates += 1
        loss = self.cross_entropy(again, lists)
        loss = loss + fallen.clamp(min=options.anneal_cap) * (losses / share).sum()
        return Output(loss + grown.clamp(max=options.vae_anneal_cap) * distance, batch.size)

    def encode(self, lists: Jagged) -> Tensor:
        mean, _ = self.posterior(lists)
        latent = self.diffusion.undone(mean, self.denoised)
        return self.denoised(latent, torch.zeros(len(lists), dtype=torch.int64, device=mean.device))

    def decode(self, latent: Tensor) -> Tensor:
        return self.decoder(latent)
