"""Scripts of implicit with one changed import; where implicit is installed, beside it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")

from shoal.compat.implicit.als import AlternatingLeastSquares  # noqa: E402
from shoal.compat.implicit.bpr import BayesianPersonalizedRanking  # noqa: E402
from shoal.compat.implicit.evaluation import (  # noqa: E402
    leave_k_out_split,
    ranking_metrics_at_k,
    train_test_split,
)
from shoal.compat.implicit.nearest_neighbours import (  # noqa: E402
    BM25Recommender,
    CosineRecommender,
)

LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def groups() -> Any:
    """Users of three groups, each with its own items; user 0 and item 0 have no entry."""
    random, rows = np.random.default_rng(1), []
    for user in range(1, 61):
        for item in range(1, 31):
            if random.random() < (0.7 if user % 3 == item % 3 else 0.02):
                rows.append((user, item))
    users, items = np.array(rows).T
    return sparse.csr_matrix((np.ones(len(users)), (users, items)), shape=(61, 31))


@pytest.fixture(scope="module", params=["als", "bpr", "cosine", "bm25"])
def fitted(request: pytest.FixtureRequest, groups: Any) -> Any:
    model: Any
    if request.param == "als":
        model = AlternatingLeastSquares(factors=8, alpha=5.0, random_state=3)
    elif request.param == "bm25":
        model = BM25Recommender(K=8)
    elif request.param == "bpr":
        model = BayesianPersonalizedRanking(
            factors=8, learning_rate=0.1, iterations=30, random_state=3
        )
    else:
        model = CosineRecommender(K=8)
    assert model.fit(groups, show_progress=False) is None
    return model


def test_users_get_the_items_of_their_group(fitted: Any, groups: Any) -> None:
    users = np.arange(1, 61)
    ids, scores = fitted.recommend(users, groups[users], N=2, filter_already_liked_items=False)
    assert ids.shape == scores.shape == (60, 2)
    assert (ids.dtype, scores.dtype) == (np.int32, np.float32)
    assert (ids % 3 == users[:, None] % 3).mean() > 0.95
    assert (scores[:, 0] >= scores[:, 1]).all()


def test_a_single_user_gets_the_list_it_gets_in_a_batch(fitted: Any, groups: Any) -> None:
    ids, _ = fitted.recommend(5, groups[5], N=3)
    both, _ = fitted.recommend([4, 5], groups[[4, 5]], N=3)
    assert ids.shape == (3,) and ids.tolist() == both[1].tolist()
    assert not set(ids) & set(groups[5].indices)
    left, _ = fitted.recommend(5, groups[5], N=3, filter_items=ids[:1])
    assert left[:2].tolist() == ids[1:].tolist()
    only, _ = fitted.recommend(5, groups[5], N=3, items=ids[1:])
    assert only.tolist() == ids[1:].tolist()


def test_lists_with_too_few_items_are_filled_up(fitted: Any, groups: Any) -> None:
    ids, scores = fitted.recommend([5], groups[[5]], N=40)
    assert ids.shape == (1, 40) and (ids[0, -5:] == -1).all() and (scores[0, -5:] == LOWEST).all()
    assert len(fitted.recommend(5, groups[5], N=40)[0]) == (ids >= 0).sum()


def test_similar_items_are_of_the_same_group(fitted: Any) -> None:
    ids, scores = fitted.similar_items(7, N=4)
    assert ids[0] == 7 and scores[0] == scores.max()
    assert (ids % 3 == 1).all()
    many, _ = fitted.similar_items([7, 8], N=4)
    assert many[0].tolist() == ids.tolist()
    assert 7 not in fitted.similar_items(7, N=4, filter_items=[7])[0]


def test_careless_calls_are_one_clear_line(fitted: Any, groups: Any) -> None:
    new = type(fitted)()
    for wrong, kind, words in [
        (lambda: new.recommend(0, groups[0]), ValueError, "not fitted yet"),
        (lambda: new.similar_items(0), ValueError, "not fitted yet"),
        (lambda: new.fit(groups.toarray()), ValueError, "users are rows, items are columns"),
        (lambda: new.fit(-groups), ValueError, "below 0"),
        (lambda: new.fit(groups * np.nan), ValueError, "not finite"),
        (lambda: new.fit(groups * 0), ValueError, "nothing to learn"),
        (lambda: new.fit(groups, callback=print), ValueError, "callback"),
        (lambda: fitted.recommend(1, groups), ValueError, "61 rows for 1 users"),
        (lambda: fitted.recommend(1, groups[:, :30][1]), ValueError, "30 columns"),
        (lambda: fitted.recommend(np.arange(31), groups.T.tocsr()), ValueError, "transposed"),
        (lambda: fitted.recommend(1.0, groups[1]), ValueError, "whole numbers"),
        (lambda: fitted.recommend(1, groups[1], N=0), ValueError, "1 or more"),
        (lambda: fitted.recommend(1, groups[1], N=2.5), ValueError, "N is 2.5"),
        (lambda: fitted.recommend(1, groups[1], items=[]), ValueError, "items is empty"),
        (lambda: fitted.recommend(1, groups[1], items=[99]), IndexError, "99 is not in the model"),
        (
            lambda: fitted.recommend(1, groups[1], items=[1], filter_items=[2]),
            ValueError,
            "one of them",
        ),
        (lambda: fitted.similar_items(-1), IndexError, "-1 is not in the model"),
    ]:
        with pytest.raises(kind, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)


DAMAGED = """
import numpy as np
from scipy import sparse
from shoal.compat.implicit.als import AlternatingLeastSquares
from shoal.compat.implicit.nearest_neighbours import CosineRecommender
from shoal.compat.lightfm import LightFM

