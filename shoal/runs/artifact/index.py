"""Index: approximate top-k for large catalogues, by usearch (HNSW); its recall is measured.

Exact ranking is the default. An index looks at few of the items, so some of the best are missed:
how many is measured against exact ranking on queries of the model itself, and told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal.kernels.topk import Pairs
from shoal.runs.artifact.loaded import Artifact, Fields
from shoal.runs.recommender import NOBODY

MEASURED = 256  # queries
MORE = 64  # that are found beyond topk and what a user has seen, before filters


class Approximate:
    """An index over the item vectors of an artifact."""

    def __init__(self, artifact: Artifact):
        try:
            from usearch.index import Index
        except ImportError as error:
            raise ValueError(f"{error}; run `make extras EXTRAS=index` in the clone") from error
        self.artifact = artifact
        vectors = artifact.item_vectors().numpy()
        self._index: Any = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        self._index.add(np.arange(1, len(vectors)), vectors[1:])

    def rank(self, query: Fields, topk: int, without: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """As Recommender.rank, but for what the index misses: items [b, k], scores [b, k]."""
        queries = self.artifact.queries(query)
        size = len(queries)
        longest = int(np.bincount(without[0], minlength=1).max()) if len(without[0]) else 0
        wanted = min(topk + longest + MORE, len(self.artifact.items) - 1)
        found = self._index.search(queries.numpy(), wanted)
        keys = np.asarray(found.keys, dtype=np.int64).reshape(size, wanted)
        # The index rounds; scores are the model's own.
        vectors = self.artifact.item_vectors()[torch.from_numpy(keys.reshape(-1))]
        scores = torch.einsum("bd,bnd->bn", queries, vectors.view(size, wanted, -1)).numpy().copy()
        banned = set(zip(without[0].tolist(), without[1].tolist()))
        for row, keys_of in enumerate(keys.tolist()):
            for column, key in enumerate(keys_of):
                if (row, key) in banned:
                    scores[row, column] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
        scores = np.take_along_axis(scores, order, 1)
        return np.where(np.isneginf(scores), 0, np.take_along_axis(keys, order, 1)), scores

    def recall(self, topk: int) -> float:
        """How much of the exact lists is found, for users spread over all of them."""
        users = np.linspace(1, len(self.artifact.users) - 1, MEASURED).astype(np.int64)
        users = np.unique(users)
        query = self.artifact.of_users(users)
        exact, _ = self.artifact.recommender.rank(query, len(users), topk)
        found, _ = self.rank(query, topk, (NOBODY, NOBODY))
        same = sum(len(np.intersect1d(a[a > 0], b)) for a, b in zip(exact, found))
        return same / max(1, int((exact > 0).sum()))
