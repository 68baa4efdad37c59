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


class SRGNN(NextItem):
    """A gated network over each session's own graph."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        step: int = 1  # number of steps along the edges of the graph

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        std = width**-0.5
        self.make_items(width, std)
        self.incoming, self.outgoing = nn.Linear(width, width), nn.Linear(width, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.last, self.each = nn.Linear(width, width), nn.Linear(width, width)
        self.weight = nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(2 * width, width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -std, std)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        node, incoming, outgoing = session_graph(history)
        hidden = self.embed.field("history", batch)  # a node stands where its item stood first
        for _ in range(self.options.step):
            near = torch.cat(
                [incoming @ self.incoming(hidden), outgoing @ self.outgoing(hidden)], -1
            )
            hidden = self.cell(near.flatten(0, 1), hidden.flatten(0, 1)).view(hidden.shape)
        hidden = hidden.gather(1, node.unsqueeze(-1).expand_as(hidden))  # by position again
        last = at_last(hidden, history)
        weights = self.weight(torch.sigmoid(self.last(last).unsqueeze(1) + self.each(hidden)))
        mixed = (weights * hidden * (history > 0).unsqueeze(-1)).sum(1)
        return self.out(torch.cat([mixed, last], 1))


def session_graph(history: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Node of each place, and normalised edges into and out of nodes: [b, l], [b, l, l] twice.

    A node is the place where its item stands first; the lines of other places are zeros.
    """
    size, length = history.shape
    same = history.unsqueeze(2) == history.unsqueeze(1)  # [b, l, l]
    node = same.int().argmax(2)  # the first equal one
    follows = torch.zeros(size, length, length, device=history.device)
    real = (history[:, 1:] > 0).float()
    rows = torch.arange(size, device=history.device).unsqueeze(1)
    # an edge that is walked twice is one edge; pads write zeros, which accumulate to nothing
    follows.index_put_((rows, node[:, :-1], node[:, 1:]), real, accumulate=True)
    follows = follows.clamp(max=1.0)
    outgoing = follows / follows.sum(2, keepdim=True).clamp(min=1.0)
    incoming = follows / follows.sum(1, keepdim=True).clamp(min=1.0)
    return node, incoming.transpose(1, 2), outgoing
