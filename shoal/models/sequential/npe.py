"""NPE: Neural Personalized Embedding for Collaborative Filtering, Nguyen and Takasu, IJCAI 2018.

What a user likes, and what goes with the items taken; every vector is rectified:

    state = relu(u) + relu(sum of c_j)        score(item) = <state, relu(item)>

c_j is the vector that item j has as a part of a history.
"""

import torch
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.sequential.base import NextItem


class NPE(NextItem):
    """Rectified vectors of users, contexts and items; dropout in the two parts of the state."""

    samples = "prefixes"
    rows_are_vectors = False

    class Options(NextItem.Options):
        embedding_size: int = 64
        dropout_prob: float = 0.3

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        context = Table("context", width, facts.num_items, init, padding=0)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings(
            {facts.user_field: users}, history=context, target=items, neg_item=items
        )
        self.dropout = Dropout(options.dropout_prob)

    def states(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, ["history", self.facts.user_field])
        user = self.dropout(torch.relu(rows[self.facts.user_field]))
        return user + self.dropout(torch.relu(rows["history"].sum(1)))

    def item_vectors(self, rows: Tensor) -> Tensor:
        return self.compared(torch.relu(rows))
