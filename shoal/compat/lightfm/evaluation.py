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
    ranks = model.predict_rank(
        test_interactions,
        train_interactions=train_interactions,
        user_features=user_features,
        item_features=item_features,
        num_threads=num_threads,
        check_intersections=check_intersections,
    )
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
    ranks = model.predict_rank(
        test_interactions,
        train_interactions=train_interactions,
        user_features=user_features,
        item_features=item_features,
        num_threads=num_threads,
        check_intersections=check_intersections,
    )
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
    ranks = model.predict_rank(
        test_interactions,
        train_interactions=train_interactions,
        user_features=user_features,
        item_features=item_features,
        num_threads=num_threads,
        check_intersections=check_intersections,
    )
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
    ranks = model.predict_rank(
        test_interactions,
        train_interactions=train_interactions,
        user_features=user_features,
        item_features=item_features,
        num_threads=num_threads,
        check_intersections=check_intersections,
    )
    train_counts = np.zeros(ranks.shape[0], np.int64)
    if train_interactions is not None:
        train_counts = np.diff(sparse.csr_matrix(train_interactions).indptr)
    auc = np.full(ranks.shape[0], 0.5, np.float32)
    for user in np.flatnonzero(np.diff(ranks.indptr)):
        own = np.sort(ranks.data[ranks.indptr[user] : ranks.indptr[user + 1]])
        others = ranks.shape[1] - train_counts[user] - len(own)
        if others > 0:
            above = own - np.arange(len(own))  # items never taken that score above
            auc[user] = 1.0 - above.mean() / others
    return auc if preserve_rows else auc[np.diff(ranks.indptr) > 0]


def _of_users(ranks: sparse.csr_matrix, hits: np.ndarray, every: bool) -> np.ndarray:
    """Hits of each user; without those who have nothing to test on, unless all are wanted."""
    counts = np.diff(ranks.indptr)
    owner = np.repeat(np.arange(len(counts)), counts)
    hits_by_user = np.bincount(owner, hits, minlength=len(counts))
    return (hits_by_user if every else hits_by_user[counts > 0]).astype(np.float32)
