"""MKR: Multi-Task Feature Learning for Knowledge Graph Enhanced Recommendation.

Wang et al., WWW 2019. An item v and its entity e lend each other features in every layer:

    C = v e^T        v <- C w_vv + C^T w_ev + b_v        e <- C w_ve + C^T w_ee + b_e
    score = <relu layers of u, v>        tail of (h, r) = perceptron of [e_h, relu layers of r]
    loss = cross entropy + kg_weight * -ln sigmoid(<tail, t> - <tail, t'>)
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output, Retrieval
from shoal.models.knowledge.base import KnowledgeModel
from shoal.models.nn.losses import half_squares, pointwise_loss
from shoal.models.nn.mlp import MLP, begin_normal


class CrossCompress(nn.Module):
    """Two vectors [n, d] that become two others of their outer product, without making it."""

    def __init__(self, size: int):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, size) * size**-0.5)
        self.biases = nn.Parameter(torch.zeros(2, size))

    def forward(self, item: Tensor, entity: Tensor) -> tuple[Tensor, Tensor]:
        vv, ev, ve, ee = self.weights
        # C w = v <e, w> and C^T w = e <v, w>
        by_entity, by_item = entity @ torch.stack([vv, ve], 1), item @ torch.stack([ev, ee], 1)
        new_item = item * by_entity[..., :1] + entity * by_item[..., :1] + self.biases[0]
        new_entity = item * by_entity[..., 1:] + entity * by_item[..., 1:] + self.biases[1]
        return new_item, new_entity


class MKR(KnowledgeModel, Retrieval):
    """Both tasks learn in every step, from triples whose head is an item."""

    node_item: Tensor  # [nodes]: the item that a node is; 0: none

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "use_inner_product": (True, "the score is the product of user and item")
    }
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "kg_embedding_size": "items and entities cross, so both are embedding_size wide, as there",
        "kge_interval": "both tasks learn in every step; model.kg_weight weighs them",
    }

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        low_layers_num: int = 1  # layers in which items and entities cross
        high_layers_num: int = 1  # layers that make the expected tail of head and relation
        dropout_prob: float = 0.0  # dropout of the perceptrons' layers
        kg_weight: float = 0.5
        reg_weight: float = 0.0  # weight of half the squared norms of users and items

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size, items=True)
        node_item = torch.zeros(self.num_nodes, dtype=torch.int64)
        node_item[self.item_node[1:]] = torch.arange(1, facts.num_items)
        self.register_buffer("node_item", node_item, persistent=False)
        of_items = node_item[self.heads] > 0
        if not of_items.any():
            raise ValueError("MKR learns from triples whose head is an item, and .kg has none")
        self.heads, self.tails = self.heads[of_items], self.tails[of_items]
        self.relations = self.relations[of_items]
        number = options.low_layers_num
        self.units = nn.ModuleList(CrossCompress(size) for _ in range(number))
        self.user_layers = MLP([size] * (number + 1), options.dropout_prob)
        self.relation_layers = MLP([size] * (number + 1), options.dropout_prob)
        sizes = [2 * size] * options.high_layers_num + [size]
        self.tail = nn.Sequential(MLP(sizes, options.dropout_prob), nn.Linear(size, size))
        begin_normal(self)
        self.by_relation = nn.Parameter(torch.randn(self.num_relations, size) * 0.1)

    def forward(self, batch: Batch) -> Output:
        users = self.encode_query(batch).unsqueeze(1)
        items = self.encode_item(self.candidates(batch))
        scores = (users * items).sum(2)
        drawn = self.draw(batch.size)
        _, heads = self._together(self.node_item[drawn.heads], drawn.heads)
        relations = self.relation_layers(self.by_relation[drawn.relations])
        expected = self.tail(torch.cat([heads, relations], 1))
        ends = self.embed.rows("node", torch.stack([drawn.tails, drawn.others], 1))
        margins = (expected * (ends[:, 0] - ends[:, 1])).sum(1)
        of_graph = -F.logsigmoid(margins).sum()
        loss = pointwise_loss(scores) + self.options.kg_weight * of_graph
        if self.options.reg_weight:
            loss = loss + self.options.reg_weight * half_squares(users, items)
        return Output(loss, scores.numel())

    def _together(self, items: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Items and the nodes that they are, after all units."""
        item = self.embed.rows(self.facts.item_field, items)
        entity = self.embed.rows("node", nodes)
        for unit in self.units:
            item, entity = unit(item, entity)
        return item, entity

    def encode_query(self, batch: Batch) -> Tensor:
        return self.user_layers(self.embed.field(self.facts.user_field, batch))

    def encode_item(self, ids: Tensor) -> Tensor:
        return self._together(ids, self.item_node[ids])[0]
