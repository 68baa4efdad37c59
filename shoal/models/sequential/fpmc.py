"""FPMC: Factorizing Personalized Markov Chains for Next-Basket Recommendation, Rendle et al., WWW
2010.

A user's taste, and what follows the last item:

    score(item) = <user, item> + <last item, item'>
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.losses import LossType
from shoal.models.sequential.base import NextItem


class FPMC(NextItem):
    """Matrix factorisation beside a factorised Markov chain, at every position.

    The two vectors of an item that is recommended are the halves of one row.
    """

    class Options(NextItem.Options):
        embedding_size: int = 64
        loss_type: LossType = "BPR"

        DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        last = Table("last", width, facts.num_items, init, padding=0)
        items = Table("item", 2 * width, facts.num_items, init, padding=0)
        self.embed = Embeddings(
            {facts.user_field: users}, history=last, target=items, neg_item=items
        )

    def states(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, [self.facts.user_field, "history"])
        last = rows["history"]  # [b, l, d]
        return torch.cat([rows[self.facts.user_field].unsqueeze(1).expand_as(last), last], -1)
