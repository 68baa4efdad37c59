"""FeatureTable: every feature's values, joined to samples by user id, item id or row number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.data.random import hash64

Fields = tuple[dict[str, Tensor | Jagged], dict[str, Tensor]]  # ids and dense values by feature


# ids int64 or numbers float32 of some rows; offsets [rows + 1] and weights where they are lists
Taken = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True)
class FeatureColumn:
    """One feature, and what gives its values at some rows.

    Columns stay as the data set has them, which may be on disk and shared by processes; they become
    ids and numbers when they are taken.
    """

    feature: Feature
    taken: Callable[[np.ndarray], Taken]
    # by user id: values of interactions that have not happened, of a context feature that has them
    of_users: Callable[[np.ndarray], Taken] | None = None

    def take(self, rows: np.ndarray) -> Tensor | Jagged:
        """The values of the given rows, in that order."""
        values, offsets, weights = self.taken(rows)
        return self._tensor(values, offsets, weights)

    def ahead(self, users: np.ndarray) -> Tensor | Jagged:
        """The values of interactions of users that have not happened."""
        assert self.of_users is not None
        values, offsets, weights = self.of_users(users)
        return self._tensor(values, offsets, weights)

    def _tensor(
        self, values: np.ndarray, offsets: np.ndarray | None, weights: np.ndarray | None
    ) -> Tensor | Jagged:
        if offsets is None:
            return torch.from_numpy(values)
        return Jagged(
            torch.from_numpy(values),
            torch.from_numpy(offsets),
            None if weights is None else torch.from_numpy(weights),
        )


class FeatureTable:
    """All features of a data set. A user's and an item's stand at the row of the id."""

    def __init__(
        self,
        columns: Iterable[FeatureColumn],
        user_field: str,
        item_field: str,
        encoding: Any = None,
    ):
        """`encoding`: what encodes the features of other rows (encode.Encoding)."""
        self.columns = {column.feature.name: column for column in columns}
        self.user_field = user_field
        self.item_field = item_field
        self.encoding = encoding

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, with the rows of their tables."""
        return tuple(column.feature for column in self.columns.values())

    def take_side(self, side: str, rows: np.ndarray, prefix: str = "") -> Fields:
        """The features of one side at the given rows (ids of users or items, or row numbers)."""
        values = {
            name: column.take(rows)
            for name, column in self.columns.items()
            if column.feature.side == side and not column.feature.cross
        }
        return self.fields(values, prefix)

    def fields(self, values: dict[str, Tensor | Jagged], prefix: str = "") -> Fields:
        """Values of features as ids and as dense values, by name."""
        ids: dict[str, Tensor | Jagged] = {}
        dense: dict[str, Tensor] = {}
        for name, tensor in values.items():
            if self.columns[name].feature.is_sparse:
                ids[prefix + name] = tensor
            else:
                assert isinstance(tensor, Tensor)
                dense[prefix + name] = tensor
        return ids, dense

    def side(self, side: str, ids: Tensor) -> Batch:
        """The features of any users or items: ids of any shape, one sample for each of them."""
        rows = ids.reshape(-1).cpu().numpy()
        sparse, dense = self.take_side(side, rows)
        return Batch(len(rows), sparse, dense).to(ids.device)

    def onto(self, batch: Batch) -> Batch:
        """The batch with the features of its users, its items and (as neg_NAME) its negatives.

        Of negatives [b, k] there are k values, or k lists, for each sample.
        """
        ids, dense = dict(batch.ids), dict(batch.dense)
        sides = [("user", self.user_field, ""), ("item", self.item_field, "")]
        sides += [("item", "neg_item", "neg_")] if "neg_item" in batch.ids else []
        for side, field, prefix in sides:
            keys = batch.tensor(field)
            more_ids, more_dense = self.take_side(side, keys.reshape(-1).numpy(), prefix)
            for name, values in more_ids.items():
                ids[name] = values if isinstance(values, Jagged) else values.view(keys.shape)
            for name, numbers in more_dense.items():
                dense[name] = numbers.view(*keys.shape, *numbers.shape[1:])
        return replace(batch, ids=ids, dense=dense)

    def join(
        self,
        rows: np.ndarray | None,
        users: np.ndarray,
        items: np.ndarray,
        histories: bool = True,
    ) -> Fields:
        """All features of some interactions: of their users, their items and their own.

        rows None: they have not happened, so what would be their own is missing, but for histories.
        """
        ids: dict[str, Tensor | Jagged] = {}
        dense: dict[str, Tensor] = {}
        for side, keys in (("user", users), ("item", items), ("context", rows)):
            if keys is None:
                more_ids, more_dense = self._none(users, histories)
            else:
                more_ids, more_dense = self.take_side(side, keys)
            ids |= more_ids
            dense |= more_dense
        self.cross(ids)
        return ids, dense

    def cross(self, ids: dict[str, Tensor | Jagged]) -> None:
        """Add the crosses of features whose ids are there."""
        for name, column in self.columns.items():
            if column.feature.cross:
                parts = [ids[part] for part in column.feature.cross]
                hashes = hash64(*(one.numpy() for one in parts if isinstance(one, Tensor)))
                ids[name] = torch.from_numpy(fold(hashes, column.feature.rows))

    def _none(self, users: np.ndarray, histories: bool) -> Fields:
        """Context features of samples of users that have not happened: histories, else nothing."""
        size = len(users)
        values: dict[str, Tensor | Jagged] = {}
        for name, column in self.columns.items():
            feature = column.feature
            if feature.side != "context" or feature.cross:
                continue
            if column.of_users is not None:
                if histories:
                    values[name] = column.ahead(users)
            elif feature.is_list:
                none = torch.empty(0, dtype=torch.int64)
                values[name] = Jagged(none, torch.zeros(size + 1, dtype=torch.int64))
            elif feature.is_sparse:
                values[name] = torch.zeros(size, dtype=torch.int64)
            else:
                width = (feature.width,) if feature.kind == "numbers" else ()
                values[name] = torch.zeros(size, *width)
        return self.fields(values)


def fold(hashes: np.ndarray, rows: int | None) -> np.ndarray:
    """Hashes as ids: 1 to rows - 1, or any of 63 bits from 1."""
    below = np.uint64(max((rows or 2**63 - 1) - 1, 1))
    return (hashes % below).astype(np.int64) + 1
