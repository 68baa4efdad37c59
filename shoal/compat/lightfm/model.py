"""LightFM of lightfm: Shoal's model of that name, with vectors of features of users and items."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse

from shoal.compat.implicit.matrix import as_csr, finite, numbers, positive, refuse, seed_of, trained
from shoal.data.features import Feature
from shoal.runs.fit import Fitted

LOSSES = {"logistic": "logistic", "bpr": "BPR", "warp": "WARP"}
BATCH = 1024  # interactions a step; lightfm's step has one
USERS = 1024  # ranked at a time


class FeatureFactors:
    """Vectors of features; those of a user and of an item are the sums over theirs.

    item_embeddings [item features, no_components], item_biases [item features], user_embeddings
    and user_biases; None before `fit`. Users have no biases here: user_biases are 0.

    >>> from scipy.sparse import random
    >>> from shoal.compat.lightfm import LightFM
    >>> matrix = random(30, 20, 0.3, format="csr", random_state=1)
    >>> model = LightFM(no_components=4, loss="warp", random_state=1).fit(matrix, epochs=2)
    >>> model.predict(7, [1, 2, 3]).shape, model.item_embeddings.shape
    ((3,), (20, 4))
    """

    item_embeddings: np.ndarray | None = None
    item_biases: np.ndarray | None = None
    user_embeddings: np.ndarray | None = None
    user_biases: np.ndarray | None = None
    _random: np.random.Generator  # a seed for each call of fit_partial

    def __init__(
        self,
        no_components: int = 10,
        k: int = 5,
        n: int = 10,
        learning_schedule: str = "adagrad",
        loss: str = "logistic",
        learning_rate: float = 0.05,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        item_alpha: float = 0.0,
        user_alpha: float = 0.0,
        max_sampled: int = 10,
        random_state: Any = None,
    ):
        """Takes the arguments of lightfm's LightFM."""
        if loss not in LOSSES:
            raise ValueError(f"LightFM(loss={loss!r}): there are {', '.join(LOSSES)}")
        refuse(
            "LightFM",
            k=(k, 5, "it is an option of warp-kos, which Shoal does not have"),
            n=(n, 10, "it is an option of warp-kos, which Shoal does not have"),
            learning_schedule=(learning_schedule, "adagrad", "Shoal has no adadelta"),
            rho=(rho, 0.95, "it is an option of adadelta, which Shoal does not have"),
            epsilon=(epsilon, 1e-6, "it is an option of adadelta, which Shoal does not have"),
        )
        finite(learning_rate=learning_rate, item_alpha=item_alpha, user_alpha=user_alpha)
        if item_alpha != user_alpha:
            raise ValueError(
                f"LightFM(item_alpha={item_alpha}, user_alpha={user_alpha}): there is one penalty "
                "for both here; give both the same"
            )
        positive(no_components=no_components, max_sampled=max_sampled)
        self.no_components, self.loss, self.learning_rate = no_components, loss, learning_rate
        self.item_alpha, self.user_alpha = item_alpha, user_alpha
        self.max_sampled, self.random_state = max_sampled, random_state
        self.k, self.n, self.rho, self.epsilon = k, n, rho, epsilon
        self.learning_schedule = learning_schedule
        self._run: tuple[tempfile.TemporaryDirectory[str], str] | None = None  # and its data

    def fit(
        self,
        interactions: Any,
        user_features: Any = None,
        item_features: Any = None,
        sample_weight: Any = None,
        epochs: int = 1,
        num_threads: int = 1,
        verbose: bool = False,
    ) -> Self:
        """Learn from all interactions above 0; with loss="logistic" those below are negatives.

        user_features, item_features: sparse [users, features], [items, features]; left out, every
        user and every item has one of its own.
        """
        self._run, self._random = None, np.random.default_rng(seed_of(self.random_state))
        return self.fit_partial(
            interactions,
            user_features,
            item_features,
            sample_weight=sample_weight,
            epochs=epochs,
            num_threads=num_threads,
            verbose=verbose,
        )

    def fit_partial(
        self,
        interactions: Any,
        user_features: Any = None,
        item_features: Any = None,
        sample_weight: Any = None,
        epochs: int = 1,
        num_threads: int = 1,
        verbose: bool = False,
    ) -> Self:
        """Train for more epochs on the data of the last call, from where that stopped."""
        if self._run is None and self.user_embeddings is None:
            self._random = np.random.default_rng(seed_of(self.random_state))
        refuse("fit", sample_weight=(sample_weight is None, True, "samples count alike here"))
        positive(epochs=epochs, num_threads=num_threads)
        matrix = _matrix(interactions, "interactions")
        # Entries below 0 are negatives of the logistic loss; the others leave them out.
        labelled = self.loss == "logistic" and bool((matrix.data < 0).any())
        matrix.data = (matrix.data > 0).astype(np.float32)
        if not labelled:
            matrix.eliminate_zeros()
        sides = {
            "user": _features(user_features, matrix.shape[0], "user_features"),
            "item": _features(item_features, matrix.shape[1], "item_features"),
        }
        keys = self._keys(sides, labelled) | {"train.epochs": epochs, "run.progress": verbose}
        digest = _digest(matrix, sides["user"], sides["item"])
        if self._run is not None:
            if self._run[1] != digest:
                raise ValueError(
                    "fit_partial continues with the interactions and features of the last call, "
                    "and these are others; call fit with all of them"
                )
            keys["start.run"] = str(Path(self._run[0].name, "run"))
        place = tempfile.TemporaryDirectory(prefix="shoal-")
        keys["run.output"] = str(Path(place.name, "run"))
        with trained("LightFM", matrix, self._random, num_threads, **keys) as fitted:
            self._take_over(fitted, sides, matrix.shape)
        self._run = place, digest
        return self

    def _keys(self, sides: dict[str, sparse.csr_matrix | None], labelled: bool) -> dict[str, Any]:
        """The config of a run with these features of users and items."""
        keys: dict[str, Any] = {
            "features": [_feature(side, features) for side, features in sides.items()],
            "model.embedding_size": self.no_components,
            "model.loss": LOSSES[self.loss],
            "train.batch_size": BATCH,
            "train.optimizer.name": "adagrad",
            "train.optimizer.lr": self.learning_rate,
            "train.optimizer.weight_decay": self.item_alpha / BATCH,
        }
        if self.loss == "warp":
            keys["train.negatives.num"] = self.max_sampled
        if labelled:
            keys |= {"label": "value", "train.negatives": None}
        for side, features in sides.items():
            if features is not None:
                keys[f"{side}s"] = _frame(side, features)
        return keys

    def _take_over(
        self,
        fitted: Fitted,
        sides: dict[str, sparse.csr_matrix | None],
        shape: tuple[int, int],
    ) -> None:
        """Keep what a run learned of every feature; shape: users and items."""
        for side, num_ids in zip(("user", "item"), shape):
            features = sides[side]
            count = num_ids if features is None else features.shape[1]
            vectors, biases = _learned(fitted, side, count, features is not None)
            setattr(self, f"{side}_embeddings", vectors)
            setattr(self, f"{side}_biases", biases)

    def predict(
        self,
        user_ids: Any,
        item_ids: Any,
        item_features: Any = None,
        user_features: Any = None,
        num_threads: int = 1,
    ) -> np.ndarray:
        """Scores of pairs: [n]; one user may stand for all."""
        users, items = self._made(user_features, item_features)
        wanted = numbers(item_ids, len(items), "item_ids")
        who = numbers(user_ids, len(users), "user_ids")
        if len(who) not in (1, len(wanted)):
            raise ValueError(f"there are {len(who)} user_ids for {len(wanted)} item_ids")
        return (users[who] * items[wanted]).sum(1)

    def predict_rank(
        self,
        test_interactions: Any,
        train_interactions: Any = None,
        item_features: Any = None,
        user_features: Any = None,
        num_threads: int = 1,
        check_intersections: bool = True,
    ) -> sparse.csr_matrix:
        """The rank of every test entry among all items of its user, from 0: csr of that shape.

        Items of train_interactions are left out.
        """
        users, items = self._made(user_features, item_features)
        test = _matrix(test_interactions, "test_interactions", (len(users), len(items)))
        train = None
        if train_interactions is not None:
            train = _matrix(train_interactions, "train_interactions", (len(users), len(items)))
            if check_intersections and train.multiply(test).nnz:
                raise ValueError(
                    "test_interactions has entries of train_interactions too; leave them out, or "
                    "set check_intersections=False"
                )
        ranks = test.astype(np.float32)
        user_ids = np.flatnonzero(np.diff(test.indptr))
        for block in np.split(user_ids, range(USERS, len(user_ids), USERS)):
            scores = users[block] @ items.T
            own = np.repeat(np.arange(len(block)), np.diff(test.indptr)[block])
            wanted = scores[own, test[block].indices]
            if train is not None:
                scores[train[block].nonzero()] = -np.inf
            scores = np.sort(scores, 1)
            ends = np.flatnonzero(np.diff(own, prepend=-1))
            parts = zip(scores, np.split(wanted, ends[1:]))
            # Of equal scores all others are above, as lightfm has it.
            above = [len(row) - 1 - np.searchsorted(row, part) for row, part in parts]
            places = np.concatenate([np.arange(*test.indptr[u : u + 2]) for u in block])
            ranks.data[places] = np.concatenate(above)
        return ranks

    def get_user_representations(self, features: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Biases and vectors of users, by their features; left out, of the features themselves."""
        return self._representations("user", features)

    def get_item_representations(self, features: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Biases [items] and vectors [items, no_components]; of items without features: theirs."""
        return self._representations("item", features)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter."""
        names = ("no_components", "k", "n", "learning_schedule", "loss", "learning_rate", "rho")
        more = ("epsilon", "item_alpha", "user_alpha", "max_sampled", "random_state")
        return {name: getattr(self, name) for name in names + more}

    def set_params(self, **params: Any) -> Self:
        """Change parameters, by the rules of __init__."""
        run = self._run
        FeatureFactors.__init__(self, **{**self.get_params(), **params})
        self._run = run  # fit_partial continues it, or refuses to
        return self

    def _representations(self, side: str, features: Any) -> tuple[np.ndarray, np.ndarray]:
        vectors, biases = getattr(self, f"{side}_embeddings"), getattr(self, f"{side}_biases")
        if vectors is None:
            raise ValueError("LightFM is not fitted yet; call fit(interactions) first")
        if features is None:
            return biases, vectors
        matrix = _matrix(features, f"{side}_features")
        if matrix.shape[1] != len(vectors):
            raise ValueError(
                f"{side}_features has {matrix.shape[1]} columns, and the model was fitted with "
                f"{len(vectors)} features"
            )
        return matrix @ biases, matrix @ vectors

    def _made(self, user_features: Any, item_features: Any) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of users and items whose product is the score: [n, no_components + 2] each."""
        user_biases, users = self._representations("user", user_features)
        item_biases, items = self._representations("item", item_features)
        ones = np.ones_like
        return (
            np.column_stack([users, user_biases, ones(user_biases)]),
            np.column_stack([items, ones(item_biases), item_biases]),
        )


def _matrix(matrix: Any, what: str, shape: tuple[int, int] | None = None) -> sparse.csr_matrix:
    csr = as_csr(matrix, what)
    if shape is not None and csr.shape != shape:
        raise ValueError(
            f"{what} is {csr.shape}, and the model knows {shape[0]} users and {shape[1]} items"
        )
    return csr


def _digest(*matrices: sparse.csr_matrix | None) -> str:
    """What tells matrices from others."""
    digest = hashlib.sha256()
    for matrix in matrices:
        if matrix is not None:
            for part in (matrix.shape, matrix.indptr, matrix.indices, matrix.data):
                digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def _features(features: Any, count: int, what: str) -> sparse.csr_matrix | None:
    if features is None:
        return None
    matrix = _matrix(features, what)
    if matrix.shape[0] != count:
        raise ValueError(
            f"{what} has {matrix.shape[0]} rows, and interactions has {count} of them; give one "
            "row of features for each"
        )
    return matrix


def _feature(side: Any, features: sparse.csr_matrix | None) -> Feature:
    if features is None:
        return Feature(side, "id", side=side)
    return Feature("features_of_" + side, "ids", side=side, weights=f"weights_of_{side}")


def _frame(side: str, features: sparse.csr_matrix) -> dict[str, Any]:
    """The features of every user or item: lists of their numbers, and of their weights."""
    rows = [slice(a, b) for a, b in zip(features.indptr, features.indptr[1:])]
    return {
        side: np.arange(features.shape[0]),
        f"features_of_{side}": [[str(one) for one in features.indices[some]] for some in rows],
        f"weights_of_{side}": [features.data[some].tolist() for some in rows],
    }


def _learned(fitted: Fitted, side: str, count: int, listed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [count, dim] and biases [count] of features by number; 0 of those nobody has."""
    model: Any = fitted.trained.model
    field = f"features_of_{side}" if listed else side
    column_names = model.facts.table.encoding.words[field].values
    places = np.array([int(name) for name in column_names[1:]], np.int64)
    with torch.inference_mode():
        ids = torch.arange(1, len(column_names))
        rows = model.embed.rows(field, ids).float().numpy()
        bias = model.bias.rows(field, ids).float().numpy() if side == "item" else rows[:, :0]
    vectors = np.zeros((count, rows.shape[1]), np.float32)
    biases = np.zeros(count, np.float32)
    vectors[places] = rows
    biases[places] = bias.sum(1)
    return vectors, biases
