"""SASRec: Self-Attentive Sequential Recommendation, Kang and McAuley, ICDM 2018.

A causal transformer reads a user's items in order. At every position its state is asked for the
next item, so a history of l items trains l predictions in one pass:

    history   a b c 0      (left-aligned, 0 pads)
    target    b c d 0
    state     h h h .      score(item) = <h, item>, with the item vectors that were read
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import Transformer
from shoal.models.sequential.base import AttentionOptions, NextItem, num_places, tokens_of
from shoal.models.sequential.extending import Extending


class SASRec(Extending):
    """Self-attention over the history; the state at its last item is the query.

    Layers are pre-norm, x + dropout(g(norm(x))), as in section III-B of the paper.
    """

    class Options(AttentionOptions, NextItem.Options):
        hidden_size: int = 64
        initializer_range: float = 0.02

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = options.loss_type == "CE"
        width, std = options.hidden_size, options.initializer_range
        self.make_items(width, std)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * std)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.transformer = Transformer.of(options, width, std, causal=True)
        self.state_width = self.transformer.state_width

    def encode(self, vectors: Tensor, pads: Tensor | None = None, *some: Tensor | None) -> Tensor:
        """States of every position: item vectors [b, l, d] -> [b, l, d]; pads bool [b, l].

        some: places whose states are wanted, and places of items, as in Transformer.forward.
        """
        places = num_places(vectors, self.facts)
        return self.transformer(self.dropout(vectors + self.positions[:places]), pads, *some)

    def inputs(self, batch: Batch) -> Tensor:
        """What the transformer reads at every place of the history, before positions: [b, l, d]."""
        return self.embed.field("history", batch)

    def states(self, batch: Batch) -> Tensor:
        return self.encode(self.inputs(batch), batch.tensor("history") == 0)

    def states_at(self, batch: Batch, asked: Tensor) -> Tensor:
        pads = batch.tensor("history") == 0
        return self.encode(self.inputs(batch), pads, asked, tokens_of(batch))

    def extended(self, batch: Batch) -> Tensor:
        kept, new = batch.dense["kept"], batch.tensor("new")
        place = torch.arange(kept.shape[0], kept.shape[0] + new.shape[0], device=kept.device)
        x = self.embed.rows("history", new) + self.positions[place]
        rows, states = self.transformer.extended(x, kept)
        return torch.cat([rows, self.asked(states)], 1)
