"""GRU4RecCPR: GRU4Rec that ends in a softmax with contexts, pointers and a reranker.

Chang, Agarwal and McCallum, WSDM 2024, over Hidasi et al., ICLR 2016:

    h_t = GRU(x_t, h_t-1)        P = SoftmaxCPR(W h_1, W h_2, ...)

shoal/models/nn/softmax_cpr.py has the softmax.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.recurrent import GRU
from shoal.models.nn.softmax_cpr import CPR_SWITCHES, CPR_WITHOUT_EFFECT, CPROptions, SoftmaxCPR
from shoal.models.sequential.distribution import Distribution


class GRU4RecCPR(Distribution):
    """A recurrent network whose softmax decides whether to copy from the history."""

    recbole_options: ClassVar[Mapping[str, str]] = CPR_SWITCHES
    recbole_without_effect: ClassVar[Mapping[str, str]] = CPR_WITHOUT_EFFECT

    class Options(CPROptions, Distribution.Options):
        embedding_size: int = 64
        hidden_size: int = 128
        num_layers: int = 1
        dropout_prob: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        items = Table("item", width, facts.num_items, Init("xavier_normal"), padding=0)
        self.embed = Embeddings(history=items, target=items)
        if options.use_out_emb:
            wanted = Table("output", width, facts.num_items, Init("xavier_normal"))
            self.embed = Embeddings(history=items, target=wanted)
        self.dropout = Dropout(options.dropout_prob)
        self.gru = GRU(width, options.hidden_size, options.num_layers)
        self.dense = nn.Linear(options.hidden_size, width)
        self.softmax = SoftmaxCPR(options, width, layers=1)

    def log_probabilities(self, batch: Batch) -> Tensor:
        read = self.dropout(self.embed.field("history", batch))
        states = self.dense(self.gru(read))
        return self.softmax([states], batch.tensor("history"), self.embed.whole("target"))
