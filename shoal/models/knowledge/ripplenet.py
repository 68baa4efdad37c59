"""RippleNet: Propagating User Preferences on the Knowledge Graph, Wang et al., CIKM 2018.

What a user took spreads along the graph; the candidate v decides which of it counts:

    p = softmax of <v, R h> over the user's triples (h, r, t) of a hop        o = sum of p t
    v <- W (v + o)        score = <v after all hops, sum of all o>
    loss = cross entropy - kg_weight * sum of sigmoid(<h, R t>) over the triples

A user has `n_memory` triples of each hop, drawn once: walks from items that the user took.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Table, item_blocks
from shoal.models.knowledge.base import KnowledgeModel, moved_by
from shoal.models.nn.edges import Edges
from shoal.models.nn.losses import pointwise_loss
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.transformer import HIDDEN


class RippleNet(KnowledgeModel):
    """Has no vectors of users: a user is what was taken, and what that leads to."""

    memory: Tensor  # [num_users, hops, n_memory, 3]: head, relation, tail; 0 where a walk ended

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        n_hop: int = 2  # number of hops from the items of a user
        n_memory: int = 16  # triples of a hop that are looked at
        kg_weight: float = 0.01
        reg_weight: float = 0.0  # weight of half the squared norms of users' triples

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        nodes = Table("node", size, self.num_nodes, Init("xavier"), padding=0)
        self.embed = Embeddings({"node": nodes})
        forms = torch.randn(self.num_relations, size, size) * size**-0.5
        self.forms = nn.Parameter(forms)
        self.change = nn.Linear(size, size, bias=False)
        begin_normal(self.change)
        self.register_buffer("memory", self._walks())

    def _walks(self) -> Tensor:
        """The triples that walks from every user's items go along."""
        users, items = self.facts.train_users.long(), self.facts.train_items.long()
        taken = Edges(users, torch.zeros_like(users), self.item_node[items], self.facts.num_users)
        all_users = torch.arange(self.facts.num_users).unsqueeze(1)
        drawn = taken.random(all_users.repeat(1, self.options.n_memory))
        at = torch.where(drawn >= 0, taken.tails[drawn], 0)
        edges = self.both_ways()  # what has the same author is two steps away
        hops = []
        for _ in range(self.options.n_hop):
            along = edges.random(at)
            parts = torch.stack([edges.heads[along], edges.relations[along], edges.tails[along]], 2)
            parts = parts * (along >= 0).unsqueeze(2)
            hops.append(parts)
            at = parts[:, :, 2]
        return torch.stack(hops, 1)

    def forward(self, batch: Batch) -> Output:
        users, place = batch.tensor(self.facts.user_field).unique(return_inverse=True)
        heads, tails, sent = self._memory(users)  # what is made of a user's triples is made once
        vectors = self.embed.rows("node", self.item_node[self.candidates(batch)])  # [b, 1 + k, d]
        real = self.memory[users][..., 2] > 0
        their_tails, their_sent = (
            F.embedding(place, x.flatten(1)).unflatten(1, x.shape[1:]) for x in (tails, sent)
        )
        scores = self._scores(vectors, their_tails, their_sent, real[place])
        triple_scores = (heads * self._moved(tails, self.memory[users][..., 1])).sum(3)
        times = torch.bincount(place, minlength=len(users))
        of_graph = ((triple_scores.sigmoid() * real).sum((1, 2)) * times).sum()
        loss = pointwise_loss(scores) - self.options.kg_weight * of_graph
        if self.options.reg_weight:
            squares = (heads.square() + tails.square()).sum((1, 2, 3))
            loss = loss + self.options.reg_weight * 0.5 * (squares * times).sum()
        return Output(loss, scores.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = batch.tensor(self.facts.user_field)
        _, tails, sent = self._memory(users)
        real = self.memory[users][..., 2] > 0
        vectors = self.embed.rows("node", self.item_node[torch.atleast_2d(items)])
        vectors = vectors.expand(users.shape[0], -1, -1)  # [b, n, d]
        blocks = item_blocks(items.shape[-1], tails[:, 0].numel())
        return torch.cat([self._scores(vectors[:, some], tails, sent, real) for some in blocks], 1)

    def _memory(self, users: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads, tails and R h of users' triples: [b, hops, memory, d] each."""
        ends = self.embed.rows("node", self.memory[users][..., [0, 2]])
        heads, tails = ends.unbind(3)
        return heads, tails, self._moved(heads, self.memory[users][..., 1])

    def _moved(self, vectors: Tensor, by: Tensor) -> Tensor:
        """R of each vector's relation times the vector: [..., d] of relations [...]."""
        moved = moved_by(vectors.flatten(0, -2), by.flatten(), self.forms.mT)
        return moved.view(vectors.shape)

    def _scores(self, vectors: Tensor, tails: Tensor, sent: Tensor, real: Tensor) -> Tensor:
        """Scores [b, n] of items' vectors [b, n, d]; real: which triples exist, bool as memory."""
        total = torch.zeros_like(vectors)
        for hop in range(self.options.n_hop):
            scores = vectors @ sent[:, hop].mT  # [b, n, memory]
            shares = scores.masked_fill(~real[:, hop].unsqueeze(1), HIDDEN).softmax(2)
            response = shares @ tails[:, hop]  # tails of missing triples are zeros
            total = total + response
            vectors = self.change(vectors + response)
        return (vectors * total).sum(2)
