"""Splits and metrics by implicit's definitions, of any model with its `recommend`."""

from typing import Any

import numpy as np
from scipy import sparse

from shoal.compat.implicit.matrix import checked, positive

USERS = 1024  # asked for at a time


def train_test_split(
    ratings: Any, train_percentage: float = 0.8, random_state: Any = None
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Entries of a matrix by chance: about so many to train on, the rest to test on."""
    if not 0.0 < train_percentage < 1.0:
        raise ValueError(f"train_percentage is {train_percentage}; it is a share, such as 0.8")
    matrix = checked(ratings, "ratings")
    kept = np.random.default_rng(random_state).random(matrix.nnz) < train_percentage
    return _parts(matrix, kept)


def leave_k_out_split(
    ratings: Any,
    K: int = 1,
    train_only_size: float = 0.0,
    random_state: Any = None,
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """K entries of every user who has more than K + 1 to test on, the rest to train on.

    train_only_size: the share of such users all of whose entries train.
    """
    positive(K=K)
    matrix, random = checked(ratings, "ratings"), np.random.default_rng(random_state)
    counts = np.diff(matrix.indptr)
    users = np.flatnonzero(counts > K + 1)
    tested = np.zeros(matrix.shape[0], bool)
    tested[random.permutation(users)[int(train_only_size * len(users)) :]] = True
    owner = np.repeat(np.arange(matrix.shape[0]), counts)
    order = np.lexsort((random.random(matrix.nnz), owner))  # by user, then by chance
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)  # among the user's own
    kept = np.ones(matrix.nnz, bool)
    kept[order] = (place >= K) | ~tested[owner]
    return _parts(matrix, kept)


def ranking_metrics_at_k(
    model: Any,
    train_user_items: Any,
    test_user_items: Any,
    K: int = 10,
    show_progress: bool = True,
    num_threads: int = 1,
) -> dict[str, float]:
    """precision, map, ndcg and auc of the best K items of all users that have test entries.

    show_progress and num_threads change nothing: it is quick, and uses the threads of the model.
    """
    positive(K=K)
    train, test = checked(train_user_items, "train"), checked(test_user_items, "test")
    if train.shape != test.shape:
        raise ValueError(f"train is {train.shape}, and test {test.shape}; they have one shape")
    users = np.flatnonzero(np.diff(test.indptr))
    if not len(users):
        raise ValueError("test_user_items has no entries above 0: there is nothing to measure")
    gains = 1.0 / np.log2(np.arange(2, K + 2))
    ideal = gains.cumsum()
    sums = dict.fromkeys(("hits", "most", "map", "ndcg", "auc"), 0.0)
    for block in np.split(users, range(USERS, len(users), USERS)):
        ids, _ = model.recommend(block, train[block], N=K)
        likes = np.diff(test.indptr)[block]
        taken = test[block].toarray() > 0
        hits = np.take_along_axis(taken, np.maximum(ids, 0), 1) & (ids >= 0)  # [b, K]
        most, so_far = np.minimum(likes, K), hits.cumsum(1)
        sums["hits"] += float(hits.sum())
        sums["most"] += float(most.sum())
        sums["map"] += float(((so_far / np.arange(1, K + 1) * hits).sum(1) / most).sum())
        sums["ndcg"] += float((hits @ gains / ideal[most - 1]).sum())
        # Of items that are not listed, half of the pairs are right.
        wrong, others = (~hits).sum(1), test.shape[1] - likes
        pairs = (so_far * ~hits).sum(1) + (so_far[:, -1] + likes) / 2.0 * (others - wrong)
        sums["auc"] += float((pairs / (likes * others).clip(min=1)).sum())
    count = len(users)
    means = {name: sums[name] / count for name in ("map", "ndcg", "auc")}
    return {"precision": sums["hits"] / sums["most"], **means}


def precision_at_k(*args: Any, **kwargs: Any) -> float:
    """Hits among the best K, as a share of the most there could be."""
    return ranking_metrics_at_k(*args, **kwargs)["precision"]


def mean_average_precision_at_k(*args: Any, **kwargs: Any) -> float:
    """MAP@K."""
    return ranking_metrics_at_k(*args, **kwargs)["map"]


def ndcg_at_k(*args: Any, **kwargs: Any) -> float:
    """nDCG@K."""
    return ranking_metrics_at_k(*args, **kwargs)["ndcg"]


def AUC_at_k(*args: Any, **kwargs: Any) -> float:
    """AUC of which the best K are known."""
    return ranking_metrics_at_k(*args, **kwargs)["auc"]


def _parts(
    matrix: sparse.csr_matrix, kept: np.ndarray
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    owner = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    both = [
        sparse.csr_matrix((matrix.data[part], (owner[part], matrix.indices[part])), matrix.shape)
        for part in (kept, ~kept)
    ]
    return both[0], both[1]
