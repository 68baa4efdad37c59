"""TransRec: Translation-based Recommendation, He, Kang and McAuley, RecSys 2017.

A user is a translation from the last item to the next one, t + t_u:

    score(item) = b_item - |last item + t + t_u - item|^2

The squared distance of the paper is a dot product, with |last item + t + t_u|^2 left out, which
all items share: with q = last item + t + t_u the state is [2 q, 1], an item [item, b - |item|^2].
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.losses import LossType
from shoal.models.sequential.base import NextItem


class TransRec(NextItem):
    """Items in a space where users move from one to the next, at every position.

    The bias of an item is the last number of its row.
    """

    rows_are_vectors = False

    class Options(NextItem.Options):
        embedding_size: int = 64
        loss_type: LossType = "BPR"

        DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width + 1, facts.num_items, init, padding=0)
        self.embed = Embeddings(
            {facts.user_field: users}, history=items, target=items, neg_item=items
        )
        self.translation = nn.Parameter(torch.zeros(width))

    def states(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, [self.facts.user_field, "history"])
        last = rows["history"][..., :-1]
        moved = last + self.translation + rows[self.facts.user_field].unsqueeze(1)
        return torch.cat([2.0 * moved, torch.ones_like(moved[..., :1])], -1)

    def item_vectors(self, rows: Tensor) -> Tensor:
        items, bias = rows[..., :-1], rows[..., -1:]
        vectors = torch.cat([items, bias - items.square().sum(-1, keepdim=True)], -1)
        return self.compared(vectors)
