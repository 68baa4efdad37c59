"""RippleNet: Propagating User Preferences on the Knowledge Graph, Wang et al., CIKM 2018.

What a user took spreads along the graph; the candidate v decides which of it counts:

    p = softmax of <v, R h> over the user's triples (h, r, t) of a hop        o = sum of p t
    v <- W (v + o)        score = <v after all hops, sum of all o>
    loss = cross entropy - kg_weight * sum of sigmoid(<h, R t>) over the triples

A user has `n_memory` triples of each hop, drawn once: walks from items that the user took.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import SCORE_BLOCK, Facts, Output
from shoal.models.knowledge.base import KnowledgeModel, moved_by, pointwise
from shoal.models.nn.edges import Edges
from shoal.models.nn.mlp import begin_by_width
from shoal.models.nn.user_items import distinct


class RippleNet(KnowledgeModel):
    """Has no vectors of users: a user is what was taken, and what that leads to."""

    memory: Tensor  # [num_users, hops, n_memory, 3]: head, relation, tail; 0 where a walk ended

    @dataclass
    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        n_hop: int = 2  # hops from the items of a user
        n_memory: int = 16  # triples of a hop that are looked at
        kg_weight: float = 0.01

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        nodes = Table("node", size, self.num_nodes, Init("xavier"), padding=0)
        self.embed = Embeddings({"node": nodes})
        forms = torch.randn(self.num_relations, size, size) * size**-0.5
        self.forms = nn.Parameter(forms)
        self.change = nn.Linear(size, size, bias=False)
        begin_by_width(self.change)
        self.register_buffer("memory", self._walks())

    def _walks(self) -> Tensor:
        """The triples that walks from every user's items go along."""
        users, items = self.facts.train_users.long(), self.facts.train_items.long()
        taken = Edges(users, torch.zeros_like(users), self.item_node[items], self.facts.num_users)
        everyone = torch.arange(self.facts.num_users).unsqueeze(1)
        drawn = taken.random(everyone.repeat(1, self.options.n_memory))
        at = torch.where(drawn >= 0, taken.tails[drawn], 0)
        # gone both ways: what has the same author is two steps away
        both = torch.cat([self.heads, self.tails]), torch.cat([self.tails, self.heads])
        edges = Edges(both[0], self.relations.repeat(2), both[1], self.num_nodes)
        hops = []
        for _ in range(self.options.n_hop):
            along = edges.random(at)
            parts = torch.stack([edges.heads[along], edges.relations[along], edges.tails[along]], 2)
            parts = parts * (along >= 0).unsqueeze(2)
            hops.append(parts)
            at = parts[:, :, 2]
        return torch.stack(hops, 1)

    def forward(self, batch: Batch) -> Output:
        users, items, negatives = self.samples_of(batch)
        who, place = distinct(users)  # what is made of a user's triples is made once
        heads, tails, sent = self._memory(who)
        every = torch.cat([items.unsqueeze(1), negatives], 1)
        their_tails, their_sent = (
            F.embedding(place, x.flatten(1)).unflatten(1, x.shape[1:]) for x in (tails, sent)
        )
        scores = self._scores(every, their_tails, their_sent, users)
        output = pointwise(scores[:, 0], scores[:, 1:])
        real = self.memory[who][..., 2] > 0
        known = (heads * self._moved(tails, self._by(who))).sum(3)
        times = torch.bincount(place, minlength=len(who))
        of_graph = ((known.sigmoid() * real).sum((1, 2)) * times).sum()
        return Output(output.loss - self.options.kg_weight * of_graph, output.count)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = batch.tensor(self.facts.user_field)
        _, tails, sent = self._memory(users)
        if items.dim() == 1 and not torch.compiler.is_exporting():
            return self._ranked(items, tails, sent, users)
        every = items.expand(users.shape[0], -1) if items.dim() == 1 else items
        return self._scores(every, tails, sent, users)

    def _by(self, users: Tensor) -> Tensor:
        return self.memory[users][..., 1]

    def _memory(self, users: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads, tails and R h of users' triples: [b, hops, memory, d] each."""
        ends = self.embed.rows("node", self.memory[users][..., [0, 2]])
        heads, tails = ends.unbind(3)
        return heads, tails, self._moved(heads, self._by(users))

    def _moved(self, vectors: Tensor, by: Tensor) -> Tensor:
        """R of each vector's relation times the vector: [..., d] of relations [...]."""
        moved = moved_by(vectors.flatten(0, -2), by.flatten(), self.forms.mT)
        return moved.view(vectors.shape)

    def _scores(self, items: Tensor, tails: Tensor, sent: Tensor, users: Tensor) -> Tensor:
        """Of items [b, n]: [b, n]."""
        vectors = self.embed.rows("node", self.item_node[items])  # [b, n, d]
        total = torch.zeros_like(vectors)
        gone = (self.memory[users][..., 2] == 0)[:, :, None, :]  # [b, hops, 1, memory]
        for hop in range(self.options.n_hop):
            scores = torch.einsum("bnd,bmd->bnm", vectors, sent[:, hop])
            shares = scores.masked_fill(gone[:, hop], -1e9).softmax(2)
            found = shares @ tails[:, hop]  # tails of what is gone are zeros
            total = total + found
            vectors = self.change(vectors + found)
        return (vectors * total).sum(2)

    def _ranked(self, items: Tensor, tails: Tensor, sent: Tensor, users: Tensor) -> Tensor:
        """Of items [n] for everyone: [b, n].

        Whatever a candidate becomes is its own vector, changed so often, and a mixture of the
        user's tails, changed too: `change` is taken once for each of these, not once for each pair,
        and only shares are made of pairs. Items are columns.
        """
        own = [self.embed.rows("node", self.item_node[items])]  # after so many changes
        for _ in range(self.options.n_hop):
            own.append(self.change(own[-1]))
        columns = [vectors.T.contiguous() for vectors in own]  # [d, n]
        gone = (self.memory[users][..., 2] == 0).unsqueeze(3)  # [b, hops, memory, 1]
        per_user = self.options.n_hop * self.options.n_memory * len(items)
        block = max(1, SCORE_BLOCK // max(1, per_user))
        parts = zip(tails.split(block), sent.split(block), gone.split(block))
        return torch.cat([self._mixed(columns, *part) for part in parts])

    def _mixed(self, columns: list[Tensor], tails: Tensor, sent: Tensor, gone: Tensor) -> Tensor:
        """Scores of items, given [d, n] after every number of changes, for some users: [b, n]."""
        shares: list[Tensor] = []  # [b, memory, n] each
        ends = tails[:, 0, :0]  # [b, memory of hops, d]
        for hop, now in enumerate(columns[:-1]):
            scores = sent[:, hop] @ now
            if shares:
                scores = scores.baddbmm_(sent[:, hop] @ ends.mT, torch.cat(shares, 1))
            shares.append(scores.masked_fill_(gone[:, hop], -1e9).softmax(1))
            ends = self.change(torch.cat([ends, tails[:, hop]], 1))
        every, heard = torch.cat(shares, 1), tails.flatten(1, 2)  # their sum over memory: all o
        products = (heard @ columns[-1]).baddbmm_(heard @ ends.mT, every)
        return products.mul_(every).sum(1)
