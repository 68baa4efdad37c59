"""SASRecCPR: SASRec that ends in a softmax with contexts, pointers and a reranker.

Chang, Agarwal and McCallum, WSDM 2024, over Kang and McAuley, ICDM 2018:

    h = transformer(x + positions), causal        P = SoftmaxCPR(h of the last layers)

shoal/models/nn/softmax_cpr.py has the softmax.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.softmax_cpr import CPR_SWITCHES, CPR_WITHOUT_EFFECT, CPROptions, SoftmaxCPR
from shoal.models.nn.transformer import Transformer
from shoal.models.options import Count
from shoal.models.sequential.base import AttentionOptions, num_places
from shoal.models.sequential.distribution import Distribution


class SASRecCPR(Distribution):
    """A transformer whose softmax decides whether to copy from the history."""

    recbole_options: ClassVar[Mapping[str, str]] = CPR_SWITCHES
    recbole_without_effect: ClassVar[Mapping[str, str]] = CPR_WITHOUT_EFFECT

    class Options(AttentionOptions, CPROptions, Distribution.Options):
        hidden_size: int = 64
        initializer_range: float = 0.02
        hidden_dropout_prob: float = 0.0
        attn_dropout_prob: float = 0.1
        n_facet_hidden: Count = 2  # layers whose states are read, from the last one on

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, std = options.hidden_size, options.initializer_range
        items = Table("item", width, facts.num_items, Init("normal", std), padding=0)
        self.embed = Embeddings(history=items, target=items)
        if options.use_out_emb:
            wanted = Table("output", width, facts.num_items, Init("normal", std))
            self.embed = Embeddings(history=items, target=wanted)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * std)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.transformer = Transformer.of(options, width, std, causal=True)
        self.num_layers = min(options.n_facet_hidden, options.n_layers)
        self.softmax = SoftmaxCPR(options, width, self.num_layers)

    def log_probabilities(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        places = num_places(history, self.facts)
        read = self.dropout(self.embed.field("history", batch) + self.positions[:places])
        states = self.transformer.by_layer(read, history == 0)[-self.num_layers :]
        return self.softmax(states[::-1], history, self.embed.whole("target"))
