"""What models share that are one matrix of item-to-item weights, made of the data in one pass.

score(user, item) = sum of W[i, item] over the items i that the user took
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Retrieval
from shoal.models.folding import ItemsFolding
from shoal.models.nn.closed_form import Progress, expect_solution
from shoal.models.nn.user_items import multi_hot, taken_by_users


class ItemWeights(Retrieval):
    """Scores by item-to-item weights; a new user needs no training, only items.

    `encode_item` gives an item's column of W: the weight of each item for it.
    """

    trainable = False
    sparse_queries = True

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.taken = taken_by_users(facts)

    def fold_in(self, lists: Jagged) -> Tensor:
        return multi_hot(lists, self.facts.num_items)

    def folding(self) -> ItemsFolding | None:
        is_plain = type(self).fold_in is ItemWeights.fold_in
        return ItemsFolding() if is_plain else None

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        return self.encode_item(item.view(1))[0, taken]

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        if items.dim() == 1:
            return super().score(batch, items)
        ids, place = torch.unique(items, return_inverse=True)
        queries = self.encode_query(batch)
        blocks = [queries @ self.encode_item(some).T for some in ids.split(1 << 12)]
        return torch.cat(blocks, 1).gather(1, place)


class SparseWeights(ItemWeights):
    """Weights of which most are 0: item j's are values[starts[j]:starts[j + 1]], of `items`."""

    starts: Tensor  # [num_items + 1]
    items: Tensor  # [weights]
    values: Tensor  # [weights]

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        expect_solution(self, "starts", facts.num_items + 1, dtype=torch.int64)
        expect_solution(self, "items", None, dtype=torch.int32)
        expect_solution(self, "values", None)

    def solve(self) -> None:
        counts, items, values = [], [], []
        progress = Progress(type(self).__name__, self.facts.num_items)
        done = 0
        for block in self.weight_blocks():
            row, column = block.nonzero(as_tuple=True)
            counts.append(torch.bincount(row, minlength=len(block)))
            items.append(column.int())
            values.append(block[row, column])
            done += len(block)
            progress(done)
        self.starts = F.pad(torch.cat(counts).cumsum(0), (1, 0))
        self.items, self.values = torch.cat(items), torch.cat(values)

    def weight_blocks(self) -> Iterator[Tensor]:
        """The weights that each item is scored by, some items at a time: [b, num_items]."""
        raise NotImplementedError  # every such model writes its own

    def encode_item(self, ids: Tensor) -> Tensor:
        first, flat = self.starts[ids].view(-1), ids.reshape(-1)
        counts = self.starts[flat + 1] - first
        offsets = F.pad(counts.cumsum(0), (1, 0))
        row = torch.arange(len(flat), device=ids.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=ids.device) + (first - offsets[:-1])[row]
        vectors = self.values.new_zeros(len(flat), self.facts.num_items)
        vectors[row, self.items[place].long()] = self.values[place]
        return vectors.view(*ids.shape, -1)
