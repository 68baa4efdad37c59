"""LINE: Large-scale Information Network Embedding, Tang et al., WWW 2015.

Users and items are the nodes of a graph. Two nodes are near where an edge joins them (first order),
or where their neighbours are the same (second order): the neighbours of a node then have vectors of
their own, as its context. Each edge is told from pairs that are no edge, at either end:

    l(s, s') = -ln σ(s) - ln σ(-s')        j: an item not taken, v: a user who did not take i
    loss = mean of l(<u, i>, <u, j>) and l(<u, i>, <v, i>)
           + w * mean of l(<u, c_i>, <u, c_j>) and l(<i, c_u>, <i, c_v>)

RecBole flips a coin for each batch and takes one of the two ends; here a step has both.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Output, Retrieval, Table
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.user_items import UserItems
from shoal.models.options import NotNegative

TRIES = 4  # of drawing a user who did not take an item; after so many the last one is taken


class LINE(Retrieval):
    """Vectors of nodes, and of nodes as context.

    users, items [b, 1, d]    items not taken, users who did not take the item [b, k, d]
    """

    class Options(Retrieval.Options):
        embedding_size: int = 64
        order: Literal[1, 2] = 2  # 1: without context
        second_order_loss_weight: NotNegative = 1.0  # weight of the terms with context

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.sizes = {"user": facts.num_users, "item": facts.num_items}
        tables = {side: Table(side, width, size) for side, size in self.sizes.items()}
        if options.order == 2:
            for side, size in self.sizes.items():
                tables[f"{side}_context"] = Table(f"{side}_context", width, size)
        self.embed = Embeddings(tables)
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )

    def forward(self, batch: Batch) -> Output:
        users = batch.tensor(self.facts.user_field).unsqueeze(1)  # [b, 1]
        items = batch.tensor(self.facts.item_field).unsqueeze(1)
        negatives = self.negatives(batch)
        user_ids = torch.cat([users, self._strangers(items, negatives.shape[1])], 1)  # [b, 1 + k]
        item_ids = torch.cat([items, negatives], 1)
        user_rows, item_rows = self.embed.rows("user", user_ids), self.embed.rows("item", item_ids)
        user, item = user_rows[:, :1], item_rows[:, :1]
        loss = told_apart(user, item_rows) + told_apart(item, user_rows)
        if self.options.order == 2:
            near = told_apart(user, self.embed.rows("item_context", item_ids))
            near = near + told_apart(item, self.embed.rows("user_context", user_ids))
            loss = loss + self.options.second_order_loss_weight * near
        return Output(0.5 * loss, batch.size)

    def _strangers(self, items: Tensor, count: int) -> Tensor:
        """Users who did not take the items [b, 1], drawn uniformly: [b, count]."""
        drawn = uniform_like(torch.empty(len(items), count, TRIES, device=items.device))
        users = 1 + (drawn * (self.facts.num_users - 1)).long()
        users = users.clamp(max=self.facts.num_users - 1)
        wrong = self.taken.holds(users, items.unsqueeze(2).expand_as(users))
        choice = wrong.int().argmin(2, keepdim=True)  # the first who did not
        choice = choice.masked_fill(wrong.all(2, keepdim=True), TRIES - 1)
        return users.gather(2, choice).squeeze(2)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed.rows("user", batch.tensor(self.facts.user_field))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows("item", ids)


def told_apart(node: Tensor, others: Tensor) -> Tensor:
    """Log loss of a node with one that it has an edge to, and with k that it has none to, summed.

    node [b, 1, d]    others [b, 1 + k, d], the one with an edge first; the k terms have their mean
    """
    scores = (node * others).sum(2)
    return -F.logsigmoid(scores[:, 0]).sum() - F.logsigmoid(-scores[:, 1:]).mean(1).sum()
