"""MultiVAE: Variational Autoencoders for Collaborative Filtering, Liang et al., WWW 2018.

A user's items are drawn from a multinomial whose logits a network makes of a latent vector, which
another network makes of the items:

    h = tanh(sum of item rows / sqrt(items))    mu, ln sigma^2 = W h    z = mu + sigma * normal
    loss = - sum of ln softmax(decoder(z))_i over the items + beta * KL(q(z) | N(0, 1))

The first and the last layer are tables, so that they shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch, Jagged
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval, Samples
from shoal.models.nn.dropout import dropout, normal_like
from shoal.models.nn.user_items import Taken, even, owners, summed


class MultiVAE(Retrieval):
    """A variational autoencoder of what a user took."""

    samples: ClassVar[Samples] = "users"
    updates: Tensor

    @dataclass
    class Options(Retrieval.Options):
        # widths of the encoder's layers; the decoder's are their mirror
        mlp_hidden_dimension: list[int] = field(default_factory=lambda: [600])
        latent_dimension: int = 128
        dropout_prob: float = 0.5  # of the items that the encoder is shown
        anneal_cap: float = 0.2  # beta grows to this
        total_anneal_steps: int = 200_000  # in so many steps it would be 1
        noise: float = 1.0  # times sigma: the latent vector's in training; RecBole has 0.01

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [*options.mlp_hidden_dimension, options.latent_dimension]
        first = Table("encoder", sizes[0], facts.num_items, Init("xavier_normal"), padding=0)
        last = Table("decoder", sizes[0], facts.num_items, Init("xavier_normal"), padding=0)
        bias = Table("decoder_bias", 1, facts.num_items, Init("constant", 0.0), padding=0)
        self.embed = Embeddings(shown=first, output=last, output_bias=bias)
        self.taken = Taken(facts.train_users, facts.train_items, facts.num_users, facts.num_items)
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        self.encoder = layers([*sizes[:-1], 2 * sizes[-1]])
        self.decoder = nn.Sequential(layers(sizes[::-1]), nn.Tanh())
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def latent(self, lists: Jagged, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and ln of the variance of users by their items: [b, latent] each."""
        weights = even(lists, owner)
        if self.training:
            grid = torch.ones(len(lists), self.facts.num_items, device=weights.device)
            kept = dropout(grid, self.options.dropout_prob)
            weights = weights * kept[owner, lists.values]
        hidden = summed(partial(self.embed.rows, "shown"), lists, owner, weights)
        mean, logvar = self.encoder(torch.tanh(hidden + self.bias)).chunk(2, 1)
        return mean, logvar

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        owner = owners(lists)
        mean, logvar = self.latent(lists, owner)
        apart = normal_like(mean) * self.options.noise
        decoded = self.decoder(mean + apart * torch.exp(0.5 * logvar))
        bias = self.embed.whole("output_bias").squeeze(1)
        logits = torch.addmm(bias, decoded, self.embed.whole("output").T)
        logits[:, 0] = -torch.inf  # the padding is no item
        loss = -logits.log_softmax(1)[owner, lists.values].sum()
        distance = -0.5 * (1.0 + logvar - mean.square() - logvar.exp()).sum()
        self.updates += 1
        grown = self.updates / max(1, self.options.total_anneal_steps)
        return Output(loss + grown.clamp(max=self.options.anneal_cap) * distance, batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def fold_in(self, lists: Jagged) -> Tensor:
        mean, _ = self.latent(lists, owners(lists))
        return nn.functional.pad(self.decoder(mean), (0, 1), value=1.0)  # meets the bias

    def encode_item(self, ids: Tensor) -> Tensor:
        rows = self.embed.rows("output", ids)
        return torch.cat([rows, self.embed.rows("output_bias", ids)], -1)


def layers(sizes: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them: [b, sizes[0]] -> [b, sizes[-1]]."""
    made: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        made += [nn.Linear(width_in, width_out), nn.Tanh()]
    for layer in made[::2]:
        nn.init.xavier_normal_(layer.weight)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(*made[:-1])
