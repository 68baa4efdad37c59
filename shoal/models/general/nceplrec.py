"""NCEPLRec: Noise Contrastive Estimation for One-Class Collaborative Filtering, Wu et al., SIGIR
2019.

Item vectors that tell what was taken from noise are the singular vectors of a matrix whose values
grow with the rarity of an item; a linear regression from them answers with items:

    D = X * max(ln(users / count(item)^beta), 0)        D = U S V^T, the `rank` largest of S
    Q = X V S^1/2        W = (Q^T Q + reg I)^-1 Q^T X        score = <Q_user, W_item>

A user is the sum of rows of V S^1/2, so a new one is folded in. Both tables are in every process.
"""

import torch
from torch import Tensor

from shoal.models.base import Batch, Facts, Jagged, Retrieval
from shoal.models.nn.closed_form import expect_solution
from shoal.models.nn.user_items import owners, sparse_matrix, taken_by_users
from shoal.models.options import Count, Positive


class NCEPLRec(Retrieval):
    """A low-rank linear autoencoder whose encoder is a weighted singular value decomposition."""

    trainable = False
    encoder: Tensor  # [num_items, rank]
    decoder: Tensor  # [num_items, rank]

    class Options(Retrieval.Options):
        beta: float = 1.0  # how much less popular items count
        # width of the vectors of users and items; RecBole has 450, which fits the noise of small
        # data: ndcg@10 .148 on ml-100k, where 100 has .278 and 50 has .304
        rank: Count = 100
        reg_weight: Positive = 100.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.taken = taken_by_users(facts)
        width = min(options.rank, facts.num_users, facts.num_items)
        expect_solution(self, "encoder", facts.num_items, width)
        expect_solution(self, "decoder", facts.num_items, width)

    def solve(self) -> None:
        shape = self.facts.num_users, self.facts.num_items
        lists = self.taken.lists(torch.arange(shape[0]))
        users, items = owners(lists), lists.values
        counts = torch.bincount(items, minlength=shape[1]).clamp(min=1).double()
        rarity = ((shape[0] - 1) / counts.pow(self.options.beta)).log().clamp(min=0.0)
        contrast = sparse_matrix(users, items, rarity[items], shape)
        width = self.encoder.shape[1]
        # The last vectors of a random projection are inexact: some more are computed.
        most = min(width + 10, min(shape))
        _, strengths, vectors = torch.svd_lowrank(contrast, most, niter=7)
        encoder = vectors[:, :width] * strengths[:width].sqrt()  # [num_items, rank]
        taken = sparse_matrix(users, items, torch.ones_like(rarity)[items], shape)
        queries = torch.sparse.mm(taken, encoder)
        square = queries.T @ queries
        square.diagonal().add_(self.options.reg_weight)
        decoder = torch.linalg.solve(square, torch.sparse.mm(taken.t(), queries).T).T
        self.encoder, self.decoder = encoder.float(), decoder.float().contiguous()

    def fold_in(self, lists: Jagged) -> Tensor:
        totals = self.encoder.new_zeros(len(lists), self.encoder.shape[1])
        return totals.index_add(0, owners(lists), self.encoder[lists.values])

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.decoder[ids]

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        return self.encoder[taken] @ self.decoder[item]