for make in (AlternatingLeastSquares, CosineRecommender, LightFM):
    for part, place, value in (
        ("indices", 5, 10**6), ("indices", 5, -7), ("indptr", 3, 10**6), ("indptr", 3, -1),
    ):
        matrix = sparse.csr_matrix(np.ones((40, 25), np.float32))
        getattr(matrix, part)[place] = value
        try:
            make().fit(matrix)
            raise SystemExit(f"{make.__name__} fits {part} {value}")
        except ValueError as error:
            assert "is damaged" in str(error), error
"""


def test_places_outside_a_matrix_do_not_end_the_interpreter() -> None:
    """scipy's native code trusts them: a copy is enough to end the process by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", DAMAGED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_numbers_that_cannot_be_learned_from(groups: Any) -> None:
    als, bpr = AlternatingLeastSquares, BayesianPersonalizedRanking
    everything = sparse.csr_matrix(np.ones((4, 3)))
    for wrong, words in [
        (lambda: als().fit(groups * 1j), "complex"),
        (lambda: als(factors=4, iterations=1).fit(groups * 1e38), "scale the matrix down"),
        (lambda: als(regularization=-1), "regularization is -1; it must be a finite number"),
        (lambda: als(alpha=np.nan), "alpha is nan"),
        (lambda: als(random_state="x").fit(groups), "random_state is 'x'"),
        (lambda: als(num_threads=-3).fit(groups), "num_threads is -3"),
        (lambda: bpr(learning_rate=-1), "learning_rate is -1"),
        (lambda: bpr(regularization=np.inf), "regularization is inf"),
        (lambda: bpr().fit(everything), "user 0 of the matrix has all 3 items"),
    ]:
        with pytest.raises(ValueError, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AlternatingLeastSquares(factors=8, iterations=3, random_state=3),
        lambda: BayesianPersonalizedRanking(factors=8, iterations=2, random_state=3),
    ],
    ids=["als", "bpr"],
)
def test_a_fit_that_was_interrupted_is_as_none(make: Any, tmp_path: Path) -> None:
    """A cell of a notebook is interrupted and run again: vectors, threads and files are as new."""
    matrix = sparse.random(600, 400, 0.05, format="csr", random_state=1)
    model, threads = make(), torch.get_num_threads()
    model.fit(matrix, show_progress=False)
    expected = model.item_factors
    model = make()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    folders = tempfile.tempdir
    tempfile.tempdir = str(tmp_path)
    try:
        for seconds in (0.002, 0.02, 0.08):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with suppress(KeyboardInterrupt):
                model.fit(matrix, show_progress=False)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert torch.get_num_threads() == threads
            assert not list(tmp_path.iterdir())
    finally:
        tempfile.tempdir = folders
        signal.signal(signal.SIGALRM, before)
    model.fit(matrix, show_progress=False)
    np.testing.assert_array_equal(model.item_factors, expected)


