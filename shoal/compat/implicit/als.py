"""AlternatingLeastSquares of implicit: Shoal's IALS, with confidences as weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shoal.compat.implicit.factors import FactorModel
from shoal.compat.implicit.matrix import by_number, checked, positive, refuse, rows_for, trained
from shoal.data.batch import Jagged
from shoal.models.general.ials import IALS, ListsByLength, solve


class AlternatingLeastSquares(FactorModel):
    """Matrix factorisation of what was taken, against everything else.

    An entry's confidence is alpha * its value, that of everything else 1, as in implicit.

    >>> from scipy.sparse import random
    >>> from shoal.compat.implicit.als import AlternatingLeastSquares
    >>> matrix = random(30, 20, 0.3, format="csr", random_state=1)
    >>> model = AlternatingLeastSquares(factors=4, random_state=1)
    >>> model.fit(matrix, show_progress=False)
    >>> ids, scores = model.recommend(7, matrix[7], N=3)
    >>> ids.shape, model.item_factors.shape
    ((3,), (20, 4))
    """

    SAVED = ("factors", "regularization", "alpha", "use_cg", "iterations", "num_threads")

    def __init__(
        self,
        factors: int = 100,
        regularization: float = 0.01,
        alpha: float = 1.0,
        dtype: Any = np.float32,
        use_native: bool = True,
        use_cg: bool = True,
        use_gpu: bool = False,
        iterations: int = 15,
        calculate_training_loss: bool = False,
        num_threads: int = 0,
        random_state: Any = None,
    ):
        """As implicit's."""
        refuse(
            "AlternatingLeastSquares",
            dtype=(np.dtype(dtype).name, "float32", "vectors are float32"),
            use_native=(use_native, True, "it always computes with torch"),
            use_gpu=(use_gpu, False, "it is solved on the CPU"),
            calculate_training_loss=(calculate_training_loss, False, "it computes no loss"),
        )
        positive(factors=factors, iterations=iterations)
        self.factors, self.regularization, self.alpha = factors, regularization, alpha
        self.use_cg, self.iterations = use_cg, iterations
        self.num_threads, self.random_state = num_threads, random_state

    def fit(
        self,
        user_items: Any,
        show_progress: bool = True,
        callback: Callable[[int, float, float], None] | None = None,
    ) -> None:
        """Learn the vectors of all users (rows) and items (columns)."""
        refuse("fit", callback=(callback, None, "all iterations are one computation"))
        matrix = checked(user_items)
        matrix.data *= self.alpha
        options = {f"model.{name}": value for name, value in vars(self._options).items()}
        keys = {"data.sample_weight": "value", "run.progress": show_progress, **options}
        with trained("IALS", matrix, self.random_state, self.num_threads, **keys) as fitted:
            self.user_factors = by_number(fitted.user_vectors(), matrix.shape[0])
            self.item_factors = by_number(fitted.item_vectors(), matrix.shape[1])

    @property
    def _options(self) -> IALS.Options:
        given: dict[str, Any] = {
            "embedding_size": self.factors,
            "epochs": self.iterations,
            "alpha": 1.0,
            "alpha_of": "others",
            "reg_weight": self.regularization,
            "nu": 0.0,
            "solver": "cg" if self.use_cg else "cholesky",
        }
        return IALS.Options(**given)

    def recalculate_user(self, userid: Any, user_items: Any) -> np.ndarray:
        """Vectors of users by other items than those of the matrix: [dim] of one, or [b, dim]."""
        return self._solved(userid, user_items, self._vectors()[1])

    def recalculate_item(self, itemid: Any, item_users: Any) -> np.ndarray:
        """Vectors of items by other users than those of the matrix: [dim] of one, or [b, dim]."""
        return self._solved(itemid, item_users, self._vectors()[0], "item_users")

    def partial_fit_users(self, userids: Any, user_items: Any) -> None:
        """Learn users anew, or new ones, by their items; items stay as they are."""
        self.user_factors = _placed(
            self._vectors()[0], userids, self.recalculate_user(np.atleast_1d(userids), user_items)
        )

    def partial_fit_items(self, itemids: Any, item_users: Any) -> None:
        """Learn items anew, or new ones, by their users; users stay as they are."""
        self.item_factors = _placed(
            self._vectors()[1], itemids, self.recalculate_item(np.atleast_1d(itemids), item_users)
        )

    def _solved(
        self, ids: Any, matrix: Any, others: np.ndarray, what: str = "user_items"
    ) -> np.ndarray:
        rows = rows_for(matrix, np.size(ids), len(others), what)
        parts = rows.indices.astype(np.int64), rows.indptr.astype(np.int64), rows.data * self.alpha
        values, offsets, weights = (torch.from_numpy(one) for one in parts)
        lists = ListsByLength(Jagged(values, offsets, weights), len(others))
        found = solve(self._options, lists, torch.from_numpy(others)).numpy()
        return found[0] if np.ndim(ids) == 0 else found


def _placed(vectors: np.ndarray, ids: Any, made: np.ndarray) -> np.ndarray:
    """Vectors with others at some places, of which some may be new."""
    places = np.asarray(ids)
    if places.dtype.kind not in "iu" or (places < 0).any():
        raise ValueError(f"{places.dtype} ids: give whole numbers, 0 or more")
    more = max(0, int(places.max()) + 1 - len(vectors))
    found = np.pad(vectors, ((0, more), (0, 0)))
    found[places] = made
    return found
