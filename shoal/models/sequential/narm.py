"""NARM: Neural Attentive Session-based Recommendation, Li et al., CIKM 2017.

Two readings of a session by one recurrent network, its last state and an attention over all:

    g = h_t        l = sum of a_j h_j,  a_j = <v, sigmoid(A1 h_t + A2 h_j)>
    state = B [g, l]
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.recurrent import GRU
from shoal.models.sequential.base import NextItem, at_last


class NARM(NextItem):
    """What a session is about, and its present state."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        hidden_size: int = 128
        n_layers: int = 1
        # dropout of the items' vectors, and of the state
        dropout_probs: list[float] = field(default_factory=lambda: [0.25, 0.5])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(options.embedding_size)
        self.before, self.after = (Dropout(p) for p in options.dropout_probs)
        self.gru = GRU(options.embedding_size, width, options.n_layers)
        self.last = nn.Linear(width, width, bias=False)
        self.each = nn.Linear(width, width, bias=False)
        self.weight = nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(2 * width, options.embedding_size, bias=False)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        hidden = self.gru(self.before(self.embed.field("history", batch)))
        last = at_last(hidden, history)
        weights = self.weight(torch.sigmoid(self.last(last).unsqueeze(1) + self.each(hidden)))
        mixed = (weights * (history > 0).unsqueeze(-1) * hidden).sum(1)
        return self.out(self.after(torch.cat([mixed, last], 1)))