def test_saved_and_loaded(fitted: Any, groups: Any, tmp_path: Path) -> None:
    fitted.save(str(tmp_path / "model"))
    again = type(fitted).load(str(tmp_path / "model"))
    np.testing.assert_array_equal(
        again.recommend([1, 2], groups[[1, 2]])[0], fitted.recommend([1, 2], groups[[1, 2]])[0]
    )
    (tmp_path / "other.npz").write_bytes(b"PK\x03\x04 damaged")
    np.savez(tmp_path / "empty.npz")
    for name in ("other", "empty"):
        with pytest.raises(ValueError, match="is no file that `save` of such a model wrote"):
            type(fitted).load(tmp_path / name)


def head_of_array(shape: str) -> bytes:
    """The beginning of an array of numpy's format that is said to have this shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


def test_untrusted_model_files_are_refused(fitted: Any, tmp_path: Path) -> None:
    """It gives one error that names the file; little is unpacked of one that becomes too large."""
    fitted.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as data:
        arrays = dict(data)
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    found = [message_of_load(fitted, tmp_path / "plain.npz")]
    for name in sorted(
        {"user_factors", "item_factors", "data", "indices", "shape", "K"} & {*arrays}
    ):
        others = {key: array for key, array in arrays.items() if key != name}
        for wrong in (np.zeros((1, 2, 3), np.float32), np.array("a"), np.array([{}], object)):
            np.savez(tmp_path / "wrong.npz", **{**others, name: wrong})
            found.append(message_of_load(fitted, tmp_path / "wrong.npz"))
        bomb = head_of_array("(70000000, 1)") + bytes(70_000_000)
        for head in (head_of_array(f"({1 << 40}, {1 << 10})"), head_of_array("(" * 40), bomb):
            np.savez(tmp_path / "wrong.npz", **others)
            with zipfile.ZipFile(tmp_path / "wrong.npz", "a", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(f"{name}.npy", head)
            found.append(message_of_load(fitted, tmp_path / "wrong.npz"))
        assert "at most 67,108,864 are read" in found[-1]
    for message in found:
        assert ".npz is no file that `save` of such a model wrote: " in message
        assert "\n" not in message


def message_of_load(model: Any, file: Path) -> str:
    with pytest.raises(ValueError) as caught:
        type(model).load(file)
    return str(caught.value)


def test_vectors_and_users_of_als(groups: Any) -> None:
    model = AlternatingLeastSquares(factors=4, random_state=1, use_cg=False, iterations=3)
    model.fit(groups.tocoo(), show_progress=False)
    assert model.user_factors is not None and model.item_factors is not None
    assert model.user_factors.shape == (61, 4) and model.item_factors.shape == (31, 4)
    assert not model.user_factors[0].any() and not model.item_factors[0].any()  # no entries
    # The equations of a user, written out: confidence 1 everywhere, so plain least squares.
    items = model.item_factors.astype(np.float64)
    left = items.T @ items + 0.01 * np.eye(4)
    expected = np.linalg.solve(left, items.T @ groups[5].toarray()[0])
    np.testing.assert_allclose(model.user_factors[5], expected, atol=1e-3)
    np.testing.assert_allclose(model.recalculate_user(5, groups[5]), expected, atol=1e-3)
    assert model.similar_users(5, N=3)[0][0] == 5
    model.partial_fit_users([70], groups[[5]])
    assert model.user_factors.shape == (71, 4)
    ids, _ = model.recommend(70, groups[5])
    assert ids.tolist() == model.recommend(5, groups[5])[0].tolist()
    new, _ = model.recommend(999, groups[5], recalculate_user=True)
    assert new.tolist() == ids.tolist()


def test_values_are_confidences_and_entries_of_one_place_add_up(groups: Any) -> None:
    entries = groups.tocoo()
    twice = sparse.coo_matrix(
        (np.ones(2 * groups.nnz), (np.tile(entries.row, 2), np.tile(entries.col, 2))), groups.shape
    )
    made = []
    for matrix, alpha in ((twice, 1.0), (groups, 2.0), (groups, 1.0)):
        model = AlternatingLeastSquares(factors=4, alpha=alpha, random_state=1)
        model.fit(matrix, show_progress=False)
        made.append(model.item_factors)
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[0] - made[2]).max() > 0.01


@pytest.mark.parametrize("use_cg", [True, False])
def test_als_has_the_item_vectors_of_implicit(groups: Any, use_cg: bool) -> None:
    """Its algorithm written out in float64, from the vectors that it begins with."""
    random = np.random.default_rng(3)
    users, items = (
        (random.random((count, 6), dtype=np.float32) * np.float32(0.01)).astype(np.float64)
        for count in groups.shape
    )
    confidences = 3.0 * groups.toarray()
    for _ in range(4):
        users = _solve_rows(confidences, users, items, use_cg)
        items = _solve_rows(confidences.T, items, users, use_cg)
    model = AlternatingLeastSquares(
        factors=6, alpha=3.0, iterations=4, random_state=3, use_cg=use_cg
    )
    model.fit(groups, show_progress=False)
    assert model.item_factors is not None
    np.testing.assert_allclose(model.item_factors, items, rtol=0, atol=5e-3 * np.abs(items).max())


def _solve_rows(
    confidences: np.ndarray, vectors: np.ndarray, others: np.ndarray, use_cg: bool
) -> np.ndarray:
    """Each row's equations: exactly, or three steps of conjugate gradients."""
    found = np.zeros_like(vectors)
    for row, weights in enumerate(confidences):
        if not weights.any():
            continue
        excess = np.where(weights > 0, weights - 1.0, 0.0)
        left = others.T @ others + (others.T * excess) @ others + 0.01 * np.eye(others.shape[1])
        right = others.T @ weights
        if not use_cg:
            found[row] = np.linalg.solve(left, right)
            continue
        x = vectors[row]
        rest = direction = right - left @ x
        for _ in range(3):
            stride = rest @ rest / (direction @ left @ direction)
            x, before = x + stride * direction, rest
            rest = rest - stride * left @ direction
            direction = rest + (rest @ rest) / (before @ before) * direction
        found[row] = x
    return found


