"""NNCF: A Neural Collaborative Filtering Model with Interaction-based Neighborhood, Bai et al.,
CIKM 2017.

Beside the vectors of a user and an item stand some of the items that the user took and some of the
users who took the item, read by convolutions:

    h = [u * i, pool(conv(rows of neigh_num items)), pool(conv(rows of neigh_num users))]
    logit = <w, relu layers(h)> + b               trained as a yes/no question, with log loss

Neighbours are drawn once, the same ones for the same data; the paper finds them by communities.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Table, item_blocks
from shoal.models.nn.losses import pointwise_loss
from shoal.models.nn.mlp import MLP, begin_xavier
from shoal.models.nn.user_items import UserItems, nearest, taken_by_users, takers_of_items
from shoal.models.options import Count


class NNCF(Model):
    """Matrix factorisation and neighbourhoods, fused.

    neighbours of users [b, 1, c], of items and k negatives [b, 1 + k, c] -> logits [b, 1 + k]
    """

    recbole_without_effect: ClassVar[Mapping[str, str]] = {"resolution": "louvain alone reads it"}
    of_users: Tensor  # [num_users, neigh_num]: items
    of_items: Tensor  # [num_items, neigh_num]: users

    class Options(Model.Options):
        ui_embedding_size: int = 64  # width of the vectors of users and items
        neigh_embedding_size: int = 32  # width of the vectors of neighbours
        num_conv_kernel: Count = 128  # kernels of the convolution over neighbours
        conv_kernel_size: Count = 5  # neighbours that a kernel reads at a time
        pool_kernel_size: Count = 5  # places of the convolution of which the largest value stays
        mlp_hidden_size: list[int] = field(default_factory=lambda: [128, 64, 32, 16])
        neigh_num: Count = 20  # neighbours of a user, and of an item
        dropout: float = 0.5
        # random: of those taken, some again if there are few; knn: few ones are followed by those
        # that are most alike to one of them
        neigh_info_method: Literal["random", "knn"] = "random"

        def __post_init__(self) -> None:
            if self.neigh_num < self.conv_kernel_size + self.pool_kernel_size - 1:
                raise ValueError(
                    f"model.neigh_num is {self.neigh_num}, and a convolution of "
                    f"{self.conv_kernel_size} with a pool of {self.pool_kernel_size} needs "
                    f"{self.conv_kernel_size + self.pool_kernel_size - 1} neighbours"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        small, normal = options.neigh_embedding_size, Init("normal", 0.01)
        self.embed = Embeddings(
            user=Table("user", options.ui_embedding_size, facts.num_users, normal),
            item=Table("item", options.ui_embedding_size, facts.num_items, normal),
            taken=Table("taken_item", small, facts.num_items, normal),
            taker=Table("taking_user", small, facts.num_users, normal),
        )
        self.user_layer, self.item_layer = Neighbourhood(options), Neighbourhood(options)
        places = (options.neigh_num - options.conv_kernel_size + 1) // options.pool_kernel_size
        width = options.ui_embedding_size + 2 * places * options.num_conv_kernel
        self.mlp = MLP([width, *options.mlp_hidden_size], options.dropout)
        self.predict = nn.Linear(options.mlp_hidden_size[-1], 1)
        begin_xavier(self)
        taken, takers = taken_by_users(facts), takers_of_items(facts)
        for name, own, others in (("of_users", taken, takers), ("of_items", takers, taken)):
            self.register_buffer(name, self._neighbours(own, others), persistent=False)

    def _neighbours(self, own: UserItems, others: UserItems) -> Tensor:
        """Neighbours of all users, or with users as the items of items: [num, neigh_num]."""
        count, random = self.options.neigh_num, torch.Generator().manual_seed(0)
        starts, sizes = own.starts[:-1].unsqueeze(1), own.starts.diff().unsqueeze(1)
        drawn = torch.rand(len(sizes), count, generator=random, dtype=torch.float64)
        if not len(own.items):
            return torch.zeros(len(sizes), count, dtype=torch.int64)
        places = (starts + (drawn * sizes).long()).clamp(max=len(own.items) - 1)
        ids = torch.where(sizes > 0, own.items[places], 0)
        if self.options.neigh_info_method == "random":
            return ids
        alike = torch.cat([index for _, index in nearest(own, count, 0.0)])
        alike = F.pad(alike, (0, count - alike.shape[1]))
        column = torch.arange(count).expand(len(sizes), -1)
        more = alike[ids[:, :1], (column - sizes).clamp(min=0)]
        filled = torch.where(column < sizes, own.latest(torch.arange(len(sizes)), count), more)
        return torch.where((sizes > 0) & (sizes < count), filled, ids)

    def _read(self, side: Literal["user", "item"], ids: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of users or items, and what is read of their neighbours: [..., d], [..., c]."""
        neighbours = self.of_users[ids] if side == "user" else self.of_items[ids]
        rows = self.embed.rows("taken" if side == "user" else "taker", neighbours)
        layer = self.user_layer if side == "user" else self.item_layer
        read = layer(rows.flatten(0, -3))
        return self.embed.rows(side, ids), read.view(*ids.shape, read.shape[-1])

    def _logits(self, users: tuple[Tensor, Tensor], items: tuple[Tensor, Tensor]) -> Tensor:
        """Logits of pairs; users and items are broadcast: [b, 1, ...], [b or 1, n, ...]."""
        met = users[0] * items[0]
        read = [part.expand(*met.shape[:2], -1) for part in (users[1], items[1])]
        return self.predict(self.mlp(torch.cat([met, *read], 2))).squeeze(2)

    def forward(self, batch: Batch) -> Output:
        positives = batch.tensor(self.facts.item_field).unsqueeze(1)
        items = torch.cat([positives, self.negatives(batch)], 1)
        users = batch.tensor(self.facts.user_field).unsqueeze(1)
        logits = self._logits(self._read("user", users), self._read("item", items))
        return Output(pointwise_loss(logits), logits.numel())

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        users = batch.tensor(self.facts.user_field).unsqueeze(1)
        return partial(self._score_block, self._read("user", users))

    def _score_block(self, users: tuple[Tensor, Tensor], items: Tensor) -> Tensor:
        vectors, read = self._read("item", torch.atleast_2d(items))
        parts = [
            self._logits(users, (vectors[:, block], read[:, block]))
            for block in item_blocks(items.shape[-1], users[0].shape[0] * self.mlp.width)
        ]
        return torch.cat(parts, 1)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.scorer(batch)(items)


class Neighbourhood(nn.Module):
    """A convolution over rows of neighbours, and the largest of every few places of it.

    [b, neigh_num, e] -> [b, places * num_conv_kernel]
    """

    def __init__(self, options: NNCF.Options):
        super().__init__()
        inputs, kernels = options.neigh_embedding_size, options.num_conv_kernel
        self.layer = nn.Conv1d(inputs, kernels, options.conv_kernel_size)
        self.pool = options.pool_kernel_size

    def forward(self, rows: Tensor) -> Tensor:
        maps = self.layer(rows.mT)
        places = maps.shape[2] // self.pool
        pooled = maps[:, :, : places * self.pool].unflatten(2, (places, self.pool)).amax(3)
        return pooled.relu().flatten(1)
