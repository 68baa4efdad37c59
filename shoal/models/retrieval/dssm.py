"""DSSM: Learning Deep Structured Semantic Models for Web Search using Clickthrough Data, Huang et
al., CIKM 2013, as two towers over ids: Sampling-Bias-Corrected Neural Modeling for Large Corpus
Item Recommendations, Yi et al., RecSys 2019.

    score = cos(tower(user), tower'(item)) / temperature
    loss  = -ln softmax over the items of the batch, each logit less ln of how often its item occurs
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.mlp import MLP
from shoal.models.retrieval.base import InBatch


class DSSM(InBatch):
    """Two towers that meet in a cosine."""

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "double_tower": (True, "there are two towers")
    }

    class Options(InBatch.Options):
        mlp_hidden_size: list[int] = field(default_factory=lambda: [128])
        dropout_prob: float = 0.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("xavier_normal")
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings({facts.user_field: users, facts.item_field: items})
        self.user_tower, self.item_tower = self._tower(), self._tower()

    def _tower(self) -> nn.Module:
        width, hidden = self.options.embedding_size, self.options.mlp_hidden_size
        layers = MLP([width, *hidden], self.options.dropout_prob)
        return nn.Sequential(layers, nn.Linear([width, *hidden][-1], width))

    def query(self, batch: Batch) -> Tensor:
        return self.user_tower(self.embed.field(self.facts.user_field, batch))

    def item(self, rows: Tensor) -> Tensor:
        return self.item_tower(rows)
