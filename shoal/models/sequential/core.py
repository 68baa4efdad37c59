"""CORE: Simple and Effective Session-based Recommendation within Consistent Representation Space,
Hou et al., SIGIR 2022.

A session is a weighted mean of its items' own vectors, so both live in one space:

    state = sum of a_i x_i,   a = softmax of w h_i, h from a transformer (or all equal)
    score(item) = cos(state, item) / temperature
"""

from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout, shared_dropout
from shoal.models.nn.transformer import HIDDEN, Transformer
from shoal.models.options import Positive, Share
from shoal.models.sequential.base import AttentionOptions, NextItem, num_places


class CORE(NextItem):
    """A mean of the items of a session; the transformer only decides how much each counts."""

    samples = "prefixes"

    class Options(AttentionOptions, NextItem.Options):
        dnn_type: Literal["trm", "ave"] = "trm"  # what weighs items: a transformer, or nothing
        embedding_size: int = 64
        initializer_range: float = 0.02
        sess_dropout: float = 0.2  # dropout of the items' vectors
        # dropout of the vectors of all items as they are compared, with loss CE
        item_dropout: Share = 0.0
        cosine: bool = True
        temperature: Positive = 0.07

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, std = options.embedding_size, options.initializer_range
        self.make_items(width, width**-0.5)
        self.session_dropout = Dropout(options.sess_dropout)
        if options.dnn_type == "trm":
            self.positions = nn.Parameter(torch.randn(facts.max_len, width) * std)
            self.dropout = Dropout(options.hidden_dropout_prob)
            self.transformer = Transformer.of(options, width, std, causal=False)
            self.weight = nn.Linear(width, 1)

    def every_item(self) -> Tensor:
        items = self.embed.whole("target")
        if self.training:
            items = shared_dropout(items, self.options.item_dropout)
        return self.item_vectors(items)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        items = self.session_dropout(self.embed.field("history", batch))
        pads = history == 0
        scores = torch.zeros(history.shape, device=history.device)
        if self.options.dnn_type == "trm":
            x = self.dropout(items + self.positions[: num_places(history, self.facts)])
            scores = self.weight(self.transformer(x, pads)).squeeze(-1)
        weights = scores.masked_fill(pads, HIDDEN).softmax(1)
        return (weights.unsqueeze(-1) * items).sum(1)
