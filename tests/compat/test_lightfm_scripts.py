"""Scripts of lightfm with one changed import; where lightfm is installed, beside it."""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.models.nn.losses import warp_loss

sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")

from shoal.compat.lightfm import LightFM  # noqa: E402
from shoal.compat.lightfm.cross_validation import random_train_test_split  # noqa: E402
from shoal.compat.lightfm.data import Dataset  # noqa: E402
from shoal.compat.lightfm.evaluation import (  # noqa: E402
    auc_score,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)

USERS, ITEMS = 45, 30
SAME = np.arange(USERS)[:, None] % 3 == np.arange(ITEMS) % 3  # of one group


@pytest.fixture(scope="module")
def groups() -> Any:
    """Users of three groups, each with its own items; user 0 and item 0 have no entry."""
    taken = np.random.default_rng(1).random(SAME.shape) < np.where(SAME, 0.7, 0.02)
    taken[0] = taken[:, 0] = False
    return sparse.csr_matrix(taken.astype(np.float32))


@pytest.fixture(scope="module", params=["warp", "bpr", "logistic"])
def fitted(request: pytest.FixtureRequest, groups: Any) -> Any:
    model = LightFM(no_components=6, loss=request.param, learning_rate=0.1, random_state=2)
    assert model.fit(groups, epochs=15) is model
    return model


def test_items_of_the_group_are_first(fitted: Any, groups: Any) -> None:
    scores = np.stack([fitted.predict(user, np.arange(ITEMS)) for user in range(1, USERS)])
    assert scores.dtype == np.float32
    best = np.argsort(-scores, 1)[:, :3]
    assert (best % 3 == np.arange(1, USERS)[:, None] % 3).mean() > 0.9
    pairs = fitted.predict(np.array([4, 5]), np.array([7, 8]))
    np.testing.assert_allclose(pairs, [scores[3, 7], scores[4, 8]], rtol=1e-5)
    assert auc_score(fitted, groups).mean() > 0.85


def test_representations(fitted: Any) -> None:
    biases, vectors = fitted.get_item_representations()
    assert biases.shape == (ITEMS,) and vectors.shape == (ITEMS, 6)
    assert not vectors[0].any() and not fitted.user_biases.any()
    one = sparse.csr_matrix(([1.0, 2.0], ([0, 0], [4, 7])), shape=(1, ITEMS))
    np.testing.assert_allclose(
        fitted.get_item_representations(one)[1][0], vectors[4] + 2 * vectors[7], rtol=1e-5
    )
    users = fitted.get_user_representations()[1]
    expected = users[5] @ vectors[8] + biases[8]
    assert fitted.predict(5, [8])[0] == pytest.approx(expected, rel=1e-4)


def test_features_describe_users_and_items_without_interactions() -> None:
    """Two thirds of the items train; the group of the others is known by a feature alone."""
    kinds = sparse.csr_matrix(np.eye(3)[np.arange(ITEMS) % 3])
    features = sparse.hstack([sparse.identity(ITEMS), kinds]).tocsr()
    taken = np.random.default_rng(1).random(SAME.shape) < np.where(SAME, 0.7, 0.02)
    taken[:, 20:] = False
    model = LightFM(no_components=6, loss="bpr", learning_rate=0.1, random_state=2)
    model.fit(sparse.csr_matrix(taken.astype(float)), item_features=features, epochs=15)
    assert model.item_embeddings is not None and model.item_embeddings.shape == (ITEMS + 3, 6)
    new = sparse.csr_matrix(np.where(np.arange(ITEMS) >= 20, SAME, False).astype(float))
    known = np.arange(ITEMS) < 20  # those that trained are left out
    every = sparse.csr_matrix(np.tile(known, (USERS, 1)).astype(float))
    assert auc_score(model, new, every, item_features=features).mean() > 0.9
    with pytest.raises(ValueError, match="fitted with 33 features"):
        model.predict(1, [2], item_features=kinds)


def test_labels_of_logistic(groups: Any) -> None:
    """Entries below 0 are negatives, and nothing else is."""
    both = sparse.csr_matrix(np.where(SAME, 1.0, -1.0))
    model = LightFM(no_components=6, learning_rate=0.1, random_state=2).fit(both, epochs=15)
    scores = np.stack([model.predict(user, np.arange(ITEMS)) for user in range(USERS)])
    assert ((scores > 0) == SAME).mean() > 0.95


