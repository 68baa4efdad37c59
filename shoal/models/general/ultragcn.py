"""UltraGCN: Ultra Simplification of Graph Convolutional Networks for Recommendation, Mao et al.,
CIKM 2021.

Vectors of users and items alone; what infinitely many layers of a graph would make of them is asked
of the loss. With d the number of neighbours and G = A^T A, items that occur together:

    beta(u, i)  = sqrt(d_u + 1) / (d_u sqrt(d_i + 1))
    omega(i, j) = G_ij sqrt(g_i + 1) / (g_i sqrt(g_j + 1)), of the k largest j of i; g = row sums
    loss = (w1 + w2 beta(u, i)) -ln sigmoid(<u, i>)
           + negative_weight * mean over negatives of (w3 + w4 beta(u, j)) -ln sigmoid(-<u, j>)
           + item_weight * sum over j near i of omega(i, j) -ln sigmoid(<u, j>)

omega is that of the authors' program, where an item is near itself, too; the paper's formula leaves
the diagonal out of g (near_itself: false leaves it out of G). The penalty is on the vectors of a
sample; the program's is on all vectors in every step.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.nn.losses import half_squares
from shoal.models.nn.user_items import UserItems, taken_by_users
from shoal.models.options import Count, NotNegative


class UltraGCN(Retrieval):
    """Constraint losses instead of propagation."""

    user_beta: Tensor  # [num_users]: sqrt(d + 1) / d
    item_beta: Tensor  # [num_items]: 1 / sqrt(d + 1)

    class Options(Retrieval.Options):
        embedding_size: int = 64
        k: Count = 10
        near_itself: bool = True  # true: an item is among its neighbours, as in the program
        w1: NotNegative = 1e-6  # weight of every pair that was taken
        w2: NotNegative = 1.0  # weight of beta of a pair that was taken
        w3: NotNegative = 1e-6  # weight of every negative
        w4: NotNegative = 1.0  # weight of beta of a negative
        negative_weight: NotNegative = 300.0
        item_weight: NotNegative = 5e-4  # weight of the items near the one that was taken
        reg_weight: NotNegative = 1e-4
        # true: a sample is compared with the negatives of all samples of the global batch, in one
        # product: a few for each sample are enough
        share_negatives: bool = False
        init_std: NotNegative = 1e-4  # standard deviation of the first vectors

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives.num": 100}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        init = Init("normal", options.init_std)
        users = Table("user", options.embedding_size, facts.num_users, init)
        items = Table("item", options.embedding_size, facts.num_items, init)
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items, "near": items}
        )
        taken = taken_by_users(facts)
        degrees = taken.starts.diff().float()
        user_beta = (degrees + 1.0).sqrt() / degrees.clamp(min=1.0)
        degrees = torch.bincount(taken.items, minlength=facts.num_items).float()
        self.register_buffer("user_beta", user_beta, persistent=False)  # rebuilt from the data
        self.register_buffer("item_beta", (degrees + 1.0).rsqrt(), persistent=False)
        self._near: tuple[Tensor, Tensor] | None = None

    def near(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """The items near some [b], and omega: [b, k] each. Only training needs them."""
        if self._near is None:
            options = self.options
            near, omega = near_items(taken_by_users(self.facts), options.k, options.near_itself)
            self._near = near.to(items.device), omega.to(items.device)
        return self._near[0][items], self._near[1][items]

    def forward(self, batch: Batch) -> Output:
        options, item_field = self.options, self.facts.item_field
        users, items = batch.tensor(self.facts.user_field), batch.tensor(item_field)
        negatives = self.negatives(batch)  # [b, n]
        if options.share_negatives:
            negatives = self.gather_global(negatives).reshape(-1)  # [global b * n]
        rows = self.embed.rows(self.facts.user_field, users)
        right, (places, omega) = self.embed.rows(item_field, items), self.near(items)
        near = self.embed.rows("near", places)  # [b, k, d]
        drawn = self.embed.rows("neg_item", negatives)
        if options.share_negatives:
            wrong = rows @ drawn.T
        else:
            wrong = torch.bmm(drawn, rows.unsqueeze(2)).squeeze(2)
        beta = self.user_beta[users]
        weights = options.w1 + options.w2 * beta * self.item_beta[items]
        loss = (weights * F.softplus(-(rows * right).sum(1))).sum()
        weights = options.w3 + options.w4 * beta.unsqueeze(1) * self.item_beta[negatives]
        share = options.negative_weight / negatives.shape[-1]
        loss = loss + share * (weights * F.softplus(wrong)).sum()
        scores = torch.bmm(near, rows.unsqueeze(2)).squeeze(2)  # [b, k]
        loss = loss + options.item_weight * (omega * F.softplus(-scores)).sum()
        if options.reg_weight:
            loss = loss + options.reg_weight * half_squares(rows, right)
        return Output(loss, batch.size)

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed(batch, [self.facts.user_field])[self.facts.user_field]

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows(self.facts.item_field, ids)


def near_items(taken: UserItems, k: int, itself: bool) -> tuple[Tensor, Tensor]:
    """The k items of the largest omega of each item, and these: [num_items, k] each."""
    counts = taken.starts.diff()
    row_sums = torch.zeros(taken.num_items, dtype=torch.float64)
    together = counts[taken.owners] - int(not itself)
    row_sums.index_add_(0, taken.items, together.double())
    own_share, read_share = (
        (row_sums + 1.0).sqrt() / row_sums.clamp(min=1.0),
        (row_sums + 1.0).rsqrt(),
    )
    places, values = [], []
    for first, block in taken.common():
        own = torch.arange(first, first + len(block))
        if not itself:
            block[torch.arange(len(own)), own] = 0.0
        block = block * read_share.float() * own_share[own].float().unsqueeze(1)
        best = block.topk(min(k, taken.num_items), dim=1)
        places.append(best.indices)
        values.append(best.values)
    return torch.cat(places), torch.cat(values)
