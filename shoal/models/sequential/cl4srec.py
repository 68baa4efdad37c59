"""CL4SRec: Contrastive Learning for Sequential Recommendation, Xie et al., ICDE 2022.

SASRec, and two changed copies of each history, whose states should be more alike than those of two
users in the batch:

    crop     a run of eta of the items
    mask     gamma of the items are hidden
    reorder  a run of beta of the items is shuffled

    loss = next item + cl_weight * contrast of the two copies, over the global batch
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.losses import Gather
from shoal.models.sequential.base import at_last, lengths
from shoal.models.sequential.sasrec import SASRec


class CL4SRec(SASRec):
    """SASRec with a contrast between augmented histories."""

    class Options(SASRec.Options):
        cl_weight: float = 0.1
        cl_temperature: float = 1.0  # temperature of the contrast between two views of a history
        crop: float = 0.6  # share of the items that are left
        mask: float = 0.3  # share of the items that are hidden
        reorder: float = 0.6  # share of the items that are shuffled

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = False
        self.mask = nn.Parameter(torch.empty(options.hidden_size))  # what a hidden item shows
        nn.init.normal_(self.mask, std=options.initializer_range)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        history = batch.tensor("history")
        first_view, second_view = (self._copy(history) for _ in range(2))
        term = alike(
            first_view, second_view, batch.first, self.gather_global, self.options.cl_temperature
        )
        # a sum over histories beside one over positions: each is divided by its own count
        positions = self.gather_global((batch.tensor("target") > 0).sum(1)).sum()
        per_history = positions / max(1, len(self.gather_global(lengths(history)))) / 2
        loss = output.loss + self.options.cl_weight * term * per_history
        return Output(loss, output.count)

    def _copy(self, history: Tensor) -> Tensor:
        """States of changed histories [b, l]: [b, d]. Each sample draws how it is changed."""
        draws = uniform_like(torch.empty(len(history), 2, device=history.device))
        keys = uniform_like(torch.empty(history.shape, device=history.device))
        count = lengths(history).unsqueeze(1)
        place = torch.arange(history.shape[1], device=history.device)
        kind = (draws[:, :1] * 3).long()
        share = torch.where(kind == 0, self.options.crop, self.options.reorder)
        run = (count * share).ceil().long().clamp(min=1)
        start = (draws[:, 1:] * (count - run + 1).clamp(min=1)).long()
        inside = (place >= start) & (place < start + run)
        # Places in their new order: cropped ones behind all, shuffled ones by their draws.
        order = torch.where((kind == 0) & ~inside, place + 2.0 * len(place), place.float())
        shuffled = start + keys * run
        order = torch.where((kind == 2) & inside, shuffled, order)
        order = torch.where(place < count, order, place + 4.0 * len(place))
        index = order.argsort(dim=1, stable=True)
        changed = history.gather(1, index)
        changed = torch.where((kind == 0) & (place >= run), 0, changed)
        masked = (kind == 1) & (keys < self.options.mask) & (changed > 0)
        vectors = self.embed.rows("history", changed.masked_fill(masked, 0))
        vectors = torch.where(masked.unsqueeze(-1), self.mask, vectors)
        return F.normalize(at_last(self.encode(vectors, changed == 0), changed), dim=-1)


def alike(
    first_view: Tensor, second_view: Tensor, first: int, gather: Gather, temperature: float
) -> Tensor:
    """Sum of -ln softmax at a sample's other view, over all other views of the global batch.

    first_view, second_view: of the samples, [b, d] each. As in SimCLR: views of one kind are
    compared with those of both, but not with themselves.
    """
    views = torch.cat([gather(first_view), gather(second_view)])  # [2 * global b, d]
    total, count = len(views) // 2, len(first_view)
    place = first + torch.arange(count, device=first_view.device)
    loss = first_view.new_zeros(())
    for mine, own, wanted in (
        (first_view, place, place + total),
        (second_view, place + total, place),
    ):
        logits = mine @ views.T / temperature
        logits = logits.scatter(1, own.unsqueeze(1), -torch.inf)
        loss = loss + (logits.logsumexp(1) - logits.gather(1, wanted.unsqueeze(1)).squeeze(1)).sum()
    return loss
