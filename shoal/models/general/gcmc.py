"""GCMC: Graph Convolutional Matrix Completion, van den Berg et al., KDD 2018 deep learning day.

A graph autoencoder: the encoder spreads a row of each node along its edges once, the decoder tells
edges from pairs that are none by several bilinear forms:

    Z = W relu(D^-1/2 A D^-1/2 drop(X))        logit = sum over b of a_b <u Q_b, i>

trained as a yes/no question, with log loss. Interactions are of one kind here, as in RecBole: with
one kind of edge, sums and stacks of kinds are the same.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output, Propagated
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.losses import pointwise_loss
from shoal.models.options import Count


class GCMC(LightGCN):
    """Rows of nodes, spread once, and a bilinear decoder."""

    cuda_graph_safe = False
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "accum": "interactions are of one kind: a sum and a stack of one are the same",
        "sparse_feature": "a node's feature is its own row, read without a matrix",
        "class_num": "there is an interaction or there is none: two classes",
    }

    class Options(Propagated.Options):
        embedding_size: int = 64  # width of the vectors that the decoder reads
        gcn_output_dim: int = 500  # width of the rows that spread over the graph
        dropout_prob: float = 0.3  # dropout of nodes, and of what spread
        num_basis_functions: Count = 2  # bilinear forms of the decoder

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        width, forms = options.embedding_size, options.num_basis_functions
        self.dense = nn.Linear(options.gcn_output_dim, width, bias=False)
        nn.init.xavier_uniform_(self.dense.weight)
        bases = [nn.init.orthogonal_(torch.empty(width, width), gain=1.1) for _ in range(forms)]
        self.bases = nn.Parameter(torch.stack(bases))
        self.weigh = nn.Parameter(torch.full((forms,), 1.0 / forms))

    def row_width(self) -> int:
        return self.options.gcn_output_dim

    def last_layer(self, first: Tensor) -> Tensor:
        rate = self.options.dropout_prob
        if self.training:
            first = first * shared_dropout(first.new_ones(len(first), 1), rate)
        hidden = torch.relu(self.graph(first))
        return self.dense(shared_dropout(hidden, rate) if self.training else hidden)

    def _asking(self, users: Tensor) -> Tensor:
        """What meets the vectors of items: [b, d] -> [b, d]."""
        return users @ torch.einsum("k,kde->de", self.weigh, self.bases)

    def forward(self, batch: Batch) -> Output:
        nodes = self.nodes(batch)  # [b, 2 + k]
        vectors = F.embedding(nodes, self.propagated()[1])
        queries = self._asking(vectors[:, 0])
        logits = torch.einsum("bd,bnd->bn", queries, vectors[:, 1:])
        return Output(pointwise_loss(logits), logits.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        return self._asking(super().encode_query(batch))
