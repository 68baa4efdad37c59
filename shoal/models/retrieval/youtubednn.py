"""YoutubeDNN: Deep Neural Networks for YouTube Recommendations, Covington et al., RecSys 2016: the
candidate generation.

    query = relu layers of [user, mean of the history]        score = <query, item>
"""

from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Table
from shoal.models.nn.mlp import MLP
from shoal.models.retrieval.base import InBatch
from shoal.models.sequential.base import SEQUENCE_DEFAULTS, lengths


class YoutubeDNN(InBatch):
    """A perceptron over the mean of what a user took, asked for the next item."""

    kind = "sequential"
    samples = "prefixes"

    class Options(InBatch.Options):
        mlp_hidden_size: list[int] = field(default_factory=lambda: [128, 64])
        dropout_prob: float = 0.0

        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("normal", options.embedding_size**-0.5)
        users = Table("user", width, facts.num_users, init)
        items = Table("item", width, facts.num_items, init, padding=0)
        self.embed = Embeddings({facts.user_field: users, "history": items, "target": items})
        sizes = [2 * width, *options.mlp_hidden_size]
        layers = MLP(sizes, options.dropout_prob)
        self.tower = nn.Sequential(layers, nn.Linear(sizes[-1], width))

    def query(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, [self.facts.user_field, "history"])
        count = lengths(batch.tensor("history")).clamp(min=1)
        mean = rows["history"].sum(1) / count.unsqueeze(1)
        return self.tower(torch.cat([rows[self.facts.user_field], mean], 1))