def test_models_in_closed_form_are_fitted_without_a_run(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("shoal.runs.run.train", refuse)
    monkeypatch.setattr("shoal.runs.fit.train", refuse)
    for model in (AlternatingLeastSquares(factors=4), CosineRecommender(K=4)):
        model.fit(groups, show_progress=False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"use_gpu": True}, "on the CPU"),
        ({"dtype": np.float64}, "float32"),
        ({"calculate_training_loss": True}, "computes no loss"),
        ({"factors": 0}, "1 or more"),
        ({"use_native": False}, "leave it out"),
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AlternatingLeastSquares(**wrong)


@pytest.mark.parametrize("name", ["ItemItem", "Cosine", "TFIDF", "BM25"])
def test_neighbours_by_their_formulas(name: str) -> None:
    """All of 7 neighbours that weights written out here give; values are from 1 to 6."""
    random = np.random.default_rng(3)
    counts = random.uniform(1, 6, (40, 25)) * (random.random((40, 25)) < 0.3)
    counts[7] = 1.0  # a user who took everything says nothing
    neighbours = import_module("shoal.compat.implicit").nearest_neighbours
    model = getattr(neighbours, f"{name}Recommender")(K=7)
    model.fit(sparse.csr_matrix(counts), show_progress=False)
    idf = (np.log(25) - np.log1p((counts > 0).sum(1, keepdims=True))).clip(0)
    weights = counts.astype(float)
    if name == "TFIDF":
        weights = np.sqrt(counts) * idf
    if name == "BM25":
        lengths = counts.sum(0) / counts.sum(0).mean()
        weights = counts * 2.2 / (1.2 * (0.25 + 0.75 * lengths) + counts) * idf
    if name in ("Cosine", "TFIDF"):
        weights = weights / np.linalg.norm(weights, axis=0)
    alike = weights.T @ weights
    least = np.sort(alike, 1)[:, -7, None]
    expected = np.where(alike >= least - 1e-9, alike, 0.0)
    np.testing.assert_allclose(model.similarity.toarray(), expected, rtol=1e-4, atol=1e-6)
    scores = counts[3] @ expected
    scores[counts[3] > 0] = 0.0
    ids, found = model.recommend(3, sparse.csr_matrix(counts[[3]]), N=4)
    assert ids.tolist() == np.argsort(-scores)[:4].tolist()
    np.testing.assert_allclose(found, -np.sort(-scores)[:4], rtol=1e-4)