class Fixed:
    """A model whose ranks are known."""

    def predict_rank(self, test: Any, **more: Any) -> Any:
        ranks = sparse.csr_matrix(test, dtype=np.float32, copy=True)
        ranks.data = np.array([0, 4, 1], np.float32)
        return ranks


def test_metrics_by_hand() -> None:
    test = sparse.csr_matrix(np.array([[1, 0, 1, 0, 0, 0], [0] * 6, [0, 1, 0, 0, 0, 0]]))
    assert precision_at_k(Fixed(), test, k=2).tolist() == [0.5, 0.5]
    assert recall_at_k(Fixed(), test, k=2, preserve_rows=True).tolist() == [0.5, 0.0, 1.0]
    assert reciprocal_rank(Fixed(), test).tolist() == [1.0, 0.5]
    # User 0: of 4 others none is above the first and 3 above the second; user 2: 1 of 5.
    np.testing.assert_allclose(
        auc_score(Fixed(), test, preserve_rows=True), [1 - 3 / 8, 0.5, 1 - 1 / 5]
    )


def test_ranks_count_ties_and_leave_out_training(fitted: Any) -> None:
    model = LightFM(no_components=1)
    model.user_embeddings, model.user_biases = np.zeros((2, 1)), np.zeros(2)
    model.item_embeddings = np.zeros((5, 1))
    model.item_biases = np.array([0.0, 0.0, 0.0, 1.0, -1.0])
    test = sparse.csr_matrix(np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 1]], np.float32))
    assert model.predict_rank(test).data.tolist() == [3, 3, 3, 4]  # as lightfm 1.17 answers
    train = sparse.csr_matrix(np.array([[0, 0, 0, 1, 0], [0] * 5], np.float32))
    assert model.predict_rank(test, train).data.tolist() == [2, 2, 3, 4]
    np.testing.assert_allclose(auc_score(model, test), [1 / 6, 0.0], atol=1e-6)
    np.testing.assert_allclose(auc_score(model, test, train), [0.25, 0.0], atol=1e-6)
    with pytest.raises(ValueError, match="entries of train_interactions too"):
        model.predict_rank(test, test)


