"""LightGCN: Simplifying and Powering Graph Convolution Network, He et al., SIGIR 2020.

Vectors spread over the graph of users and items, and the layers are averaged:

    E(k+1) = D^-1/2 A D^-1/2 E(k)        E = mean of E(0) ... E(n_layers)

Only E(0) is learned, by the BPR loss plus an L2 term on the E(0) of the nodes in the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Propagated, Table
from shoal.models.folding import SumsFolding
from shoal.models.nn.graph import InteractionGraph
from shoal.models.nn.losses import placed_bpr_loss


class LightGCN(Propagated):
    """Graph convolution without weights: every user and item is a node.

    nodes [b, 2 + k] (user, item, negatives)    E(0) and E [users + items, d]    query [b, d]
    """

    cuda_graph_safe = True

    class Options(Propagated.Options):
        embedding_size: int = 64
        n_layers: int = 2  # how often vectors spread over the graph
        reg_weight: float = 1e-5  # weight of the L2 penalty on first-layer vectors
        require_pow: bool = False  # true: the paper's penalty ½‖e‖² per node; false: ‖e‖

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        users = Table("user", self.row_width(), facts.num_users, Init("xavier"))
        items = Table("item", self.row_width(), facts.num_items, Init("xavier"))
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items}
        )
        self.graph = InteractionGraph(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )

    def row_width(self) -> int:
        """The width of the learned vectors."""
        return self.options.embedding_size

    def propagate(self) -> tuple[Tensor, Tensor]:
        """E(0) and E of all nodes, each [num_users + num_items, d]."""
        first = self.first_layer()
        return first, self.last_layer(first)

    def first_layer(self) -> Tensor:
        """The learned vectors of all nodes: [num_users + num_items, d]."""
        return torch.cat(
            [self.embed.whole(self.facts.user_field), self.embed.whole(self.facts.item_field)]
        )

    def last_layer(self, first: Tensor) -> Tensor:
        """What spreading makes of them: one vector for each node."""
        return self.graph.mean(first, self.options.n_layers)

    def nodes(self, batch: Batch) -> Tensor:
        """Nodes of users, items and negatives: [b, 2 + k]."""
        users = batch.tensor(self.facts.user_field).unsqueeze(1)
        items = batch.tensor(self.facts.item_field).unsqueeze(1)
        negatives, offset = self.negatives(batch), self.facts.num_users
        return torch.cat([users, items + offset, negatives + offset], 1)

    def forward(self, batch: Batch) -> Output:
        nodes = self.nodes(batch)
        return self.pair_loss(nodes, *self.propagated())

    def pair_loss(self, nodes: Tensor, first: Tensor, final: Tensor) -> Output:
        """The BPR loss of nodes [b, 2 + k], and the L2 term on their learned vectors."""
        size, k = nodes.shape[0], nodes.shape[1] - 2
        nodes = nodes.T.contiguous()  # [2 + k, b]: vectors of a kind lie together
        loss = placed_bpr_loss(final, nodes)
        # each of the k pairs of a sample holds its user and its item once
        often = first.new_ones(2 + k, 1)
        often[:2] = k
        often = often.expand(-1, size).reshape(-1)
        often = first.new_zeros(len(first)).index_add_(0, nodes.reshape(-1), often)
        if self.options.require_pow:
            penalty = 0.5 * (often @ first.square().sum(1))
        else:
            penalty = often @ torch.linalg.vector_norm(first, dim=1)
        return Output(loss + self.options.reg_weight * penalty, size * k)

    def folding(self) -> SumsFolding | None:
        """A new node beside the graph, whose learned vector is 0: along the graph its layer k + 1
        is the sum of E(k) of the items taken / the roots of their degrees and of its own."""
        kept = ("propagate", "first_layer", "last_layer", "encode_query", "encode_item")
        if any(getattr(type(self), name) is not getattr(LightGCN, name) for name in kept):
            return None
        layer = self.propagated()[0]
        total = torch.zeros_like(layer)
        for _ in range(self.options.n_layers):
            total = total + layer
            layer = self.graph(layer)
        degrees = (self.graph.starts[1:] - self.graph.starts[:-1]).clamp(min=1)
        vectors = total / (degrees.unsqueeze(1) ** 0.5 * (self.options.n_layers + 1))
        return SumsFolding(power=0.5, vectors=vectors[self.facts.num_users :])

    def encode_query(self, batch: Batch) -> Tensor:
        return F.embedding(batch.tensor(self.facts.user_field), self.propagated()[1])

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(ids + self.facts.num_users, self.propagated()[1])
