"""FOSSIL: Fusing Similarity Models with Markov Chains for Sparse Sequential Recommendation, He and
McAuley, ICDM 2016.

An item fits by all that the user took, and by the last items, which each user weighs:

    state = sum of x_j / n^alpha + sum over the last k = 1 .. order_len of (w_k + w_uk) x_last-k
    score(item) = <state, item> + b_item

Item vectors that are read and that are recommended are one table. A row ends with the item's bias,
which the state multiplies by 1.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Table
from shoal.models.options import Count, Share
from shoal.models.sequential.base import NextItem, lengths, newest


class FOSSIL(NextItem):
    """Similarity of items beside a Markov chain of the last few."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        order_len: Count = 3  # items of the Markov chain
        alpha: Share = 0.6  # 0: items of a history are summed, 1: their mean is taken
        reg_weight: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        init = Init("xavier_normal")
        items = Table("item", options.embedding_size + 1, facts.num_items, init, padding=0)
        weights = Table("user", options.order_len, facts.num_users, init)
        self.embed = Embeddings(
            {facts.user_field: weights}, history=items, target=items, neg_item=items
        )
        self.weights = nn.Parameter(torch.zeros(options.order_len))

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        rows = self.embed(batch, ["history", self.facts.user_field])
        items = rows["history"][..., :-1]
        count = lengths(history).clamp(min=1).unsqueeze(1)
        similar = items.sum(1) / count**self.options.alpha
        last, _ = newest(items, history, self.options.order_len)
        weights = self.weights + rows[self.facts.user_field]  # [b, order_len], the newest last
        state = similar + (weights.unsqueeze(2) * last).sum(1)
        return torch.cat([state, torch.ones_like(state[:, :1])], 1)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if not self.options.reg_weight:
            return output
        return replace(output, loss=output.loss + self.options.reg_weight * self.row_penalty(batch))
