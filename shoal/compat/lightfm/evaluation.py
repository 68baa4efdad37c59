"""Metrics by lightfm's definitions, a value for each user, of any model with `predict_rank`."""

from typing import Any

import numpy as np
from scipy import sparse


def precision_at_k(
    model: Any,
    test_interactions: Any,
    train_interactions: Any = None,
    k: int = 10,
    user_features: Any = None,
    item_features: Any = None,
    preserve_rows: bool = False,
    num_threads: int = 1,
    check_intersections: bool = True,
) -> np.ndarray:
    """Hits among the best k, divided by k: [users that have test interactions]."""
    how = (train_interactions, user_features, item_features, num_threads, check_intersections)
    ranks = _ranks(model, test_interactions, *how)
    return _of_users(ranks, ranks.data < k, preserve_rows) / k


def recall_at_k(
    model: Any,
    test_interactions: Any,
    train_interactions: Any = None,
    k: int = 10,
    user_features: Any = None,
    item_features: Any = None,
    preserve_rows: bool = False,
    num_threads: int = 1,
    check_intersections: bool = True,
) -> np.ndarray:
    """Hits among the best k, divided by a user's test interactions."""
    how = (train_interactions, user_features, item_features, num_threads, check_intersections)
    ranks = _ranks(model, test_interactions, *how)
    counts = np.diff(ranks.indptr)
    counts = counts if preserve_rows else counts[counts > 0]
    return _of_users(ranks, ranks.data < k, preserve_rows) / counts.clip(min=1)


def reciprocal_rank(
    model: Any,
    test_interactions: Any,
    train_interactions: Any = None,
    user_features: Any = None,
    item_features: Any = None,
    preserve_rows: bool = False,
    num_threads: int = 1,
    check_intersections: bool = True,
) -> np.ndarray:
    """1 / rank of the best test item, counted from 1."""
    how = (train_interactions, user_features, item_features, num_threads, check_intersections)
    ranks = _ranks(model, test_interactions, *how)
    ranks.data = 1.0 / (1.0 + ranks.data)
    best = np.asarray(ranks.max(axis=1).todense()).ravel()
    return best if preserve_rows else best[np.diff(ranks.indptr) > 0]


def auc_score(
    model: Any,
    test_interactions: Any,
    train_interactions: Any = None,
    user_features: Any = None,
    item_features: Any = None,
    preserve_rows: bool = False,
    num_threads: int = 1,
    check_intersections: bool = True,
) -> np.ndarray:
    """The chance that a test item scores above an item that a user never took.

    Users without test interactions have 0.5 where rows are preserved.
    """
    how = (train_interactions, user_features, item_features, num_threads, check_intersections)
    ranks = _ranks(model, test_interactions, *how)
    known = np.zeros(ranks.shape[0], np.int64)
    if train_interactions is not None:
        known = np.diff(sparse.csr_matrix(train_interactions).indptr)
    found = np.full(ranks.shape[0], 0.5, np.float32)
    for user in np.flatnonzero(np.diff(ranks.indptr)):
        own = np.sort(ranks.data[ranks.indptr[user] : ranks.indptr[user + 1]])
        others = ranks.shape[1] - known[user] - len(own)
        if others > 0:
            above = own - np.arange(len(own))  # items never taken that score above
            found[user] = 1.0 - above.mean() / others
    return found if preserve_rows else found[np.diff(ranks.indptr) > 0]


def _ranks(
    model: Any, test: Any, train: Any, users: Any, items: Any, threads: int, check: bool
) -> sparse.csr_matrix:
    more = {"user_features": users, "item_features": items, "check_intersections": check}
    return model.predict_rank(test, train_interactions=train, num_threads=threads, **more)


def _of_users(ranks: sparse.csr_matrix, hits: np.ndarray, every: bool) -> np.ndarray:
    """Hits of each user; without those who have nothing to test on, unless all are wanted."""
    counts = np.diff(ranks.indptr)
    owner = np.repeat(np.arange(len(counts)), counts)
    found = np.bincount(owner, hits, minlength=len(counts))
    return (found if every else found[counts > 0]).astype(np.float32)
