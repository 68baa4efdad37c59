"""GFCF: GF-CF of How Powerful is Graph Convolution for Recommendation?, Shen et al., CIKM 2021.

What a user took is a signal on the items, and a filter that lets its smooth parts pass fills it up.
There is nothing to train: the filter is made of the interactions, R~ = D_U^-1/2 R D_I^-1/2.

    W = R~^T R~ + alpha D_I^-1/2 V V^T D_I^1/2        score(user, item) = sum of W[i, item]

The first part is linear; V of the second, an ideal low pass, are the `rank` first right singular
vectors of R~. Only V is kept: the rest of W is made of the interactions when items are asked for.
"""

from torch import Tensor

from shoal.models.base import Facts
from shoal.models.general.item_weights import ItemWeights
from shoal.models.nn.closed_form import expect_solution, singular_vectors
from shoal.models.nn.user_items import owners, sparse_matrix, sparse_product, takers_of_items
from shoal.models.options import Count, NotNegative


class GFCF(ItemWeights):
    """A linear filter and an ideal low-pass filter on the graph of items."""

    vectors: Tensor  # [num_items, rank]
    user_shares: Tensor  # [num_users]: 1 / items of a user
    item_roots: Tensor  # [num_items]: sqrt of the users of an item

    class Options(ItemWeights.Options):
        alpha: NotNegative = 0.3  # weight of the low pass; 0: the linear filter alone
        rank: Count = 256  # singular vectors that the low pass lets through

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.takers = takers_of_items(facts)
        counts = self.taken.starts.diff().clamp(min=1).float(), self.takers.starts.diff()
        self.register_buffer("user_shares", 1.0 / counts[0], persistent=False)
        roots = counts[1].clamp(min=1).float().sqrt()
        self.register_buffer("item_roots", roots, persistent=False)
        rank = min(options.rank, facts.num_users, facts.num_items)
        expect_solution(self, "vectors", facts.num_items, rank)

    def solve(self) -> None:
        users, items = self.taken.owners, self.taken.items
        values = self.user_shares[users].double().sqrt() / self.item_roots[items].double()
        shape = self.facts.num_users, self.facts.num_items
        matrix = sparse_matrix(users, items, values, shape)
        self.vectors = singular_vectors(matrix, self.vectors.shape[1], "GFCF").float()

    def encode_item(self, ids: Tensor) -> Tensor:
        """Columns of W: ids of any shape -> that shape + [num_items]."""
        flat, roots = ids.reshape(-1), self.item_roots
        lists, users = self.takers.lists(flat), len(self.user_shares)
        shares = self.user_shares[lists.values] / roots[flat][owners(lists)]
        own = sparse_matrix(owners(lists), lists.values, shares, (len(flat), users))
        every = sparse_matrix(
            self.taken.owners,
            self.taken.items,
            1.0 / roots[self.taken.items],
            (users, len(roots)),
        )
        columns = sparse_product(own, every)
        scaled = self.options.alpha * roots[flat].unsqueeze(1) * self.vectors[flat]
        columns.addmm_(scaled, (self.vectors / roots.unsqueeze(1)).T)
        return columns.view(*ids.shape, len(roots))
