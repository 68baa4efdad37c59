"""MCCLK: Multi-level Cross-view Contrastive Learning for Knowledge-aware Recommender System, Zou et
al., SIGIR 2022.

Three views of items, two of users, which should look alike:

    structural     e_h <- sum of softmax((|e_h * r| |e_t * r|)^2) e_t * r over the edges of h
                   u <- m + (sum of softmax(<u, r>) r) * m,  m the mean of the items taken
    collaborative  LightGCN over users and items
    semantic       the mean of x, A x, ...; A joins an item with the k nearest by cosine, of its own
                   vector (lambda_coeff) and of what the graph makes of it

    score = <[u_str, u_col], [i_str, i_sem + i_col]>
    loss = BPR + beta (alpha contrast(i_sem, i_col)
                       + (1 - alpha) (contrast(u_str, u_col) + contrast(i_str, i_sem + i_col)))
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.knowledge.base import SpreadModel
from shoal.models.nn.dropout import shared_dropout
from shoal.models.nn.edges import Edges
from shoal.models.nn.graph import InteractionGraph
from shoal.models.nn.losses import bpr_loss, pointwise_loss
from shoal.models.nn.nearest import mean_of_nearest
from shoal.models.nn.transformer import feed_forward
from shoal.models.options import Count, Positive, Share
from shoal.models.sequential.cl4srec import alike


class MCCLK(SpreadModel):
    """The nearest items are found anew in every step, from [num_items, num_items] cosines."""

    class Options(SpreadModel.Options):
        embedding_size: int = 64
        reg_weight: float = 1e-5
        n_hops: Count = 2  # steps over the knowledge graph
        node_dropout_rate: Share = 0.5  # share of the graph's edges that a step leaves out
        mess_dropout_rate: Share = 0.1  # dropout of what nodes hear
        lightgcn_layer: int = 2  # layers of the collaborative view
        item_agg_layer: int = 1  # layers of the semantic view
        alpha: Share = 0.2  # share of the contrast of semantic and collaborative views
        beta: float = 0.1  # weight of the contrastive terms
        k: Count = 10  # nearest items that an item is joined with
        lambda_coeff: Share = 0.5  # share of nearness by items' own vectors
        temperature: Positive = 0.8
        # whether nearness by the graph has steps of its own, without attention
        build_graph_separately: bool = True
        loss_type: Literal["BPR", "BCE"] = "BPR"  # the loss of pairs, or of each item

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.graph_edges = self.both_ways(back=self.num_relations)
        users, nodes = self.taken_nodes()
        self.taken = Edges(users, torch.zeros_like(users), nodes, facts.num_users)
        self.interactions = InteractionGraph(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )
        self.by_relation = nn.Parameter(torch.empty(2 * self.num_relations, size))
        nn.init.xavier_normal_(self.by_relation)
        self.local, self.of_users, self.of_items = (feed_forward(size, size) for _ in range(3))

    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Users: structural, collaborative; items: structural, collaborative, semantic."""
        options = self.options
        users, nodes = self.embed.whole(self.facts.user_field), self.embed.whole("node")
        own = F.embedding(self.item_node, nodes)
        structural_users, structural = self._structural(users, nodes, attend=True)
        together = self.interactions.mean(torch.cat([users, own]), options.lightgcn_layer)
        collaborative_users, collaborative = together.split([len(users), len(own)])
        seen = structural
        if options.build_graph_separately:
            _, seen = self._structural(users, nodes, attend=False)
        semantic = mean_of_nearest(
            own, (own, seen), options.lambda_coeff, options.k, options.item_agg_layer
        )
        return structural_users, collaborative_users, structural, collaborative, semantic

    def _structural(self, users: Tensor, nodes: Tensor, attend: bool) -> tuple[Tensor, Tensor]:
        """Users and items by the knowledge graph, the mean of all steps: [users or items, d]."""
        options, edges = self.options, self.graph_edges
        relations = F.embedding(edges.relations, self.by_relation)
        kept = relations.new_ones(len(edges), 1)
        pairs = relations.new_ones(len(self.taken), 1)
        if self.training:
            kept = shared_dropout(kept, options.node_dropout_rate)
            pairs = shared_dropout(pairs, options.mess_dropout_rate)
        total_users, total_nodes = users, nodes
        for _ in range(options.n_hops):
            messages = relations * F.embedding(edges.tails, nodes)
            if attend:
                heads = (F.embedding(edges.heads, nodes) * relations).square().sum(1)
                scores = heads * messages.square().sum(1)
                messages = messages * edges.shares(scores).unsqueeze(1)
            heard = self.taken.total(pairs * F.embedding(self.taken.tails, nodes))
            heard = heard / self.taken.degrees()
            wanted = (users @ self.by_relation.T).softmax(1) @ self.by_relation
            users, nodes = heard + wanted * heard, edges.total(kept * messages)
            if self.training:
                users, nodes = (
                    shared_dropout(x, options.mess_dropout_rate) for x in (users, nodes)
                )
            users, nodes = F.normalize(users, dim=1), F.normalize(nodes, dim=1)
            total_users, total_nodes = total_users + users, total_nodes + nodes
        share = 1.0 / (options.n_hops + 1)
        return share * total_users, share * F.embedding(self.item_node, total_nodes)

    def propagate(self) -> tuple[Tensor, Tensor]:
        users, other_users, items, collaborative, semantic = self.views()
        return torch.cat([users, other_users], 1), torch.cat([items, semantic + collaborative], 1)

    def forward(self, batch: Batch) -> Output:
        options = self.options
        users, other_users, items, collaborative, semantic = self.views()
        ids, negatives = batch.tensor(self.facts.item_field), self.negatives(batch)
        user_ids = batch.tensor(self.facts.user_field)
        query = F.embedding(user_ids, torch.cat([users, other_users], 1))
        every_item = torch.cat([items, semantic + collaborative], 1)
        right, wrong = F.embedding(ids, every_item), F.embedding(negatives, every_item)
        if options.loss_type == "BPR":
            loss = bpr_loss(query, right, wrong)
        else:
            scores = torch.cat([right.unsqueeze(1), wrong], 1) @ query.unsqueeze(2)
            loss = pointwise_loss(scores.squeeze(2))
        size = query.square().sum() + right.square().sum() + wrong.square().sum()
        of_views = options.alpha * self._contrast(batch, ids, semantic, collaborative, self.local)
        across = self._contrast(batch, user_ids, users, other_users, self.of_users)
        across += self._contrast(batch, ids, items, semantic + collaborative, self.of_items)
        contrast = options.beta * (of_views + (1.0 - options.alpha) * across)
        contrast = contrast * negatives.shape[1]  # the loss has a term for every negative
        return Output(loss + 0.5 * options.reg_weight * size + contrast, negatives.numel())

    def _contrast(
        self, batch: Batch, ids: Tensor, first: Tensor, second: Tensor, layers: nn.Module
    ) -> Tensor:
        """Half the contrast of two views of ids [b], both ways, over the global batch: scalar."""
        one_view, other_view = (
            F.normalize(layers(F.embedding(ids, view)), dim=1) for view in (first, second)
        )
        return 0.5 * alike(
            one_view, other_view, batch.first, self.gather_global, self.options.temperature
        )

    def encode_item(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.propagated()[1])
