"""SRGNN: Session-based Recommendation with Graph Neural Networks, Wu et al., AAAI 2019.

The items of a session are the nodes of a graph, with an edge from each to what came next. Gated
steps along incoming and outgoing edges, then an attention with the last item as the question:

    a = [A_in (W1 h), A_out (W2 h)]        h = GRUCell(a, h)
    s = sum of <q, sigmoid(W3 h_last + W4 h_i)> h_i        state = W [s, h_last]
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.sequential.base import NextItem, at_last
from shoal.models.sequential.session import SessionGraph


class SRGNN(SessionGraph):
    """A gated network over each session's own graph, and attention over what it makes."""

    class Options(NextItem.Options):
        embedding_size: int = 64
        step: int = 1  # number of steps along the edges of the graph

    def __init__(self, options: Options, facts: Facts):
        width = options.embedding_size
        std = width**-0.5
        super().__init__(options, facts, width, std)
        self.last, self.each = nn.Linear(width, width), nn.Linear(width, width)
        self.weight = nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(2 * width, width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -std, std)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        hidden = self.along_edges(batch)
        last = at_last(hidden, history)
        weights = self.weight(torch.sigmoid(self.last(last).unsqueeze(1) + self.each(hidden)))
        mixed = (weights * hidden * (history > 0).unsqueeze(-1)).sum(1)
        return self.out(torch.cat([mixed, last], 1))
