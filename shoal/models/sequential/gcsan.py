"""GCSAN: Graph Contextualized Self-Attention Network for Session-based Recommendation, Xu et al.,
IJCAI 2019.

A gated network over the session's graph, as SRGNN has it, whose nodes then look at each other:

    h = gated steps along the edges of the session        z = transformer(h)
    state = weight * z_last + (1 - weight) * h_last        score(item) = <state, item>
"""

from dataclasses import replace

from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.transformer import Transformer
from shoal.models.options import Share
from shoal.models.sequential.base import AttentionOptions, NextItem, at_last, last_of_all
from shoal.models.sequential.session import SessionGraph


class GCSAN(SessionGraph):
    """A session's graph, then self-attention in which every place sees all others."""

    class Options(AttentionOptions, NextItem.Options):
        hidden_size: int = 64
        initializer_range: float = 0.02
        step: int = 1  # number of steps along the edges of the graph
        weight: Share = 0.6  # share of attention in the state; the rest is the last node's
        reg_weight: float = 5e-5

    def __init__(self, options: Options, facts: Facts):
        width, std = options.hidden_size, options.initializer_range
        super().__init__(options, facts, width, std)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
        self.transformer = Transformer.of(options, width, std, causal=False)

    def states(self, batch: Batch) -> Tensor:
        history, weight = batch.tensor("history"), self.options.weight
        hidden = self.along_edges(batch)
        attended = self.transformer(hidden, history == 0, last_of_all(history))
        return weight * attended + (1.0 - weight) * at_last(hidden, history)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        penalty = self.options.reg_weight * self.row_penalty(batch)
        return replace(output, loss=output.loss + penalty)
