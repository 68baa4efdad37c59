"""STAMP: Short-Term Attention/Memory Priority Model for Session-based Recommendation, Liu et al.,
KDD 2018.

    m_s = mean of the items, m_t the last one
    a_i = <w, sigmoid(W1 x_i + W2 m_t + W3 m_s)>,    m_a = sum of a_i x_i
    state = tanh(A m_a) * tanh(B m_t)
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.sequential.base import NextItem, at_last, lengths


class STAMP(NextItem):
    """The general interest of a session, and above all its last item."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.make_items(width, std=0.1)
        self.each, self.last = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.mean = nn.Linear(width, width, bias=False)
        self.weight = nn.Linear(width, 1, bias=False)
        self.session, self.now = nn.Linear(width, width), nn.Linear(width, width)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        items = self.embed.field("history", batch)
        last = at_last(items, history)
        mean = items.sum(1) / lengths(history).clamp(min=1).unsqueeze(1)
        about = (self.last(last) + self.mean(mean)).unsqueeze(1)
        weights = self.weight(torch.sigmoid(self.each(items) + about))
        mixed = (weights * items).sum(1)  # the rows of pads are zeros
        return torch.tanh(self.session(mixed)) * torch.tanh(self.now(last))
