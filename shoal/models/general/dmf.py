"""DMF: Deep Matrix Factorization Models for Recommender Systems, Xue et al., IJCAI 2017.

A user is a row of the matrix of interactions, an item a column of it, and each has a perceptron:

    u = layers(sum of rows of the items taken)        score = <u, i>
    i = layers(sum of rows of the users who took it)

trained as a yes/no question, with log loss. Layers are relu but the last one, which is linear: with
the paper's relu there a product is never below 0, and learning ends where all vectors are 0. The
paper has the cosine for a score, RecBole and this model the product.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Output, Retrieval, Table
from shoal.models.nn.losses import pointwise_loss
from shoal.models.nn.mlp import MLP, begin_xavier
from shoal.models.nn.user_items import taken_by_users, takers_of_items


class DMF(Retrieval):
    """Vectors of users and items by perceptrons of what they met."""

    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "embedding_size": "RecBole's DMF reads its other sizes alone"
    }

    class Options(Retrieval.Options):
        user_embedding_size: int = 64  # width of the first layer of users
        item_embedding_size: int = 64  # width of the first layer of items
        user_hidden_size_list: list[int] = field(default_factory=lambda: [64, 64])  # further layers
        # further layers of items
        item_hidden_size_list: list[int] = field(default_factory=lambda: [64, 64])
        inter_matrix_type: Literal["01"] = "01"  # what an interaction counts: 1

        def __post_init__(self) -> None:
            users, items = self.user_hidden_size_list, self.item_hidden_size_list
            if not users or not items or users[-1] != items[-1]:
                raise ValueError(
                    f"model.user_hidden_size_list is {users} and model.item_hidden_size_list "
                    f"{items}: their last layers meet in a product, so they are equally wide"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.user_embedding_size, Init("normal", 0.01)
        of_users = Table("user_layer", width, facts.num_items, init, padding=0)
        width = options.item_embedding_size
        of_items = Table("item_layer", width, facts.num_users, init, padding=0)
        self.embed = Embeddings(taken=of_users, takers=of_items)
        self.user_layers = perceptron(options.user_embedding_size, options.user_hidden_size_list)
        self.item_layers = perceptron(options.item_embedding_size, options.item_hidden_size_list)
        self.taken, self.takers = taken_by_users(facts), takers_of_items(facts)

    def forward(self, batch: Batch) -> Output:
        users = batch.tensor(self.facts.user_field)
        positives = batch.tensor(self.facts.item_field).unsqueeze(1)
        items = torch.cat([positives, self.negatives(batch)], 1)  # [b, 1 + k]
        scores = torch.einsum("bd,bnd->bn", self._of_users(users), self.encode_item(items))
        return Output(pointwise_loss(scores), scores.numel())

    def _of_users(self, users: Tensor) -> Tensor:
        different, place = users.unique(return_inverse=True)
        return F.embedding(place, self.fold_in(self.taken.lists(different)))

    def fold_in(self, lists: Jagged) -> Tensor:
        return self.user_layers(self.embed.pooled("taken", Batch(len(lists), {"taken": lists})))

    def encode_query(self, batch: Batch) -> Tensor:
        return self.fold_in(self.taken.lists(batch.tensor(self.facts.user_field)))

    def encode_item(self, ids: Tensor) -> Tensor:
        different, place = ids.unique(return_inverse=True)
        takers = self.takers.lists(different)
        rows = self.embed.pooled("takers", Batch(len(takers), {"takers": takers}))
        return F.embedding(place, self.item_layers(rows))


def perceptron(width: int, sizes: list[int]) -> nn.Sequential:
    """Relu layers and a linear one: [n, width] -> [n, sizes[-1]]."""
    inner = [width, *sizes[:-1]]
    layers = nn.Sequential(MLP(inner), nn.Linear(inner[-1], sizes[-1]))
    begin_xavier(layers)
    return layers
