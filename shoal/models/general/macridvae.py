"""MacridVAE: Learning Disentangled Representations for Recommendation, Ma et al., NeurIPS 2019.

Items belong to facets, each by a share; a user has a latent vector for each facet, made of the
items that belong there, and is answered by all facets:

    c_ik = softmax over k of cos(item_i, core_k) / tau
    mu_k, ln sigma_k^2 = encoder(x * c_k)        z_k = mu_k / |mu_k| + std * sigma_k * normal
    loss = - sum of ln softmax(ln sum of c_ik exp(cos(z_k, item_i) / tau))_i over the items
           + beta * sum of KL(q(z_k))

Every step reads all of both tables, the items' vectors and the encoder's first layer.
"""

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Model, Output, Table
from shoal.models.general.multivae import layers
from shoal.models.nn.dropout import dropout, normal_like, uniform_like
from shoal.models.nn.user_items import UserItems, multi_hot, owners
from shoal.models.options import Count, Positive


class MacridVAE(Model):
    """A variational autoencoder with a latent vector for each of several tastes of a user.

    x [b, n]    shares [n, k]    vectors [n, d]    latent [b, k, d]    logits [b, n]
    """

    samples = "users"
    updates: Tensor

    class Options(Model.Options):
        embedding_size: int = 64  # width of the vectors of items and of a user's latent vectors
        dropout_prob: float = 0.5  # dropout of the items that the encoder reads
        kfac: Count = 10  # number of facets
        nogb: bool = False  # true: shares of facets are not drawn in training (Gumbel softmax)
        std: float = 0.01  # factor of sigma in the noise on the latent vectors in training
        # widths of the encoder's layers
        encoder_hidden_size: list[int] = field(default_factory=lambda: [600])
        tau: Positive = 0.1  # temperature of all softmaxes
        anneal_cap: float = 0.2  # largest weight of the prior (beta), which grows from 0 to it
        # steps after which the weight of the prior would be 1 (anneal_cap stops it)
        total_anneal_steps: int = 200_000
        # weights of the lengths of the vectors of items and facets, and of the encoder's layers
        reg_weights: list[float] = field(default_factory=lambda: [0.0, 0.0])

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes, width = options.encoder_hidden_size, options.embedding_size
        init = Init("xavier_normal")
        items = Table("item", width, facts.num_items, init, padding=0)
        encoder = Table("encoder", sizes[0], facts.num_items, init, padding=0)
        self.embed = Embeddings(item=items, shown=encoder)
        self.bias = nn.Parameter(torch.zeros(sizes[0]))
        self.encoder = layers([*sizes, 2 * width])
        self.cores = nn.Parameter(nn.init.xavier_normal_(torch.empty(options.kfac, width)))
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def log_shares(self, vectors: Tensor) -> Tensor:
        """ln of how much each item belongs to each facet: [n, d] -> [n, k]."""
        alike = vectors @ F.normalize(self.cores, dim=1).T / self.options.tau
        if self.training and not self.options.nogb:
            drawn = uniform_like(alike, shared=True)
            alike = alike - (-drawn.log()).log()
        return alike.log_softmax(1)

    def posterior(self, x: Tensor, log_shares: Tensor) -> tuple[Tensor, Tensor]:
        """Mean, of length 1, and ln of the variance of users in each facet: [b, k, d] each."""
        rows = self.embed.whole("shown")
        hidden = [(x * share) @ rows for share in log_shares.exp().unbind(1)]
        encoded = self.encoder(torch.tanh(torch.stack(hidden, 1) + self.bias))
        mean, logvar = encoded.chunk(2, 2)
        return F.normalize(mean, dim=2), logvar

    def forward(self, batch: Batch) -> Output:
        lists, options = batch.ids["taken"], self.options
        assert isinstance(lists, Jagged)
        x = dropout(F.normalize(multi_hot(lists, self.facts.num_items)), options.dropout_prob)
        rows = self.embed.whole("item")
        vectors = F.normalize(rows, dim=1)
        log_shares = self.log_shares(vectors)
        mean, logvar = self.posterior(x, log_shares)
        latent = mean + normal_like(mean) * options.std * torch.exp(0.5 * logvar)
        logits = self._logits(vectors, log_shares, latent, torch.arange(1, len(rows)))
        loss = -logits.log_softmax(1)[owners(lists), lists.values - 1].sum()
        distance = -0.5 * (1.0 + logvar - logvar.exp()).sum()
        self.updates += 1
        grown = self.updates / max(1, options.total_anneal_steps)
        loss = loss + grown.clamp(max=options.anneal_cap) * distance
        of_vectors, of_encoder = options.reg_weights
        if of_vectors:
            loss = loss + batch.size * of_vectors * (rows.norm() + self.cores.norm())
        if of_encoder:
            layers = (weight for weight in self.encoder.parameters() if weight.dim() > 1)
            weights: list[Tensor] = [self.embed.whole("shown")]
            weights.extend(layers)
            loss = loss + batch.size * of_encoder * torch.stack([w.norm() for w in weights]).sum()
        return Output(loss, batch.size)

    def _logits(self, vectors: Tensor, log_shares: Tensor, latent: Tensor, items: Tensor) -> Tensor:
        """Logits of items [n], or of a list [b, n] of each user: [b, n]."""
        near = F.normalize(latent, dim=2) @ F.embedding(items, vectors).mT / self.options.tau
        return (near + F.embedding(items, log_shares).mT).logsumexp(1)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        x = F.normalize(self.taken.matrix(batch.tensor(self.facts.user_field)))
        vectors = F.normalize(self.embed.whole("item"), dim=1)
        log_shares = self.log_shares(vectors)
        mean, _ = self.posterior(x, log_shares)
        return partial(self._logits, vectors, log_shares, mean)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.scorer(batch)(items)
