"""What models with vectors of users and items share, as implicit's have it."""

from typing import Any, ClassVar, Self

import numpy as np
import torch

from shoal.compat.implicit.matrix import (
    check_filters,
    first,
    numbers,
    positive,
    read_arrays,
    rows_for,
    shown,
)
from shoal.kernels.topk import DotProducts, rank

Lists = tuple[np.ndarray, np.ndarray]  # ids int32 and scores float32: [n] of one, [b, n] of several


class FactorModel:
    """Vectors of users and items; a score is their dot product.

    user_factors, item_factors: float32 [n, dim] in the order of the matrix; None before `fit`.
    """

    SAVED: ClassVar[tuple[str, ...]] = ()  # what `save` keeps besides the vectors
    user_factors: np.ndarray | None = None
    item_factors: np.ndarray | None = None

    def recommend(
        self,
        userid: Any,
        user_items: Any,
        N: int = 10,
        filter_already_liked_items: bool = True,
        filter_items: Any = None,
        recalculate_user: bool = False,
        items: Any = None,
    ) -> Lists:
        """The best items of a user, or of several: ids and scores.

        user_items: a row for each user, with what is left out where filter_already_liked_items.
        """
        users, catalogue = self._vectors()
        is_single = np.ndim(userid) == 0
        wanted = np.atleast_1d(userid) if recalculate_user else numbers(userid, len(users), "users")
        rows = None
        if filter_already_liked_items or recalculate_user:
            rows = rows_for(user_items, len(wanted), len(catalogue))
        query = users[wanted] if not recalculate_user else self.recalculate_user(wanted, rows)
        without = (np.zeros(0, np.int64),) * 2
        if filter_already_liked_items:
            assert rows is not None
            without = rows.nonzero()
        best = _best(query, catalogue, N, without, filter_items, items)
        return first(best) if is_single else best

    def similar_items(
        self,
        itemid: Any,
        N: int = 10,
        recalculate_item: bool = False,
        item_users: Any = None,
        filter_items: Any = None,
        items: Any = None,
    ) -> Lists:
        """The items whose vectors point most the same way, the item itself first: ids, cosines."""
        users, catalogue = self._vectors()
        if recalculate_item:
            wanted = np.atleast_1d(itemid)
            query = self.recalculate_item(wanted, rows_for(item_users, len(wanted), len(users)))
        else:
            query = catalogue[numbers(itemid, len(catalogue), "items")]
        return _alike(query, catalogue, np.ndim(itemid) == 0, N, filter_items, items)

    def similar_users(
        self,
        userid: Any,
        N: int = 10,
        filter_users: Any = None,
        users: Any = None,
    ) -> Lists:
        """The users whose vectors point most the same way, the user first: ids, cosines."""
        user_vectors, _ = self._vectors()
        query = user_vectors[numbers(userid, len(user_vectors), "users")]
        return _alike(query, user_vectors, np.ndim(userid) == 0, N, filter_users, users)

    def recalculate_user(self, userid: Any, user_items: Any) -> np.ndarray:
        """Vectors of users by other items than those of the matrix."""
        # As implicit's BPR: only equations that can be solved anew (ALS) have such a vector.
        raise NotImplementedError(f"{type(self).__name__} learned its users: fit it once more")

    def recalculate_item(self, itemid: Any, item_users: Any) -> np.ndarray:
        """Vectors of items by other users than those of the matrix."""
        # As implicit's BPR: only equations that can be solved anew (ALS) have such a vector.
        raise NotImplementedError(f"{type(self).__name__} learned its items: fit it once more")

    def save(self, file: Any) -> None:
        """Write vectors and options to a file (.npz), which `load` reads."""
        users, items = self._vectors()
        kept = {name: getattr(self, name) for name in self.SAVED}
        np.savez(file, user_factors=users, item_factors=items, **kept)

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read what `save` wrote; nothing is unpickled."""
        data = read_arrays(file, ["user_factors", "item_factors", *cls.SAVED])
        users, items = data["user_factors"], data["item_factors"]
        right = users.ndim == items.ndim == 2 and users.shape[1] == items.shape[1]
        if not right or users.dtype != items.dtype or users.dtype.kind != "f":
            raise ValueError(
                f"{file} is no file that `save` of such a model wrote: user_factors are "
                f"{users.dtype} {list(users.shape)}, item_factors {items.dtype} "
                f"{list(items.shape)}; they are rows of numbers, of one width"
            )
        model = cls(**{name: data[name].item() for name in cls.SAVED})
        model.user_factors, model.item_factors = users, items
        return model

    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        if self.user_factors is None or self.item_factors is None:
            raise ValueError(f"{type(self).__name__} is not fitted yet; call fit(user_items) first")
        return self.user_factors, self.item_factors


def _alike(
    query: Any, every: np.ndarray, is_single: bool, topk: int, without: Any, only: Any
) -> Lists:
    nothing = (np.zeros(0, np.int64),) * 2
    best = _best(_units(query), _units(every), topk, nothing, without, only)
    return first(best) if is_single else best


def _units(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-10)


def _best(
    query: np.ndarray, every: np.ndarray, topk: int, without: Any, banned: Any, only: Any
) -> Lists:
    """The best of `every` [n, dim] for each query [b, dim], but for pairs and for all `banned`."""
    check_filters(only, banned)
    positive(N=topk)
    allowed = None if only is None else np.unique(numbers(only, len(every), "items"))
    vectors = every if allowed is None else every[allowed]
    rows, items = (np.asarray(one, np.int64) for one in without)
    if banned is not None:
        lost = numbers(banned, len(every), "filter_items")
        rows = np.concatenate([rows, np.repeat(np.arange(len(query)), len(lost))])
        items = np.concatenate([items, np.tile(lost, len(query))])
    if allowed is not None:
        inside = np.isin(items, allowed)
        rows, items = rows[inside], np.searchsorted(allowed, items[inside])
    own = (torch.from_numpy(np.ascontiguousarray(one, np.float32)) for one in (query, vectors))
    ranking = rank(DotProducts(*own), len(query), len(vectors), topk, (rows, items))
    places, scores = (one.numpy() for one in ranking)
    return shown(places if allowed is None else allowed[places], scores, topk)
