"""SessionGraph: what models share that read a session as a graph of its items."""

from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.sequential.base import NextItem


class SessionGraph(NextItem):
    """A gated network over each session's own graph.

    The items of a session are the nodes, with an edge from each to what came next. A step hears
    neighbours along incoming and outgoing edges:

        a = [A_in (W1 h), A_out (W2 h)]        h = GRUCell(a, h)
    """

    samples = "prefixes"

    def __init__(self, options: Any, facts: Facts, width: int, std: float):
        super().__init__(options, facts)
        self.make_items(width, std)
        self.incoming, self.outgoing = nn.Linear(width, width), nn.Linear(width, width)
        self.cell = nn.GRUCell(2 * width, width)

    def along_edges(self, batch: Batch) -> Tensor:
        """Each place's item after `step` steps along the edges: [b, l, d]."""
        node, incoming, outgoing = session_graph(batch.tensor("history"))
        hidden = self.embed.field("history", batch)  # a node stands where its item stood first
        for _ in range(self.options.step):
            near = torch.cat(
                [incoming @ self.incoming(hidden), outgoing @ self.outgoing(hidden)], -1
            )
            hidden = self.cell(near.flatten(0, 1), hidden.flatten(0, 1)).view(hidden.shape)
        return hidden.gather(1, node.unsqueeze(-1).expand_as(hidden))  # by position again


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
