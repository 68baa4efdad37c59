"""RecVAE: A New Variational Autoencoder for Top-N Recommendations with Implicit Feedback,
Shenbin et al., WSDM 2020.

As MultiVAE, with four differences: the encoder is five layers, each of which reads all before it;
the decoder is one linear layer; the prior of z is a mixture in which the encoder of some steps ago
takes part; and encoder and decoder learn from different users.

    loss = - sum of ln softmax(<z, output rows>)_i + gamma * items * (ln q(z) - ln prior(z))
    prior = a N(0, 1) + b q_old(z) + c N(0, e^10)

A user trains the encoder, with some of the items hidden, or (`decoder_share`) the decoder, with all
of them. The authors take turns epoch by epoch; here every step has users of both kinds.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from shoal.models.base import Batch, Facts, Jagged, Output
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.nn.dropout import dropout, normal_like, uniform_like
from shoal.models.nn.summing_encoder import SummingEncoder
from shoal.models.nn.user_items import even, owners
from shoal.models.options import Count, Share


class RecVAE(Autoencoder):
    """A variational autoencoder whose prior remembers what the encoder was."""

    updates: Tensor
    old_rows: Tensor
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "n_enc_epochs": (3, "encoder and decoder learn in every step; set model.decoder_share"),
        "n_dec_epochs": (1, "encoder and decoder learn in every step; set model.decoder_share"),
    }

    class Options(Autoencoder.Options):
        hidden_dimension: int = 600  # width of the encoder's layers
        latent_dimension: int = 200
        gamma: float = 0.005  # weight of the prior for each item of a user; 0: beta
        beta: float = 0.2  # weight of the prior, where gamma is 0
        # weights of the prior's parts: N(0, 1), the old posterior and a wide normal
        mixture_weights: list[float] = field(default_factory=lambda: [0.15, 0.75, 0.1])
        # share of the users that train the decoder; the others train the encoder
        decoder_share: Share = 0.25
        # steps between copies of the encoder into the old encoder of the prior
        prior_every: Count = 50

        def __post_init__(self) -> None:
            weights = self.mixture_weights
            if len(weights) != 3 or min(weights) <= 0.0:
                raise ValueError(f"mixture_weights is {weights}; three numbers above 0")

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        hidden, latent = options.hidden_dimension, options.latent_dimension
        self.make_tables(hidden, latent)
        self.encoder = SummingEncoder(hidden, latent)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("old_rows", torch.zeros(facts.num_items, hidden))
        for name, value in self.encoder.named_parameters():
            self.register_buffer(_old(name), value.detach().clone())

    def posterior(self, lists: Jagged, whole: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and ln of the variance of users by their items: [b, latent] each.

        whole: users of whom nothing is hidden, bool [b, 1]; None: nothing is hidden of any user.
        """
        kept = None
        if whole is not None:
            grid = torch.ones(len(lists), self.facts.num_items, device=lists.values.device)
            kept = torch.where(whole, grid, dropout(grid, self.options.dropout_prob))
        return self.encoder(self.pooled(lists, kept))

    def old_posterior(self, lists: Jagged) -> tuple[Tensor, Tensor]:
        """`posterior` by the encoder of some steps ago, which gets no gradients."""
        with torch.no_grad():
            if int(self.updates) % self.options.prior_every == 0:
                self.old_rows.copy_(self.embed.whole("shown"))
                for name, value in self.encoder.named_parameters():
                    self.get_buffer(_old(name)).copy_(value)
            self.updates += 1
            pooled = F.embedding_bag(
                lists.values,
                self.old_rows,
                lists.offsets,
                mode="sum",
                per_sample_weights=even(lists),
                include_last_offset=True,
            )
            old = {n: self.get_buffer(_old(n)) for n, _ in self.encoder.named_parameters()}
            return functional_call(self.encoder, old, (pooled,))

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        drawn = uniform_like(torch.empty(len(lists), 1, device=lists.values.device))
        decoding = drawn < self.options.decoder_share  # [b, 1]
        old = self.old_posterior(lists)
        mean, logvar = self.posterior(lists, decoding)
        z = mean + 0.01 * normal_like(mean) * torch.exp(0.5 * logvar)
        z = torch.where(decoding, z.detach(), z)
        distance = (log_normal(z, mean, logvar) - self.log_prior(z, old)).sum(1)
        distance = torch.where(decoding.squeeze(1), distance.detach(), distance)
        weight = self.options.gamma * lists.lengths if self.options.gamma else self.options.beta
        loss = (weight * distance).sum() - self.likelihood(z, decoding, lists)
        return Output(loss, batch.size)

    def log_prior(self, z: Tensor, old: tuple[Tensor, Tensor]) -> Tensor:
        """ln of the mixture at z, by dimension: [b, latent]."""
        nothing = torch.zeros_like(z)
        parts = (nothing, nothing), old, (nothing, nothing + 10.0)
        weights = self.options.mixture_weights
        log_densities = [math.log(w) + log_normal(z, *part) for w, part in zip(weights, parts)]
        return torch.stack(log_densities).logsumexp(0)

    def likelihood(self, z: Tensor, decoding: Tensor, lists: Jagged) -> Tensor:
        """Sum of ln p of users' items; decoding [b, 1]: users who train the decoder."""
        rows = self.embed.whole("output")[1:]
        bias = self.embed.whole("output_bias")[1:].squeeze(1)
        still = z @ rows.detach().T + bias.detach()
        logits = torch.where(decoding, z @ rows.T + bias, still)
        return logits.log_softmax(1)[owners(lists), lists.values - 1].sum()


def log_normal(x: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    """ln of the density of a normal, elementwise."""
    return -0.5 * (logvar + math.log(2 * math.pi) + (x - mean).square() / logvar.exp())


def _old(name: str) -> str:
    return "old_" + name.replace(".", "_")
