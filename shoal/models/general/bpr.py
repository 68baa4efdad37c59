"""BPR: Bayesian Personalized Ranking from Implicit Feedback, Rendle et al., UAI 2009.

Matrix factorisation, trained so that an item the user took scores above one the user did not:

    x_uij = <u, i> - <u, j>        loss = sum of -ln sigmoid(x_uij)
"""

from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Output, Retrieval, Table
from shoal.models.folding import EquationsFolding
from shoal.models.nn.losses import bpr_loss


class BPR(Retrieval):
    """A vector per user, a vector per item, and their dot product.

    With k negatives a sample: users and items [b, d], negatives [b, k, d], b * k pairs in the loss.
    """

    cuda_graph_safe = True

    class Options(Retrieval.Options):
        embedding_size: int = 64

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        users = Table("user", options.embedding_size, facts.num_users)
        items = Table("item", options.embedding_size, facts.num_items)
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items}
        )

    def forward(self, batch: Batch) -> Output:
        rows = self.embed(batch, self.embed.fields)  # refuses a batch without one of them
        negatives = rows["neg_item"]  # [b, k, d]
        loss = bpr_loss(rows[self.facts.user_field], rows[self.facts.item_field], negatives)
        return Output(loss, negatives.shape[0] * negatives.shape[1])

    def encode_query(self, batch: Batch) -> Tensor:
        return self.embed(batch, [self.facts.user_field])[self.facts.user_field]

    def folding(self) -> EquationsFolding | None:
        if type(self).encode_item is not BPR.encode_item:
            return None
        return EquationsFolding(alpha=0.03, reg_weight=10.0, nu=0.0, scaled=True)

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows(self.facts.item_field, ids)
