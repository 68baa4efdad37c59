"""Pop: recommends what most people took. The line that every other model has to beat."""

import torch
from torch import Tensor

from shoal.models.base import Batch, Facts, Model


class Pop(Model):
    """An item's score is the number of its training interactions, the same for every user."""

    trainable = False
    rest_is = "how often everybody took the item, the same for all users"
    counts: Tensor

    class Options(Model.Options):
        """None: popularity has nothing to tune."""

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        counts = torch.bincount(facts.train_items, minlength=facts.num_items)
        self.register_buffer("counts", counts.float())  # [num_items]

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.counts[items].expand(batch.size, items.shape[-1]).contiguous()

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        """What this user took counts for nothing."""
        return torch.zeros(len(taken))
