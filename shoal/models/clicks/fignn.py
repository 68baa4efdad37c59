"""FiGNN: Modeling Feature Interactions via Graph Neural Networks for CTR Prediction.

Li et al., CIKM 2019. Features are the nodes of a graph in which each hears all others:

    x = relu(attention of W v over all features + W' v)
    e_ij = softmax over j != i of leaky(<w, [x_i, x_j]>)
    a_i = In_i sum of e_ij Out_j h_j + b        h <- GRU(a, h) + x,  h = x at first
    logit = sum of (W'' h)_i <w', h_i>

In and Out are matrices of each feature.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import begin_xavier
from shoal.models.nn.transformer import HIDDEN, split_heads
from shoal.models.options import Count


class FiGNN(Vectors):
    """Attention between features, then gated steps along the graph of features."""

    recbole_options: ClassVar[Mapping[str, str]] = {"embedding_size": "dim", "num_heads": "n_heads"}

    class Options(Vectors.Options):
        dim: int = 10
        initial_range: float = 0.1
        attention_size: int = 16  # width of nodes, all heads together
        n_layers: Count = 2  # layers of interaction: attention, then steps along the graph
        n_heads: int = 2
        hidden_dropout_prob: float = 0.2
        attn_dropout_prob: float = 0.2

        def __post_init__(self) -> None:
            if self.attention_size % self.n_heads:
                raise ValueError(
                    f"model.attention_size {self.attention_size} does not divide into "
                    f"{self.n_heads} heads of equal width; make it a multiple of model.n_heads"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        width, number = options.attention_size, self.num_vectors
        self.project, self.same = nn.Linear(options.dim, width), nn.Linear(options.dim, width)
        self.query_key_value, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.from_node = nn.Linear(width, 1, bias=False)
        self.to_node = nn.Linear(width, 1, bias=False)
        self.node_score = nn.Linear(width, 1, bias=False)
        self.weigh = nn.Linear(number * width, number, bias=False)
        begin_xavier(self)
        self.steps = nn.ModuleList(GraphStep(number, width) for _ in range(options.n_layers - 1))
        self.cell = nn.GRUCell(width, width) if options.n_layers > 1 else None
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.attention_dropout = Dropout(options.attn_dropout_prob)

    def logits(self, batch: Batch) -> Tensor:
        first = nodes = self._nodes(self.vectors(batch))
        if self.cell is not None:
            edges = self._edges(first)
            for step in self.steps:
                heard = step(edges, nodes).flatten(0, 1)
                nodes = self.cell(heard, nodes.flatten(0, 1)).view(nodes.shape) + first
        weights = self.weigh(nodes.flatten(1))
        return (weights * self.node_score(nodes).squeeze(2)).sum(1)

    def _nodes(self, vectors: Tensor) -> Tensor:
        """What features become that look at each other: [b, n, dim] -> [b, n, width]."""
        parts = self.query_key_value(self.dropout(self.project(vectors))).chunk(3, 2)
        query, key, value = (split_heads(part, self.options.n_heads) for part in parts)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        mixed = self.attention_dropout(scores.softmax(-1)) @ value
        return (self.mix(mixed.transpose(1, 2).flatten(2)) + self.same(vectors)).relu()

    def _edges(self, nodes: Tensor) -> Tensor:
        """How much each node hears each other one: [b, n, n]."""
        scores = self.from_node(nodes) + self.to_node(nodes).transpose(1, 2)
        number = torch.arange(nodes.shape[1], device=nodes.device)
        itself = number.unsqueeze(1) == number
        leaky = nn.functional.leaky_relu(scores, 0.01)
        return leaky.masked_fill(itself, HIDDEN).softmax(2)


class GraphStep(nn.Module):
    """What nodes hear along the edges, by matrices of each node: [b, n, width] -> the same."""

    def __init__(self, number: int, width: int):
        super().__init__()
        self.incoming = nn.Parameter(torch.randn(number, width, width) * width**-0.5)
        self.outgoing = nn.Parameter(torch.randn(number, width, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, edges: Tensor, nodes: Tensor) -> Tensor:
        sent = torch.einsum("bnd,nde->bne", nodes, self.outgoing)
        return torch.einsum("bnd,nde->bne", edges @ sent, self.incoming) + self.bias
