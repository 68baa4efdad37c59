"""Neighbours of items, as in implicit: Shoal's ItemKNN, each item with its nearest ones."""

from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy import sparse

from shoal.compat.implicit.factors import Lists
from shoal.compat.implicit.matrix import (
    check_filters,
    checked,
    first,
    numbers,
    positive,
    read_arrays,
    refuse,
    refuse_empty,
    rows_for,
    shown,
    torch_threads,
)
from shoal.models.base import Facts
from shoal.models.general.itemknn import ItemKNN


class NeighbourModel:
    """Items are alike when the same users took them.

    similarity: csr [items, items]; a row has the K items nearest to one, itself among them.
    """

    SIMILARITY: ClassVar[str] = "dot"  # of the columns of weights
    similarity: sparse.csr_matrix | None = None

    def __init__(self, K: int = 20, num_threads: int = 0):
        """Takes the arguments of implicit's class of this name."""
        positive(K=K)
        self.K, self.num_threads = K, num_threads

    def weighted(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """What the entries of users and items count."""
        return counts

    def fit(self, counts: Any, show_progress: bool = True, callback: Any = None) -> None:
        """Find the nearest items of each; rows are users, columns items."""
        refuse("fit", callback=(callback, None, "it is one pass"))
        matrix = checked(counts)
        refuse_empty(matrix)
        matrix = self.weighted(matrix)
        refuse_empty(matrix)
        size = matrix.shape[1]
        own = np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel()  # of each item with itself
        if self.SIMILARITY == "cosine":
            own = (own > 0).astype(np.float32)
        options: dict[str, Any] = {"k": min(self.K, size), "similarity": self.SIMILARITY}
        entries = matrix.tocoo()
        facts = Facts(
            num_users=matrix.shape[0],
            num_items=size,
            train_users=torch.from_numpy(entries.row.astype(np.int64)),
            train_items=torch.from_numpy(entries.col.astype(np.int64)),
            train_weights=torch.from_numpy(entries.data.astype(np.float32)),
        )
        with torch_threads(self.num_threads):
            model = ItemKNN(ItemKNN.Options(**options), facts)
            model.solve()
        parts = model.values.numpy(), model.items.numpy(), model.starts.numpy()
        alike = sparse.csr_matrix(parts, (size, size), np.float32)
        self.similarity = _largest(alike + sparse.diags(own, dtype=np.float32), self.K)

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
        # implicit raises it too, and scripts may catch it.
        raise NotImplementedError("neighbours of items have no users; take AlternatingLeastSquares")

    def save(self, file: Any) -> None:
        """Write the neighbours to a file (.npz), which `load` reads."""
        similarity = self._fitted()
        parts = {name: getattr(similarity, name) for name in ("data", "indices", "indptr", "shape")}
        np.savez(file, K=self.K, **parts)

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read what `save` wrote; nothing is unpickled."""
        data = read_arrays(file, ["K", "data", "indices", "indptr", "shape"])
        parts = (data["data"], data["indices"], data["indptr"])
        try:
            model = cls(data["K"].item())
            if {array.dtype.kind for array in (*parts[1:], data["shape"])} != {"i"}:
                raise ValueError("places and sizes are whole numbers")
            rows, columns = data["shape"].tolist()
            if rows != columns:
                raise ValueError(f"neighbours of {rows} items among {columns}")
            model.similarity = sparse.csr_matrix(parts, (rows, columns))
            model.similarity.check_format()  # no place is outside
        except ValueError as error:
            raise ValueError(
                f"{file} is no file that `save` of such a model wrote: {error}"
            ) from error
        return model

    def _fitted(self) -> sparse.csr_matrix:
        if self.similarity is None:
            raise ValueError(f"{type(self).__name__} is not fitted yet; call fit(user_items) first")
        return self.similarity

    def _best(
        self, scores: np.ndarray, is_single: bool, topk: int, banned: Any, only: Any
    ) -> Lists:
        """The best of scores [b, items]; -inf: not to be shown."""
        check_filters(only, banned)
        positive(N=topk)
        if banned is not None:
            scores[:, numbers(banned, scores.shape[1], "filter_items")] = -np.inf
        if only is not None:
            kept = np.zeros(scores.shape[1], bool)
            kept[numbers(only, scores.shape[1], "items")] = True
            scores[:, ~kept] = -np.inf
        order = np.argsort(-scores, 1, kind="stable")[:, :topk]
        best = shown(order, np.take_along_axis(scores, order, 1), topk)
        return first(best) if is_single else best


def _largest(matrix: sparse.csr_matrix, count: int) -> sparse.csr_matrix:
    """The largest entries of each row, those above 0."""
    entries = sparse.coo_matrix(matrix)
    order = np.lexsort((-entries.data, entries.row))
    row, column, data = (one[order] for one in (entries.row, entries.col, entries.data))
    place = np.arange(len(row)) - np.searchsorted(row, row)  # within its row
    kept = (place < count) & (data > 0)
    return sparse.csr_matrix((data[kept], (row[kept], column[kept])), matrix.shape)


class ItemItemRecommender(NeighbourModel):
    """Neighbours by the products of the values as they are."""


class CosineRecommender(NeighbourModel):
    """Neighbours by cosine.

    >>> from scipy.sparse import random
    >>> from shoal.compat.implicit.nearest_neighbours import CosineRecommender
    >>> model = CosineRecommender(K=5)
    >>> model.fit(random(30, 20, 0.3, format="csr", random_state=1), show_progress=False)
    >>> int(model.similar_items(7, N=3)[0][0]), model.similarity.shape
    (7, (20, 20))
    """

    SIMILARITY = "cosine"


class TFIDFRecommender(NeighbourModel):
    """Neighbours by cosine, where users of many items count less."""

    SIMILARITY = "cosine"

    def weighted(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """By tf-idf."""
        return _of_items(tfidf_weight, counts)


class BM25Recommender(NeighbourModel):
    """Neighbours by BM25: users of many items, and counts of items that have many, count less."""

    def __init__(self, K: int = 20, K1: float = 1.2, B: float = 0.75, num_threads: int = 0):
        """Takes the arguments of implicit's class of this name."""
        super().__init__(K, num_threads)
        self.K1, self.B = K1, B

    def weighted(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """By BM25."""
        return _of_items(bm25_weight, counts, self.K1, self.B)


def _of_items(weigh: Any, counts: sparse.csr_matrix, *options: float) -> sparse.csr_matrix:
    """Weights of a matrix of users and items by what weighs items as documents; none below 0."""
    weights = sparse.csr_matrix(weigh(counts.T, *options).T)
    weights.data = weights.data.clip(min=0.0)  # of a user who took everything
    weights.eliminate_zeros()
    return weights


def tfidf_weight(X: Any) -> sparse.coo_matrix:
    """tf-idf of a matrix whose rows are documents and whose columns are terms: sqrt(tf) * idf."""
    weights = sparse.coo_matrix(X, dtype=np.float64, copy=True)
    weights.data = np.sqrt(weights.data) * _idf(weights)[weights.col]
    return weights


def bm25_weight(X: Any, K1: float = 100, B: float = 0.8) -> sparse.coo_matrix:
    """BM25 of a matrix whose rows are documents and whose columns are terms."""
    weights = sparse.coo_matrix(X, dtype=np.float64, copy=True)
    lengths = np.asarray(weights.sum(axis=1)).ravel()
    norm = 1.0 - B + B * lengths / lengths.mean()
    saturated = weights.data * (K1 + 1.0) / (K1 * norm[weights.row] + weights.data)
    weights.data = saturated * _idf(weights)[weights.col]
    return weights


def _idf(matrix: sparse.coo_matrix) -> np.ndarray:
    """ln(documents / (1 + those that have the term)), of every term."""
    counts = np.bincount(matrix.col, minlength=matrix.shape[1])
    return np.log(matrix.shape[0]) - np.log1p(counts)
