"""Folding: the query vector of anybody by what they took, from vectors that were trained.

items      a number for each item, 1 for what was taken: of models that are item-to-item weights
equations  the vector that minimises squared errors over what was taken and over all items
sums       the sum of a vector of each item taken, divided by a power of how many there are
layers     what layers with tanh make of such a sum: of autoencoders

A run and an exported artifact fold a history in by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Jagged


@dataclass(frozen=True)
class ItemsFolding:
    """The query is what was taken: 1 or 0 for each item."""

    way = "items"

    def queries(self, lists: Jagged, item_vectors: Tensor) -> Tensor:
        """Query vectors [b, num_items] of b lists of different items."""
        return _multi_hot(lists, len(item_vectors))


@dataclass
class EquationsFolding:
    """The query x minimises the loss of IALS (general/ials.py), given the vectors of items y:

        sum over taken of (<x, y> - 1)^2 + alpha * sum over items of <x, y>^2
        + reg_weight * (taken + alpha * items)^nu * |x|^2

    alpha_others: the second sum is over items that were not taken. scaled: reg_weight is in units
    of the mean squared length of item vectors, for models whose vectors have any length.
    """

    way = "equations"
    alpha: float
    reg_weight: float
    nu: float
    alpha_others: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        nothing = torch.zeros(0)
        # Item vectors, and their squares.
        self._kept: tuple[Tensor, Tensor] = (nothing, nothing)

    def queries(self, lists: Jagged, item_vectors: Tensor) -> Tensor:
        """Query vectors [b, dim] of b lists of different items."""
        squares = self._squares_of(item_vectors)
        unit = float(squares.trace()) / len(item_vectors) if self.scaled else 1.0
        queries = []
        for items in lists.values.split(lists.lengths.tolist()):
            rows = item_vectors[items].double()
            beyond = 1 - self.alpha if self.alpha_others else 1.0
            left = self.alpha * squares + beyond * (rows.T @ rows)
            amount = (len(items) + self.alpha * len(item_vectors)) ** self.nu
            left.diagonal().add_(self.reg_weight * unit * amount)
            queries.append(torch.linalg.solve(left, rows.sum(0)))
        return torch.stack(queries).float()

    def _squares_of(self, item_vectors: Tensor) -> Tensor:
        """V^T V of the item vectors [dim, dim]; kept, since every query asks for the same."""
        kept_vectors, squares = self._kept
        if kept_vectors is not item_vectors:
            vectors = item_vectors.double()
            squares = vectors.T @ vectors
            self._kept = item_vectors, squares
        return squares


@dataclass(frozen=True)
class SumsFolding:
    """The query is the sum of a vector of each item taken / how many^power.

    vectors  [num_items, dim]; they are not those that a query is multiplied with
    """

    way = "sums"
    power: float
    vectors: Tensor

    def queries(self, lists: Jagged, item_vectors: Tensor) -> Tensor:
        """Query vectors [b, dim] of b lists of different items."""
        vectors = self.vectors.float()
        taken = F.embedding_bag(
            lists.values, vectors, lists.offsets, mode="sum", include_last_offset=True
        )
        return taken / lists.lengths.clamp(min=1).unsqueeze(1) ** self.power


@dataclass(frozen=True)
class FoldingLayer:
    """x -> tanh(W x + b), or without tanh; weight None: x + b."""

    weight: Tensor | None
    bias: Tensor
    tanh: bool

    def __call__(self, x: Tensor) -> Tensor:
        """[b, width in] -> [b, width out]."""
        x = x + self.bias if self.weight is None else F.linear(x, self.weight, self.bias)
        return torch.tanh(x) if self.tanh else x


@dataclass(frozen=True)
class LayersFolding:
    """The query is what layers make of the sum of a vector of each item taken / how many^power,
    and a 1 behind it, which meets the bias of an item.

    vectors  [num_items, width of the first layer]
    """

    way = "layers"
    power: float
    vectors: Tensor
    layers: Sequence[FoldingLayer]

    def queries(self, lists: Jagged, item_vectors: Tensor) -> Tensor:
        """Query vectors [b, dim] of b lists of different items."""
        hidden = SumsFolding(self.power, self.vectors).queries(lists, item_vectors)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.pad(hidden, (0, 1), value=1.0)


def layers_of(modules: nn.Module) -> list[FoldingLayer]:
    """The layers of a stack of Linear and Tanh."""
    layers: list[FoldingLayer] = []
    for module in modules.modules():
        if isinstance(module, nn.Linear):
            layers.append(FoldingLayer(module.weight, module.bias, tanh=False))
        elif isinstance(module, nn.Tanh):
            layers[-1] = replace(layers[-1], tanh=True)
    return layers


Folding = ItemsFolding | EquationsFolding | SumsFolding | LayersFolding


def folding_of(
    facts: Mapping[str, Any], vectors: Tensor | None, tensors: Mapping[str, Tensor]
) -> Folding:
    """The folding that an artifact's signature describes; ValueError where it is none.

    vectors: of items, for sums and layers. tensors: `N.weight` and `N.bias` of layer N.
    """
    way = facts.get("way")
    if way == "layers" and vectors is not None and isinstance(facts.get("tanh"), list):
        layers = [
            FoldingLayer(tensors.get(f"{number}.weight"), tensors[f"{number}.bias"], bool(tanh))
            for number, tanh in enumerate(facts["tanh"])
        ]
        return LayersFolding(float(facts["power"]), vectors, layers)
    numbers = {name: value for name, value in facts.items() if name != "way"}
    if not all(isinstance(value, bool | int | float) for value in numbers.values()):
        raise ValueError("its folding holds no numbers")
    try:
        if way == "items":
            return ItemsFolding(**numbers)
        if way == "equations":
            folding = EquationsFolding(**numbers)
            if folding.reg_weight > 0 and folding.alpha >= 0 and 0 <= folding.nu <= 8:
                return folding
        if way == "sums" and vectors is not None:
            folding_by_sums = SumsFolding(vectors=vectors, **numbers)
            if 0 <= folding_by_sums.power <= 8:
                return folding_by_sums
    except TypeError as error:
        raise ValueError(f"its folding: {error}") from None
    raise ValueError(f"its folding is {way!r}")


def _multi_hot(lists: Jagged, num_items: int) -> Tensor:
    """1 where a list has an item, else 0: [b, num_items]."""
    rows = torch.arange(len(lists.lengths), device=lists.values.device)
    taken = torch.zeros(len(rows), num_items, device=lists.values.device)
    taken[rows.repeat_interleave(lists.lengths), lists.values] = 1.0
    return taken
