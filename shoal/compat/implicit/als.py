"""AlternatingLeastSquares of implicit: Shoal's IALS, with confidences as weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy import sparse

from shoal.compat.implicit.factors import FactorModel
from shoal.compat.implicit.matrix import (
    checked,
    finite,
    generator,
    positive,
    refuse,
    refuse_empty,
    rows_for,
    torch_threads,
)
from shoal.data.batch import Jagged
from shoal.models.general.ials import alternate
from shoal.models.nn.least_squares import LeastSquares, ListsByLength, solve


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
        """Takes the arguments of implicit's AlternatingLeastSquares."""
        refuse(
            "AlternatingLeastSquares",
            dtype=(np.dtype(dtype).name, "float32", "vectors are float32"),
            use_native=(use_native, True, "it always computes with torch"),
            use_gpu=(use_gpu, False, "it is solved on the CPU"),
            calculate_training_loss=(calculate_training_loss, False, "it computes no loss"),
        )
        positive(factors=factors, iterations=iterations)
        finite(regularization=regularization, alpha=alpha)
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
        refuse_empty(matrix)
        random = generator(self.random_state)
        users, items = (  # drawn as implicit draws them
            random.random((count, self.factors), dtype=np.float32) * np.float32(0.01)
            for count in matrix.shape
        )
        by_user, by_item = self._lists(matrix), self._lists(matrix.T.tocsr())
        with torch_threads(self.num_threads), _explained():
            user_vectors, item_vectors = alternate(
                self._problem,
                self.iterations,
                by_user,
                by_item,
                torch.from_numpy(users),
                torch.from_numpy(items),
            )
            # Users are solved for once more: theirs are then the best for these items.
            user_vectors = solve(self._problem, by_user, item_vectors, user_vectors)
        self.user_factors, self.item_factors = user_vectors.numpy(), item_vectors.numpy()

    @property
    def _problem(self) -> LeastSquares:
        return LeastSquares(
            alpha=1.0,
            reg_weight=self.regularization,
            nu=0.0,
            alpha_others=True,
            cg_steps=3 if self.use_cg else None,
        )

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
        with torch_threads(self.num_threads), _explained():
            vectors = solve(self._problem, self._lists(rows), torch.from_numpy(others)).numpy()
        return vectors[0] if np.ndim(ids) == 0 else vectors

    def _lists(self, matrix: sparse.csr_matrix) -> ListsByLength:
        """The columns of each row of a matrix, weighted by their confidences."""
        columns = torch.from_numpy(matrix.indices.astype(np.int64))
        offsets = torch.from_numpy(matrix.indptr.astype(np.int64))
        confidences = torch.from_numpy(matrix.data * np.float32(self.alpha))
        lists = Jagged(columns, offsets, confidences)
        return ListsByLength(lists, matrix.shape[1], self.factors)


def _placed(vectors: np.ndarray, ids: Any, new_vectors: np.ndarray) -> np.ndarray:
    """Vectors with others at some places, of which some may be new."""
    places = np.asarray(ids)
    if places.dtype.kind not in "iu" or (places < 0).any():
        raise ValueError(f"{places.dtype} ids: give whole numbers, 0 or more")
    more = max(0, int(places.max()) + 1 - len(vectors))
    extended = np.pad(vectors, ((0, more), (0, 0)))
    extended[places] = new_vectors
    return extended


@contextmanager
def _explained() -> Iterator[None]:
    """Context that says why equations have no solution."""
    try:
        yield
    except torch.linalg.LinAlgError:
        raise ValueError(
            "the equations have no finite solution: alpha * values are too large for float32; "
            "scale the matrix down, or give a larger regularization"
        ) from None
