"""Splits of interactions, as lightfm.cross_validation has them."""

from typing import Any

import numpy as np
from scipy import sparse


def random_train_test_split(
    interactions: Any, test_percentage: float = 0.2, random_state: Any = None
) -> tuple[sparse.coo_matrix, sparse.coo_matrix]:
    """Entries by chance, this share of them to test on: two matrices, coo."""
    if not 0.0 < test_percentage < 1.0:
        raise ValueError(f"test_percentage is {test_percentage}; it is a share, such as 0.2")
    if not sparse.issparse(interactions):
        raise ValueError("interactions must be a sparse matrix: users are rows, items are columns")
    entries = sparse.coo_matrix(interactions)
    seed = random_state.randint(2**31 - 1) if hasattr(random_state, "randint") else random_state
    order = np.random.default_rng(seed).permutation(entries.nnz)
    cut = int((1.0 - test_percentage) * entries.nnz)
    both = [
        sparse.coo_matrix(
            (entries.data[part], (entries.row[part], entries.col[part])), entries.shape
        )
        for part in (order[:cut], order[cut:])
    ]
    return both[0], both[1]
