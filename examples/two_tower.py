"""A two-tower model of one's own, with in-batch negatives and sampling correction.

shoal train --model=examples/two_tower.py:TwoTower --train.epochs=5
shoal train --model=examples/two_tower.py:TwoTower --train.epochs=5 --nproc=2 --strategy=sharded
shoal models examples/two_tower.py:TwoTower

The items of the other samples of a batch are the negatives of each sample:

    loss = sum over b of  -log softmax_j( <query_b, item_j> / temperature - log Q(item_j) ) [j = b]

Q, how often an item comes in a batch, is subtracted because popular items are negatives more often
(Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, RecSys
2019). Samples are those of the *global* batch: `gather_global` has them all, of every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.nn.mlp import MLP


def tower(widths: list[int], out: int) -> nn.Module:
    """[..., widths[0]] -> [..., out], of any sign."""
    return nn.Sequential(MLP(widths), nn.Linear(widths[-1], out))


class TwoTower(Retrieval):
    """A perceptron above the user's row, one above the item's row, and their dot product."""

    @dataclass
    class Options(Retrieval.Options):
        embedding_size: int = 32
        hidden: tuple[int, ...] = (64,)  # widths of the towers' layers between rows and vectors
        temperature: float = 0.1
        corrected: bool = True  # false: log Q is left out

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        size, init = options.embedding_size, Init("normal", 0.05)
        self.embed = Embeddings(
            {
                facts.user_field: Table("user", size, facts.num_users, init),
                facts.item_field: Table("item", size, facts.num_items, init),
            }
        )
        self.query_tower = tower([size, *options.hidden], size)
        self.item_tower = tower([size, *options.hidden], size)
        counts = torch.bincount(facts.train_items, minlength=facts.num_items).clamp(min=1)
        self.log_q: Tensor
        self.register_buffer("log_q", (counts / counts.sum()).log(), persistent=False)

    def encode_query(self, batch: Batch) -> Tensor:
        rows = self.embed.field(self.facts.user_field, batch)
        return functional.normalize(self.query_tower(rows), dim=-1) / self.options.temperature

    def encode_item(self, ids: Tensor) -> Tensor:
        return functional.normalize(
            self.item_tower(self.embed.rows(self.facts.item_field, ids)), dim=-1
        )

    def forward(self, batch: Batch) -> Output:
        field = self.facts.item_field
        rows = self.embed.field(field, batch)
        items = self.gather_global(functional.normalize(self.item_tower(rows), dim=-1))  # [n, d]
        ids = self.gather_global(batch.tensor(field))  # [n]
        scores = self.encode_query(batch) @ items.T  # [b, n]
        if self.options.corrected:
            scores = scores - self.log_q[ids]
        own = torch.arange(batch.first, batch.first + batch.size, device=ids.device)
        # The same item elsewhere in the batch is no negative of a sample that took it.
        same = batch.tensor(field)[:, None] == ids
        same[torch.arange(batch.size, device=ids.device), own] = False
        scores = scores.masked_fill(same, float("-inf"))
        return Output(functional.cross_entropy(scores, own, reduction="sum"), batch.size)