def test_splits(groups: Any) -> None:
    for train, test in (train_test_split(groups, random_state=1), leave_k_out_split(groups, 2)):
        assert (train + test != groups).nnz == 0 and train.multiply(test).nnz == 0
    counts = np.diff(test.indptr)
    assert set(counts[np.diff(groups.indptr) > 3]) == {2}


def test_metrics_by_hand() -> None:
    class Fixed:
        def recommend(self, users: Any, rows: Any, N: int) -> Any:
            return np.array([[0, 1, 2], [3, 0, -1]], np.int32), None

    test = sparse.csr_matrix(np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]))
    found = ranking_metrics_at_k(Fixed(), test * 0, test, K=3)
    gains = 1 / np.log2([2, 3, 4])
    assert found["precision"] == 2 / 4
    assert found["map"] == pytest.approx((1 + 2 / 3) / 3 / 2)
    assert found["ndcg"] == pytest.approx((gains[0] + gains[2]) / gains.sum() / 2)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "from" / "implicit.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    assert "shoal.compat.implicit" in code
    exec(code, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["als", "weighted", "cosine", "bpr"])
def test_quality_beside_implicit(name: str) -> None:
    """The same script with both imports: precision@10 of ml-100k."""
    pytest.importorskip("implicit", reason="implicit is not installed: pip install implicit")
    if "SHOAL_TEST_DATA" not in os.environ:
        # A clone has no MovieLens of its own.
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-100k")
    file = Path(os.environ["SHOAL_TEST_DATA"], "ml-100k", "ml-100k.inter")
    rows = np.loadtxt(file, skiprows=1, usecols=(0, 1, 2)).astype(int)
    users, items, values = rows.T
    data = np.ones(len(rows)) if name != "weighted" else values.astype(float)
    matrix = sparse.csr_matrix((data, (users - 1, items - 1)))
    train, test = train_test_split(matrix, random_state=1)

    def script(package: str) -> dict[str, float]:
        made: Any
        if name == "cosine":
            made = import_module(f"{package}.nearest_neighbours").CosineRecommender(K=20)
        elif name == "bpr":
            bpr = import_module(f"{package}.bpr").BayesianPersonalizedRanking
            made = bpr(factors=32, iterations=60, random_state=1)
        else:
            als = import_module(f"{package}.als").AlternatingLeastSquares
            made = als(factors=32, regularization=1.0, random_state=1)
        made.fit(train, show_progress=False)
        return ranking_metrics_at_k(made, train, test)  # its own fail with scipy 1.17

    ours, theirs = script("shoal.compat.implicit"), script("implicit")
    print(name, ours, theirs)
    if name == "bpr":  # negatives are drawn evenly here, by popularity there
        assert ours["precision"] > theirs["precision"] - 0.01
    else:
        assert ours["precision"] == pytest.approx(theirs["precision"], abs=0.012)
