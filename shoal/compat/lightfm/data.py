"""Dataset of lightfm.data: ids and names of features of any kind become matrices."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from shoal.config.errors import did_you_mean

Numbers = dict[Any, int]  # an id or a name -> its row or column


class MatrixBuilder:
    """Numbers users, items and features in the order in which they come, and builds matrices.

    >>> from shoal.compat.lightfm.data import Dataset
    >>> data = Dataset()
    >>> data.fit(["ann", "bob"], ["i7", "i9"], item_features=["red"])
    >>> interactions, weights = data.build_interactions([("ann", "i7"), ("bob", "i9", 2.0)])
    >>> interactions.shape, data.build_item_features([("i9", ["red"])]).toarray().tolist()
    ((2, 2), [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    """

    def __init__(self, user_identity_features: bool = True, item_identity_features: bool = True):
        """Identity features: each user, or each item, has a feature of its own."""
        self._identity = {"user": user_identity_features, "item": item_identity_features}
        self._ids: dict[str, Numbers] = {"user": {}, "item": {}}
        self._features: dict[str, Numbers] = {"user": {}, "item": {}}

    def fit(
        self,
        users: Iterable[Any],
        items: Iterable[Any],
        user_features: Iterable[Any] | None = None,
        item_features: Iterable[Any] | None = None,
    ) -> None:
        """Number all users, items and names of features anew."""
        self.__init__(*self._identity.values())  # type: ignore[misc]
        self.fit_partial(users, items, user_features, item_features)

    def fit_partial(
        self,
        users: Iterable[Any] | None = None,
        items: Iterable[Any] | None = None,
        user_features: Iterable[Any] | None = None,
        item_features: Iterable[Any] | None = None,
    ) -> None:
        """Number those that are new."""
        for side, ids, names in (("user", users, user_features), ("item", items, item_features)):
            for id_ in ids or ():
                self._ids[side].setdefault(id_, len(self._ids[side]))
                if self._identity[side]:
                    self._features[side].setdefault(id_, len(self._features[side]))
            for name in names or ():
                self._features[side].setdefault(name, len(self._features[side]))

    def interactions_shape(self) -> tuple[int, int]:
        """Users and items."""
        return len(self._ids["user"]), len(self._ids["item"])

    def user_features_shape(self) -> tuple[int, int]:
        """Users and their features."""
        return len(self._ids["user"]), len(self._features["user"])

    def item_features_shape(self) -> tuple[int, int]:
        """Items and their features."""
        return len(self._ids["item"]), len(self._features["item"])

    def model_dimensions(self) -> tuple[int, int]:
        """Features of users and of items: the rows of a model's embeddings."""
        return len(self._features["user"]), len(self._features["item"])

    def mapping(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Numbers of users, of their features, of items, of theirs."""
        ids, features = self._ids, self._features
        return ids["user"], features["user"], ids["item"], features["item"]

    def build_interactions(
        self, data: Iterable[tuple[Any, ...]]
    ) -> tuple[sparse.coo_matrix, sparse.coo_matrix]:
        """(user, item) or (user, item, weight) each -> ones int32, and weights float32."""
        rows, columns, weights = [], [], []
        for datum in data:
            if len(datum) not in (2, 3):
                raise ValueError(f"{datum!r} is neither (user, item) nor (user, item, weight)")
            rows.append(_number(self._ids["user"], datum[0], "user"))
            columns.append(_number(self._ids["item"], datum[1], "item"))
            weights.append(float(datum[2]) if len(datum) == 3 else 1.0)
        places, shape = (rows, columns), self.interactions_shape()
        ones = sparse.coo_matrix((np.ones(len(rows), np.int32), places), shape)
        return ones, sparse.coo_matrix((np.array(weights, np.float32), places), shape)

    def build_user_features(
        self, data: Iterable[tuple[Any, Any]], normalize: bool = True
    ) -> sparse.csr_matrix:
        """(user, names) or (user, {name: weight}) each -> csr; normalized, a row adds up to 1."""
        return self._built("user", data, normalize)

    def build_item_features(
        self, data: Iterable[tuple[Any, Any]], normalize: bool = True
    ) -> sparse.csr_matrix:
        """(item, names) or (item, {name: weight}) each -> csr; normalized, a row adds up to 1."""
        return self._built("item", data, normalize)

    def _built(
        self, side: str, data: Iterable[tuple[Any, Any]], normalize: bool
    ) -> sparse.csr_matrix:
        ids, features = self._ids[side], self._features[side]
        entries: list[tuple[int, int, float]] = []
        if self._identity[side]:
            entries = [(n, features[one], 1.0) for one, n in ids.items()]
        for datum in data:
            if len(datum) != 2:
                raise ValueError(f"{datum!r} is not ({side}, features)")
            row, datum_features = _number(ids, datum[0], side), datum[1]
            weights = (
                datum_features
                if isinstance(datum_features, Mapping)
                else dict.fromkeys(datum_features, 1.0)
            )
            for name, weight in weights.items():
                entries.append((row, _number(features, name, f"feature of {side}s"), weight))
        rows, columns, values = zip(*entries) if entries else ((), (), ())
        shape = len(ids), len(features)
        matrix = sparse.csr_matrix((np.array(values, np.float32), (rows, columns)), shape)
        if normalize:
            sums = np.asarray(matrix.sum(axis=1)).ravel()
            if (sums == 0).any():
                raise ValueError(
                    f"{side} number {int(np.argmin(sums != 0))} has no features to normalize; "
                    f"give it some, or set {side}_identity_features=True"
                )
            matrix = sparse.csr_matrix(sparse.diags(1.0 / sums) @ matrix, dtype=np.float32)
        return matrix


def _number(numbers: Numbers, label: Any, what: str) -> int:
    if label not in numbers:
        near = did_you_mean(str(label), map(str, numbers)) if numbers else "; call fit first"
        raise ValueError(f"{what} {label!r} was not given to fit{near}")
    return numbers[label]


Dataset = MatrixBuilder  # the name that scripts import
