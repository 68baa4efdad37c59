"""CosineRecommender of implicit: Shoal's ItemKNN, each item with its nearest ones."""

from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse

from shoal.compat.implicit.factors import Lists
from shoal.compat.implicit.matrix import (
    checked,
    first,
    numbers,
    positive,
    refuse,
    rows_for,
    shown,
    trained,
)

_ABSENT = ("BM25Recommender", "ItemItemRecommender", "TFIDFRecommender")


class CosineRecommender:
    """Items are alike when the same users took them.

    similarity: csr [items, items]; a row has the K items nearest to one, itself among them.

    >>> from scipy.sparse import random
    >>> from shoal.compat.implicit.nearest_neighbours import CosineRecommender
    >>> matrix = random(30, 20, 0.3, format="csr", random_state=1, data_rvs=lambda n: [1] * n)
    >>> model = CosineRecommender(K=5)
    >>> model.fit(matrix, show_progress=False)
    >>> model.similar_items(7, N=3)[0][0], model.similarity.shape
    (np.int32(7), (20, 20))
    """

    similarity: sparse.csr_matrix | None = None

    def __init__(self, K: int = 20, num_threads: int = 0):
        """As implicit's."""
        positive(K=K)
        self.K, self.num_threads = K, num_threads

    def fit(self, counts: Any, show_progress: bool = True, callback: Any = None) -> None:
        """Find the nearest items of each; rows are users, columns items, all values the same."""
        refuse("fit", callback=(callback, None, "it is one pass"))
        matrix = checked(counts)
        if len(np.unique(matrix.data)) > 1:
            raise ValueError(
                "CosineRecommender reads what was taken, and the values of this matrix differ; "
                "set them to 1 (matrix.data[:] = 1), or take AlternatingLeastSquares"
            )
        size = matrix.shape[1]
        found = sparse.identity(size, np.float32, "csr")
        taken = np.flatnonzero(np.diff(matrix.tocsc().indptr))
        if self.K > 1:
            keys = {"model.k": self.K - 1, "run.progress": show_progress}
            with trained("ItemKNN", matrix, 0, self.num_threads, **keys) as fitted:
                model: Any = fitted.trained.model
                ids = np.array([-1, *fitted.item_vectors().ids])
                starts, items = model.starts.numpy(), ids[model.items.numpy()]
                owners = np.repeat(ids, np.diff(starts))
                alike = (model.values.numpy(), (owners, items))
                found = found + sparse.csr_matrix(alike, (size, size), np.float32)
        known = np.zeros(size, np.float32)
        known[taken] = 1.0
        self.similarity = sparse.csr_matrix(sparse.diags(known) @ found)
        self.similarity.eliminate_zeros()

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
        """The items nearest to those of a user, or of several, by rows of user_items.

        recalculate_user changes nothing: a user is what the row says.
        """
        alike = self._fitted()
        count = np.size(userid)
        numbers(userid, np.iinfo(np.int64).max, "users")
        rows = rows_for(user_items, count, alike.shape[0])
        scores = (rows @ alike).toarray()
        scores[scores == 0] = -np.inf  # not alike at all
        if filter_already_liked_items:
            scores[rows.nonzero()] = -np.inf
        return self._best(scores, np.ndim(userid) == 0, N, filter_items, items)

    def similar_items(
        self,
        itemid: Any,
        N: int = 10,
        recalculate_item: bool = False,
        item_users: Any = None,
        filter_items: Any = None,
        items: Any = None,
    ) -> Lists:
        """The nearest items of one or of several, itself first: ids and cosines."""
        refuse(
            "similar_items",
            recalculate_item=(recalculate_item, False, "the matrix decides"),
            item_users=(item_users is None, True, "the matrix decides"),
        )
        alike = self._fitted()
        scores = alike[numbers(itemid, alike.shape[0], "items")].toarray()
        scores[scores == 0] = -np.inf
        return self._best(scores, np.ndim(itemid) == 0, N, filter_items, items)

    def similar_users(self, userid: Any, N: int = 10, **more: Any) -> Lists:
        """Not here, as in implicit: the model knows items alone."""
        raise NotImplementedError("CosineRecommender has no users; take AlternatingLeastSquares")

    def save(self, file: Any) -> None:
        """Write the neighbours to a file (.npz), which `load` reads."""
        found = self._fitted()
        parts = {name: getattr(found, name) for name in ("data", "indices", "indptr", "shape")}
        np.savez(file, K=self.K, **parts)

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read what `save` wrote; nothing is unpickled."""
        if isinstance(file, str | Path) and Path(file).suffix != ".npz":
            file = f"{file}.npz"
        with np.load(file, allow_pickle=False) as data:
            found = cls(int(data["K"]))
            parts = (data["data"], data["indices"], data["indptr"])
            found.similarity = sparse.csr_matrix(parts, tuple(data["shape"]))
        return found

    def _fitted(self) -> sparse.csr_matrix:
        if self.similarity is None:
            raise ValueError("CosineRecommender is not fitted yet; call fit(user_items) first")
        return self.similarity

    def _best(self, scores: np.ndarray, one: bool, topk: int, banned: Any, only: Any) -> Lists:
        """The best of scores [b, items]; -inf: not to be shown."""
        if only is not None and banned is not None:
            raise ValueError("give items or filter_items, one of them")
        positive(N=topk)
        if banned is not None:
            scores[:, numbers(banned, scores.shape[1], "filter_items")] = -np.inf
        if only is not None:
            kept = np.zeros(scores.shape[1], bool)
            kept[numbers(only, scores.shape[1], "items")] = True
            scores[:, ~kept] = -np.inf
        order = np.argsort(-scores, 1, kind="stable")[:, :topk]
        found = shown(order, np.take_along_axis(scores, order, 1), topk)
        return first(found) if one else found


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise ImportError(
            f"Shoal has no {name}: of neighbours it has CosineRecommender, and "
            "AlternatingLeastSquares reads weighted matrices"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
