"""HGN: Hierarchical Gating Networks for Sequential Recommendation, Ma, Kang and Liu, KDD 2019.

A gate for each number of an item's vector, then one for each item, both opened by the user u:

    x'_j = x_j * sigmoid(W1 x_j + W2 u + b)        g_j = sigmoid(<w3, x'_j> + (W4 u)_j)
    state = u + pooled g_j x'_j + sum of x_j        score(item) = <state, item'>

Average pooling is sum of g_j x'_j / sum of g_j. Items that are read and items that are recommended
have separate vectors.
"""

from dataclasses import field, replace

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Table
from shoal.models.sequential.base import NextItem, Pooling, lengths, num_places, pooled


class HGN(NextItem):
    """Gates of features and of items; positions are counted back from the newest item."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        pooling_type: Pooling = "average"  # how the gated items become one vector
        # L2 penalties: on the weights of gates, and on the vectors that a sample reads
        reg_weight: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        init = Init("normal", 1.0 / width)
        users = Table("user", width, facts.num_users, init)
        read = Table("item", width, facts.num_items, init, padding=0)
        items = Table("next", width, facts.num_items, init, padding=0)
        self.embed = Embeddings(
            {facts.user_field: users}, history=read, target=items, neg_item=items
        )
        self.item_features = nn.Linear(width, width)
        self.user_features = nn.Linear(width, width, bias=False)
        self.item_gate = nn.Linear(width, 1)
        self.user_gate = nn.Linear(width, facts.max_len, bias=False)
        self.gates = [self.item_features, self.user_features, self.item_gate, self.user_gate]
        for gate in self.gates:
            nn.init.xavier_uniform_(gate.weight)
            if gate.bias is not None:
                nn.init.zeros_(gate.bias)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length, pads = num_places(history, self.facts), history == 0
        rows = self.embed(batch, ["history", self.facts.user_field])
        items, user = rows["history"], rows[self.facts.user_field]
        opened = self.item_features(items) + self.user_features(user).unsqueeze(1)
        features = items * torch.sigmoid(opened)
        place = torch.arange(length, device=history.device)
        age = (lengths(history).unsqueeze(1) - 1 - place).clamp(min=0)
        by_user = self.user_gate(user).gather(1, age)
        gates = torch.sigmoid(self.item_gate(features).squeeze(2) + by_user) * ~pads
        gated = features * gates.unsqueeze(2)
        if self.options.pooling_type == "average":
            chosen = gated.sum(1) / gates.sum(1, keepdim=True).clamp(min=1e-9)
        else:
            chosen = pooled(gated, pads, "max")
        return user + chosen + items.sum(1)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        of_weights, of_rows = self.options.reg_weight
        loss = output.loss
        if of_weights:
            weights = 0.5 * sum(gate.weight.square().sum() for gate in self.gates)
            loss = loss + of_weights * weights * output.count
        if of_rows:
            loss = loss + of_rows * self.row_penalty(batch)
        return replace(output, loss=loss)