def test_warp_by_hand() -> None:
    """Scores 2 of the item; 0.5 is far enough, 1.5 is not: found at the second of 3 negatives."""
    one = torch.tensor([[1.0]])
    negatives = torch.tensor([[[0.5], [1.5], [9.0]]])
    loss = warp_loss(one, one * 2, negatives, 21)
    assert loss.item() == pytest.approx(0.5 * np.log(10))
    assert warp_loss(one, one * 2, negatives[:, :1], 21).item() == 0.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"loss": "warp-kos"}, "there are logistic, bpr, warp"),
        ({"learning_schedule": "adadelta"}, "no adadelta"),
        ({"k": 3}, "warp-kos"),
        ({"item_alpha": 0.1}, "give both the same"),
        ({"no_components": 2.5}, "whole number"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": -1}, "learning_rate is -1"),
        ({"item_alpha": float("nan"), "user_alpha": float("nan")}, "item_alpha is nan"),
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LightFM(**wrong)


def test_careless_calls_are_one_clear_line(fitted: Any, groups: Any) -> None:
    new = LightFM()
    for wrong, kind, words in [
        (lambda: new.predict(0, [1]), ValueError, "not fitted yet"),
        (lambda: new.fit(groups.toarray()), ValueError, "sparse matrix"),
        (lambda: new.fit(groups * 0), ValueError, "nothing to learn"),
        (lambda: new.fit(groups, sample_weight=groups), ValueError, "sample_weight"),
        (lambda: new.fit(groups, epochs=0), ValueError, "epochs is 0"),
        (lambda: new.fit(groups[1:2]), ValueError, "user 0 of the matrix has all"),
        (lambda: new.fit(groups * 1j), ValueError, "complex"),
        (
            lambda: new.fit(groups, item_features=sparse.identity(4)),
            ValueError,
            "4 rows, and interactions has 30",
        ),
        (lambda: fitted.fit_partial(groups[:, ::-1]), ValueError, "these are others"),
        (lambda: fitted.predict(99, [1]), IndexError, "99 is not in the model"),
        (lambda: fitted.predict(1, [1.0]), ValueError, "whole numbers"),
        (lambda: fitted.predict([1, 2, 3], [1, 2]), ValueError, "3 user_ids for 2 item_ids"),
        (lambda: precision_at_k(fitted, groups.T), ValueError, "knows 45 users and 30 items"),
    ]:
        with pytest.raises(kind, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_fit_partial_continues_epoch_by_epoch(groups: Any) -> None:
    """The optimizer continues where it was: twelve epochs are as good in three calls as in one."""
    model, aucs = LightFM(no_components=6, loss="bpr", learning_rate=0.1, random_state=2), []
    for _ in range(3):
        assert model.fit_partial(groups, epochs=4) is model
        aucs.append(auc_score(model, groups).mean())
    assert aucs[-1] > aucs[0] + 0.05
    whole = LightFM(no_components=6, loss="bpr", learning_rate=0.1, random_state=2)
    assert auc_score(whole.fit(groups, epochs=12), groups).mean() == pytest.approx(
        aucs[-1], abs=0.05
    )


def test_matrices_of_names() -> None:
    data = Dataset()
    data.fit(["ann", "bob"], [7, 9], item_features=["red", "big"])
    assert data.interactions_shape() == (2, 2) and data.item_features_shape() == (2, 4)
    assert data.model_dimensions() == (2, 4) and data.mapping()[0] == {"ann": 0, "bob": 1}
    ones, weights = data.build_interactions([("ann", 7), ("bob", 9, 2.0)])
    assert ones.toarray().tolist() == [[1, 0], [0, 1]] and weights.toarray()[1, 1] == 2.0
    made = data.build_item_features([(9, {"red": 3.0}), (7, ["big", "red"])])
    np.testing.assert_allclose(made.toarray(), [[1 / 3, 0, 1 / 3, 1 / 3], [0, 0.25, 0.75, 0]])
    data.fit_partial(users=["cy"])
    assert data.interactions_shape() == (3, 2)
    with pytest.raises(ValueError, match="'bobb' was not given to fit; did you mean bob"):
        data.build_interactions([("bobb", 7)])
    with pytest.raises(ValueError, match="call fit first"):
        Dataset().build_interactions([("ann", 7)])
    bare = Dataset(item_identity_features=False)
    bare.fit(["ann"], [7, 9], item_features=["red"])
    with pytest.raises(ValueError, match="item number 1 has no features to normalize"):
        bare.build_item_features([(7, ["red"])])


def test_parameters_and_split(groups: Any) -> None:
    model = LightFM(loss="warp").set_params(no_components=3)
    assert LightFM(**model.get_params()).get_params() == model.get_params()
    train, test = random_train_test_split(groups, random_state=np.random.RandomState(1))
    assert test.nnz == pytest.approx(groups.nnz * 0.2, abs=1)
    assert (train + test != groups).nnz == 0


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "from" / "lightfm.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    assert "shoal.compat.lightfm" in code
    exec(code, {})


@pytest.mark.slow
def test_quality_beside_lightfm() -> None:
    """The same script with both imports, on ml-100k."""
    pytest.importorskip("lightfm", reason="lightfm is not installed, and builds with care alone")
    if "SHOAL_TEST_DATA" not in os.environ:
        # A clone has no MovieLens of its own.
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-100k")
    file = Path(os.environ["SHOAL_TEST_DATA"], "ml-100k", "ml-100k.inter")
    users, items = np.loadtxt(file, skiprows=1, usecols=(0, 1)).astype(int).T - 1
    matrix = sparse.csr_matrix((np.ones(len(users), np.float32), (users, items)))
    train, test = random_train_test_split(matrix, random_state=1)

    def script(package: str) -> float:
        model = import_module(package).LightFM(no_components=30, loss="warp", random_state=1)
        model.fit(train, epochs=10)
        return float(precision_at_k(model, test.tocsr(), train.tocsr()).mean())

    assert script("shoal.compat.lightfm") == pytest.approx(script("lightfm"), abs=0.03)
