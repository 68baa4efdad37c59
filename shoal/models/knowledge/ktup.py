"""KTUP: Unifying Knowledge Graph Learning and Recommendation, Cao et al., WWW 2019.

A user takes an item for a reason, one of as many as the graph has relations. With e the vector of
an item's entity, i + e is the item; p_r and q_r are a reason and its relation, v_r and w_r their
planes:

    s_r = softmax(<u + i + e, (p_r + q_r) / 2>)        one reason, drawn by s in training (Gumbel)
    r = sum of s_r (p_r + q_r) / 2        v = sum of s_r (v_r + w_r) / 2
    score = -|u' + r - (i + e)'|^2        x' = x - <x, v> v / |v|^2: x on the plane of v

    loss = BPR + align_weight |i - e|^2 + kg_weight * (TransH of a drawn triple, with a margin)
           + squared cosines of reasons and their planes
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Init, Output, item_blocks
from shoal.models.knowledge.base import KnowledgeModel
from shoal.models.nn.dropout import uniform_like


class KTUP(KnowledgeModel):
    """Recommendation and graph learn in every step; in evaluation the likeliest reason counts."""

    BOTH = "recommendation and graph learn in every step, one triple for each sample"
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "train_rec_step": BOTH,
        "train_kg_step": BOTH,
    }

    class Options(KnowledgeModel.Options):
        embedding_size: int = 64
        use_st_gumbel: bool = True  # one reason for each pair; false: a mixture of all
        L1_flag: bool = False  # distances are sums of absolute values, not of squares
        margin: float = 1.0  # triples are nearer than others by this
        kg_weight: float = 1.0
        align_weight: float = 1.0  # weight of the distance of an item and its entity

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size = options.embedding_size
        self.make_tables(size, items=True, init=Init("normal", size**-0.5))
        # reasons, their planes, relations, their planes: [4, relations, d], rows of length 1
        parts = F.normalize(torch.randn(4, self.num_relations, size), dim=2)
        self.reasons, self.reason_planes, self.relation_rows, self.relation_planes = (
            nn.Parameter(part.clone()) for part in parts
        )

    def forward(self, batch: Batch) -> Output:
        options, items = self.options, self.candidates(batch)
        users = self.embed.field(self.facts.user_field, batch)
        own, entities = self._item_rows(items)  # [b, 1 + k, d] each
        noise = None
        if options.use_st_gumbel:
            drawn = uniform_like(users.new_empty(*items.shape, self.num_relations))
            noise = -(-drawn.log()).log()
        scores = self._scores(users, own + entities, noise)
        margins = scores[:, :1] - scores[:, 1:]
        count = margins.numel()
        # per pair of an item and a negative, as the loss is counted
        apart = self._distance(own - entities).sum() / items.shape[1] * margins.shape[1]
        cosines = F.cosine_similarity(self.reasons, self.reason_planes, dim=1).square().sum()
        loss = -F.logsigmoid(margins).sum() + options.align_weight * apart + cosines * count
        return Output(loss + options.kg_weight * self._triple_loss(batch.size), count)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = self.embed.field(self.facts.user_field, batch)
        own, entities = self._item_rows(torch.atleast_2d(items))
        every = own + entities
        blocks = item_blocks(items.shape[-1], 3 * users.numel())
        return torch.cat([self._scores(users, every[:, block], None) for block in blocks], 1)

    def _item_rows(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of items and of their entities."""
        own = self.embed.rows(self.facts.item_field, items)
        return own, self.embed.rows("node", self.item_node[items])

    def _scores(self, users: Tensor, items: Tensor, noise: Tensor | None) -> Tensor:
        """Users [b, d], items [b or 1, n, d] -> [b, n]; noise [b, n, relations]."""
        reasons = 0.5 * (self.reasons + self.relation_rows)
        planes = 0.5 * (self.reason_planes + self.relation_planes)
        users = users.unsqueeze(1)
        logits = users @ reasons.T + items @ reasons.T  # [b, n, relations]
        shares = (logits if noise is None else logits + noise).softmax(2)
        if self.options.use_st_gumbel:  # one reason counts, and all of them learn
            number = torch.arange(shares.shape[2], device=shares.device)
            likeliest = (shares.argmax(2, keepdim=True) == number).to(shares.dtype)
            shares = likeliest + shares - shares.detach()
        plane = shares @ planes
        moved = on_plane(users, plane) + shares @ reasons - on_plane(items, plane)
        return -self._distance(moved)

    def _distance(self, difference: Tensor) -> Tensor:
        parts = difference.abs() if self.options.L1_flag else difference.square()
        return parts.sum(-1)

    def _triple_loss(self, size: int) -> Tensor:
        """TransH with a margin, for a drawn triple of each sample: scalar.

        Vectors longer than 1 and relations that leave their plane cost something.
        """
        drawn = self.draw(size)
        heads, tails, others = (
            self.embed.rows("node", ids) for ids in (drawn.heads, drawn.tails, drawn.others)
        )
        relation = F.embedding(drawn.relations, self.relation_rows)
        plane = F.embedding(drawn.relations, self.relation_planes)
        moved = on_plane(heads, plane) + relation
        near = self._distance(moved - on_plane(tails, plane))
        far = self._distance(moved - on_plane(others, plane))
        loss = torch.relu(self.options.margin + near - far).sum()
        loss = loss + F.cosine_similarity(relation, plane, dim=1).square().sum()
        for vectors in (heads, tails, others, relation):
            loss = loss + torch.relu(vectors.square().sum(1) - 1.0).sum()
        return loss


def on_plane(vectors: Tensor, normal: Tensor) -> Tensor:
    """Vectors [..., d] projected on the plane of a normal [..., d]."""
    normal = F.normalize(normal, dim=-1)
    return vectors - (vectors * normal).sum(-1, keepdim=True) * normal
