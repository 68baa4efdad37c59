"""Autoencoder: what models share that read all items of a user and answer with all items.

    lists of b users' items -> pooled [b, first]    query [b, last + 1]    items [n, last + 1]

The first and the last layer are tables, so that they shard; the last column is the bias.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Init, Jagged, Retrieval, Table
from shoal.models.nn.user_items import UserItems, even, owners


class Autoencoder(Retrieval):
    """A user is what was taken, so a new one is folded in like any other."""

    samples = "users"

    class Options(Retrieval.Options):
        latent_dimension: int = 128
        dropout_prob: float = 0.5  # dropout of the items that the encoder reads

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def make_tables(self, first: int, last: int) -> None:
        """Tables of the first layer and of the last, so wide."""
        facts, init = self.facts, Init("xavier_normal")
        encoder = Table("encoder", first, facts.num_items, init, padding=0)
        decoder = Table("decoder", last, facts.num_items, init, padding=0)
        bias = Table("decoder_bias", 1, facts.num_items, Init("constant", 0.0), padding=0)
        self.embed = Embeddings(shown=encoder, output=decoder, output_bias=bias)
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )

    def pooled(self, lists: Jagged, kept: Tensor | None = None) -> Tensor:
        """Sums of the rows of users' items / sqrt(items), each times its kept [b, num_items]."""
        weights = even(lists)
        if kept is not None:
            weights = weights * kept[owners(lists), lists.values]
        batch = Batch(len(lists), {"shown": replace(lists, weights=weights)})
        return self.embed.pooled("shown", batch)

    def posterior(self, lists: Jagged) -> tuple[Tensor, Tensor]:
        """Mean and ln of the variance of users by their items: [b, latent] each."""
        raise NotImplementedError  # every such model writes its own

    def decode(self, latent: Tensor) -> Tensor:
        """What meets the rows of the last table: [b, latent] -> [b, last]."""
        return latent

    def fold_in(self, lists: Jagged) -> Tensor:
        mean, _ = self.posterior(lists)
        return F.pad(self.decode(mean), (0, 1), value=1.0)  # meets the bias

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        rows = self.embed.rows("output", ids)
        return torch.cat([rows, self.embed.rows("output_bias", ids)], -1)
