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
from shoal.models.nn.dropout import dropout
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

    def pooled(self, lists: Jagged, kept: Tensor | None = None, scaled: bool = True) -> Tensor:
        """Sums of the rows of users' items, each times its kept [b, num_items].

        scaled: divided by the root of how many items a user has.
        """
        weights = even(lists) if scaled else torch.ones_like(lists.values, dtype=torch.float32)
        if kept is not None:
            weights = weights * kept[owners(lists), lists.values]
        batch = Batch(len(lists), {"shown": replace(lists, weights=weights)})
        return self.embed.pooled("shown", batch)

    def kept_items(self, lists: Jagged, rate: float) -> Tensor | None:
        """What the encoder reads of users' items in training, where this share of them is hidden:
        0 or a factor above 1 [b, num_items]; None: all, in evaluation.
        """
        if not self.training:
            return None
        grid = torch.ones(len(lists), self.facts.num_items, device=lists.values.device)
        return dropout(grid, rate)

    def encode(self, lists: Jagged) -> Tensor:
        """The latent vectors of users by their items: [b, latent]."""
        return self.posterior(lists)[0]

    def posterior(self, lists: Jagged) -> tuple[Tensor, Tensor]:
        """Mean and ln of the variance of users by their items: [b, latent] each."""
        raise NotImplementedError  # every such model writes its own

    def decode(self, latent: Tensor) -> Tensor:
        """What meets the rows of the last table: [b, latent] -> [b, last]."""
        return latent

    def logits(self, latent: Tensor) -> Tensor:
        """Logits of all items: [b, latent] -> [b, num_items]."""
        bias = self.embed.whole("output_bias").squeeze(1)
        return torch.addmm(bias, self.decode(latent), self.embed.whole("output").T)

    def cross_entropy(self, latent: Tensor, lists: Jagged) -> Tensor:
        """The sum of -ln softmax over all items, at the items of users: scalar."""
        logits = self.logits(latent)
        logits[:, 0] = -torch.inf  # the padding is no item
        return -logits.log_softmax(1)[owners(lists), lists.values].sum()

    def fold_in(self, lists: Jagged) -> Tensor:
        return F.pad(self.decode(self.encode(lists)), (0, 1), value=1.0)  # meets the bias

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        rows = self.embed.rows("output", ids)
        return torch.cat([rows, self.embed.rows("output_bias", ids)], -1)
