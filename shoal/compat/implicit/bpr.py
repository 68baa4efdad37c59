"""BayesianPersonalizedRanking of implicit: Shoal's BPR.

Vectors are as wide as implicit's, factors + 1: there the last value of an item is its bias and that
of a user 1. BPR has no biases here: theirs are 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.compat.implicit.factors import FactorModel
from shoal.compat.implicit.matrix import by_number, checked, finite, positive, refuse, trained

BATCH = 1024  # interactions a step; implicit's step has one


class BayesianPersonalizedRanking(FactorModel):
    """Items that were taken score above items that were not.

    >>> from scipy.sparse import random
    >>> from shoal.compat.implicit.bpr import BayesianPersonalizedRanking
    >>> matrix = random(30, 20, 0.3, format="csr", random_state=1)
    >>> model = BayesianPersonalizedRanking(factors=4, iterations=2, random_state=1)
    >>> model.fit(matrix, show_progress=False)
    >>> model.recommend([7, 8], matrix[[7, 8]], N=3)[0].shape, model.item_factors.shape
    ((2, 3), (20, 5))
    """

    SAVED = ("factors", "learning_rate", "regularization", "iterations", "num_threads")

    def __init__(
        self,
        factors: int = 100,
        learning_rate: float = 0.01,
        regularization: float = 0.01,
        dtype: Any = np.float32,
        iterations: int = 100,
        use_gpu: bool = False,
        num_threads: int = 0,
        verify_negative_samples: bool = True,
        random_state: Any = None,
    ):
        """Takes the arguments of implicit's BayesianPersonalizedRanking.

        verify_negative_samples: Shoal's samples always are.
        """
        refuse(
            "BayesianPersonalizedRanking",
            dtype=(np.dtype(dtype).name, "float32", "vectors are float32"),
            verify_negative_samples=(verify_negative_samples, True, "they always are"),
        )
        positive(factors=factors, iterations=iterations)
        finite(learning_rate=learning_rate, regularization=regularization)
        self.factors, self.learning_rate = factors, learning_rate
        self.regularization, self.iterations = regularization, iterations
        self.use_gpu, self.num_threads, self.random_state = use_gpu, num_threads, random_state

    def fit(
        self,
        user_items: Any,
        show_progress: bool = True,
        callback: Callable[[int, float, float], None] | None = None,
    ) -> None:
        """Learn the vectors of all users (rows) and items (columns); values count alike."""
        refuse("fit", callback=(callback, None, "epochs report to run.trackers alone"))
        matrix = checked(user_items)
        # A step's gradients are a mean here; times the batch they are the sum of implicit's steps.
        keys = {
            "model.embedding_size": self.factors,
            "train.epochs": self.iterations,
            "train.batch_size": BATCH,
            "train.optimizer.name": "sgd",
            "train.optimizer.lr": self.learning_rate * BATCH,
            "train.optimizer.weight_decay": self.regularization / BATCH,
            "run.device": "cuda" if self.use_gpu else "cpu",
            "run.progress": show_progress,
        }
        with trained("BPR", matrix, self.random_state, self.num_threads, **keys) as fitted:
            users = by_number(fitted.user_vectors(), matrix.shape[0])
            items = by_number(fitted.item_vectors(), matrix.shape[1])
        self.user_factors = np.pad(users, ((0, 0), (0, 1)), constant_values=1.0)
        self.item_factors = np.pad(items, ((0, 0), (0, 1)))
