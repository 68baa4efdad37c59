"""SASRec: Self-Attentive Sequential Recommendation, Kang and McAuley, ICDM 2018.

A causal transformer reads a user's items in order. At every position its state is asked for the
next item, so a history of l items trains l predictions in one pass:

    history   a b c 0      (left-aligned, 0 pads)
    target    b c d 0
    state     h h h .      score(item) = <h, item>, with the item vectors that were read
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import Activation, CausalTransformer
from shoal.models.sequential.base import NextItem


class SASRec(NextItem):
    """Self-attention over the history; the state at its last item is the query.

    Layers are pre-norm, x + dropout(g(norm(x))), as in section III-B of the paper.
    """

    @dataclass
    class Options(NextItem.Options):
        n_layers: int = 2
        n_heads: int = 2
        hidden_size: int = 64
        inner_size: int = 256
        hidden_dropout_prob: float = 0.5
        attn_dropout_prob: float = 0.5
        hidden_act: Activation = "gelu"
        layer_norm_eps: float = 1e-12
        initializer_range: float = 0.02

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        plain = options.loss_type == "CE" and not (options.cosine or options.label_smoothing)
        self.cuda_graph_safe = plain
        self.make_items(options.hidden_size, options.initializer_range)
        self.positions = nn.Parameter(torch.empty(facts.max_len, options.hidden_size))
        nn.init.normal_(self.positions, std=options.initializer_range)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.transformer = CausalTransformer(
            layers=options.n_layers,
            heads=options.n_heads,
            width=options.hidden_size,
            inner_width=options.inner_size,
            dropout=options.hidden_dropout_prob,
            attention_dropout=options.attn_dropout_prob,
            activation=options.hidden_act,
            norm_eps=options.layer_norm_eps,
            init_std=options.initializer_range,
        )

    def encode(self, vectors: Tensor) -> Tensor:
        """States of every position: item vectors [b, l, d] -> [b, l, d].

        Pads come after the items, and no position sees a later one: so pads need no mask.
        """
        places = self.position_ids(vectors)
        return self.transformer(self.dropout(vectors + self.positions[: len(places)]))

    def states(self, batch: Batch) -> Tensor:
        return self.encode(self.embed.field("history", batch))
