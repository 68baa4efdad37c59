"""What a class written for RecBole reads: the fields of a batch, and its training data."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.models.base import Facts


class InputType(Enum):
    """What a sample of a general model is, as RecBole names it."""

    POINTWISE = 1  # a user, an item and a label
    PAIRWISE = 2  # a user, an item and a negative item
    LISTWISE = 3


class ModelType(Enum):
    """The kinds of models that RecBole names."""

    GENERAL = 1
    SEQUENTIAL = 2
    CONTEXT = 3


class Interaction:
    """The fields of a batch by name, each a tensor whose first dimension is the samples.

    >>> import torch
    >>> from shoal.compat.recbole.interaction import Interaction
    >>> batch = Interaction({"user_id": torch.tensor([3, 4])})
    >>> batch["user_id"], len(batch), batch.columns
    (tensor([3, 4]), 2, ['user_id'])
    """

    def __init__(self, fields: dict[str, Tensor]):
        self.interaction = fields

    @property
    def columns(self) -> list[str]:
        """Names of the fields."""
        return list(self.interaction)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.interaction:
            remedy = ""
            if name.startswith("neg_"):
                remedy = "; set train.negatives.num to 1"
            elif name == "label":
                remedy = "; set train.negatives.num to 1, or data.threshold to make labels"
            raise ValueError(
                f"the batch has no field {name!r}, but {', '.join(self.columns)}"
                f"{did_you_mean(name, self.columns)}{remedy}"
            )
        return self.interaction[name]

    def __contains__(self, name: str) -> bool:
        return name in self.interaction

    def __iter__(self) -> Iterator[str]:
        return iter(self.interaction)

    def __len__(self) -> int:
        return len(next(iter(self.interaction.values())))

    def to(self, device: Any) -> Interaction:
        """Its fields on a device."""
        return Interaction({name: field.to(device) for name, field in self.interaction.items()})


class TrainingData:
    """What classes written for RecBole call `dataset`: sizes, and the training interactions.

    >>> from shoal.compat.recbole.interaction import TrainingData
    >>> from shoal.models.base import Facts
    >>> pairs = torch.tensor([1, 1, 2]), torch.tensor([2, 3, 1])
    >>> data = TrainingData(Facts(3, 4, train_users=pairs[0], train_items=pairs[1]))
    >>> data.inter_matrix().toarray().astype(int).tolist()
    [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    """

    def __init__(self, facts: Facts):
        self._facts = facts
        self.uid_field, self.iid_field = facts.user_field, facts.item_field
        self.user_num, self.item_num = facts.num_users, facts.num_items

    @property
    def inter_num(self) -> int:
        """Training interactions."""
        return len(self._facts.train_users)

    @property
    def inter_feat(self) -> Interaction:
        """Users and items of the training interactions."""
        users, items = self._facts.train_users.long(), self._facts.train_items.long()
        return Interaction({self.uid_field: users, self.iid_field: items})

    def num(self, field: str) -> int:
        """Users or items, padding included."""
        sizes = {self.uid_field: self.user_num, self.iid_field: self.item_num}
        if field not in sizes:
            raise ValueError(
                f"a model knows how many {' and '.join(sizes)} there are, and not {field}; models "
                "that read features are ContextRecommender"
            )
        return sizes[field]

    def inter_matrix(self, form: str = "coo", value_field: str | None = None) -> Any:
        """Users × items of scipy, 1 where the user took the item in training."""
        if value_field is not None:
            raise ValueError(
                f"inter_matrix(value_field={value_field!r}): a model is given no values of "
                "interactions, only users and items; leave it out"
            )
        users, items = self._facts.train_users.numpy(), self._facts.train_items.numpy()
        shape = self.user_num, self.item_num
        matrix = coo_matrix((np.ones(len(users)), (users, items)), shape=shape)
        return matrix if form == "coo" else matrix.asformat(form)

    def history_item_matrix(self) -> tuple[Tensor, Tensor, Tensor]:
        """Items of every user: ids and ones [users, longest], 0 behind them, and lengths [users]"""
        return _lists(self._facts.train_users, self._facts.train_items, self.user_num)

    def history_user_matrix(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users of every item, in the same form."""
        return _lists(self._facts.train_items, self._facts.train_users, self.item_num)


def _lists(owners: Tensor, ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ids of every owner, in their order: ids, ones [size, longest], lengths [size]."""
    owners, ids = owners.long(), ids.long()
    order = torch.argsort(owners, stable=True)
    owners, ids = owners[order], ids[order]
    lengths = torch.bincount(owners, minlength=size)
    starts = lengths.cumsum(0) - lengths
    columns = torch.arange(len(ids)) - starts[owners]
    grid = torch.zeros(size, max(1, int(lengths.max())), dtype=torch.int64)
    values = torch.zeros(grid.shape)
    grid[owners, columns], values[owners, columns] = ids, 1.0
    return grid, values, lengths
