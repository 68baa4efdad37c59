"""Models that are solved for instead of trained, beside numpy's own answer."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars
import pytest
import torch

import shoal
from shoal.data.batch import Batch, Jagged
from shoal.models.base import Facts, Model
from shoal.models.general import ease
from shoal.models.general.admmslim import ADMMSLIM
from shoal.models.general.asymknn import AsymKNN
from shoal.models.general.ease import EASE
from shoal.models.general.gfcf import GFCF
from shoal.models.general.ials import IALS
from shoal.models.general.item_weights import ItemWeights
from shoal.models.general.itemknn import ItemKNN
from shoal.models.general.nceplrec import NCEPLRec
from shoal.models.general.slim import SLIM
from shoal.models.general.slimelastic import SLIMElastic
from shoal.models.general.userknn import UserKNN
from shoal.models.nn.closed_form import Progress, check_memory, negative_inverse_, singular_vectors
from shoal.models.nn.user_items import UserItems
from shoal.runs.run import resolve_run, train

USERS, ITEMS = 31, 23
Solved = TypeVar("Solved", bound=Model)


@pytest.fixture
def taken() -> np.ndarray:
    """1 where a user took an item; user 0 and item 0 are padding."""
    found = (np.random.default_rng(3).random((USERS, ITEMS)) < 0.3).astype(np.float64)
    found[0] = found[:, 0] = 0.0
    return found


def facts_of(taken: np.ndarray) -> Facts:
    users, items = (torch.from_numpy(one) for one in np.nonzero(taken))
    twice = torch.arange(len(users)).repeat(2)  # a pair that comes again counts once
    return Facts(USERS, ITEMS, train_users=users[twice], train_items=items[twice])


def solved(model: Solved) -> Solved:
    model.solve()
    return model


def columns(model: ItemWeights) -> np.ndarray:
    return model.encode_item(torch.arange(ITEMS)).T.double().numpy()


@pytest.mark.parametrize("width", [3, 7, 100])
def test_the_inverse_in_place_is_numpys(width: int) -> None:
    matrix = np.random.default_rng(1).normal(size=(20, 30))
    matrix = matrix @ matrix.T + np.eye(20)
    made = negative_inverse_(torch.from_numpy(matrix.copy()), "a test", width)
    np.testing.assert_allclose(made.numpy(), -np.linalg.inv(matrix), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_common_users_are_counted_in_blocks(taken: np.ndarray, rows: int) -> None:
    facts = facts_of(taken)
    made = list(UserItems(facts.train_users, facts.train_items, USERS, ITEMS).common(rows))
    assert [first for first, _ in made] == list(range(0, ITEMS, rows))
    np.testing.assert_array_equal(torch.cat([one for _, one in made]), taken.T @ taken)


@pytest.mark.parametrize("large", [20_000, 5])
@pytest.mark.parametrize("part", [slice(None), slice(0, ITEMS - 4)])
def test_ease_is_the_closed_form(
    taken: np.ndarray, part: slice, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more users than items, or of fewer; with an inverse of either precision."""
    monkeypatch.setattr(ease, "LARGE", large)
    some = taken[part]
    inverse = np.linalg.inv(some.T @ some + 7.0 * np.eye(ITEMS))
    expected = np.eye(ITEMS) - inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0.0)
    facts = replace(facts_of(some), num_users=len(some))
    model = solved(EASE(EASE.Options(reg_weight=7.0), facts))
    assert (model.weights.dtype, model.weights.is_contiguous()) == (torch.float32, True)
    np.testing.assert_allclose(columns(model), expected, atol=2e-6)


@pytest.mark.parametrize("rank", [4, 100])
def test_gfcf_is_its_filter(taken: np.ndarray, rank: int) -> None:
    users, items = (np.maximum(taken.sum(axis), 1.0) for axis in (1, 0))
    even = taken / np.sqrt(np.outer(users, items))
    values, vectors = np.linalg.svd(even)[1:]
    low = vectors[:rank].T @ vectors[:rank] * np.sqrt(np.outer(1.0 / items, items))
    model = solved(GFCF(GFCF.Options(rank=rank, alpha=0.4), facts_of(taken)))
    expected = even.T @ even + 0.4 * low
    shown = np.arange(ITEMS) if rank < 23 else np.arange(1, ITEMS)  # nobody took the padding
    made = columns(model)[np.ix_(shown, shown)]
    np.testing.assert_allclose(made, expected[np.ix_(shown, shown)], atol=1e-5)
    assert values[3] - values[4] > 1e-3  # the fourth vector is one of its own


def test_singular_vectors_of_a_sparse_matrix_are_numpys() -> None:
    """Wider than the random vectors, with a tail that has to be told from them."""
    random = np.random.default_rng(5)
    left, right = (np.linalg.qr(random.normal(size=(n, 60)))[0] for n in (90, 70))
    matrix = left * 0.9 ** np.arange(60) @ right.T
    found = singular_vectors(torch.from_numpy(matrix).to_sparse(), 5, "a test", tolerance=1e-9)
    assert found.shape == (70, 5)
    alike = np.abs((found.numpy() * right[:, :5]).sum(0))
    np.testing.assert_allclose(alike, 1.0, atol=1e-5)


def test_slim_stops_where_its_loss_is_flat(taken: np.ndarray) -> None:
    options = SLIM.Options(l1=1.5, l2=0.5, sweeps=500, tolerance=1e-9)
    weights = columns(solved(SLIM(options, facts_of(taken))))
    slope = taken.T @ (taken @ weights - taken) + 0.5 * weights + 1.5  # where weights are above 0
    free = ~np.eye(ITEMS, dtype=bool)
    assert (weights >= 0.0).all() and (weights > 0.0).sum() > ITEMS
    assert np.abs(slope[free & (weights > 0)]).max() < 1e-4
    assert slope[free].min() > -1e-4 and np.abs(np.diag(weights)).max() == 0.0


@pytest.mark.parametrize("hide_item", [True, False])
@pytest.mark.parametrize("positive", [True, False])
def test_an_elastic_net_stops_where_its_loss_is_flat(
    taken: np.ndarray, positive: bool, hide_item: bool
) -> None:
    options = SLIMElastic.Options(alpha=0.05, l1_ratio=0.4, sweeps=500, tolerance=1e-9)
    options.positive_only, options.hide_item = positive, hide_item
    weights = columns(solved(SLIMElastic(options, facts_of(taken))))
    strength = 0.05 * (USERS - 1)
    slope = taken.T @ (taken @ weights - taken) + 0.6 * strength * weights
    free = np.ones((ITEMS, ITEMS), bool) if not hide_item else ~np.eye(ITEMS, dtype=bool)
    l1 = 0.4 * strength
    assert np.abs(slope + l1 * np.sign(weights))[free & (weights != 0)].max() < 1e-4
    still = slope[free & (weights == 0)]
    assert still.min() > -l1 - 1e-4 and (positive or still.max() < l1 + 1e-4)
    assert weights.min() >= 0.0 or not positive
    assert weights.min() < 0.0 or positive or not hide_item
    assert (np.abs(np.diag(weights)).max() == 0.0) == hide_item


@pytest.mark.parametrize("centred", [False, True])
def test_admm_reaches_the_least_loss(taken: np.ndarray, centred: bool) -> None:
    """Where its rounds end, the loss is flat in all weights that are not 0."""
    options = ADMMSLIM.Options(lambda1=1.0, lambda2=8.0, rho=20.0, k=3000)
    options.center_columns = centred
    model = solved(ADMMSLIM(options, facts_of(taken)))
    weights, means = columns(model), taken.sum(0) / (USERS - 1)
    constants = weights[0].copy()
    weights[0] = 0.0
    inner = taken[1:] - means if centred else taken[1:]
    penalty = 8.0 * np.sqrt(means)[:, None] * weights
    slope = inner.T @ (inner @ weights - inner) + penalty + 1.0
    free = ~np.eye(ITEMS, dtype=bool)
    assert np.abs(slope[free & (weights > 0)]).max() < 1e-2
    assert slope[free].min() > -1e-2 and (weights > 0).sum() > ITEMS
    expected = means * centred + inner @ weights
    scores = model.score(Batch(USERS - 1, {"user_id": torch.arange(1, USERS)}), torch.arange(ITEMS))
    np.testing.assert_allclose(scores[:, 1:], expected[:, 1:], atol=1e-4)
    assert (constants[1:] != 0).all() == centred


def test_asymmetric_neighbours_are_their_formula(taken: np.ndarray) -> None:
    options = AsymKNN.Options(k=4, alpha=0.8, q=2.0, beta=0.3)
    counts, sizes = taken.T @ taken, np.maximum(taken.sum(0), 1.0)
    alike = counts / (sizes[:, None] ** 0.2 * sizes**0.8)  # [other item, scored item]
    np.fill_diagonal(alike, 0.0)
    weights = columns(solved(AsymKNN(options, facts_of(taken))))
    for item in range(1, ITEMS):
        best = np.sort(alike[:, item])[-4:] ** 2
        expected = best / np.linalg.norm(best) ** 1.4
        np.testing.assert_allclose(np.sort(weights[:, item])[-4:], expected, rtol=1e-5)
        assert (weights[:, item] > 0).sum() == 4


def test_a_projected_regression_is_its_formula(taken: np.ndarray) -> None:
    options = NCEPLRec.Options(beta=0.7, rank=6, reg_weight=3.0)
    counts = np.maximum(taken.sum(0), 1.0)
    contrast = taken * np.maximum(np.log((USERS - 1) / counts**0.7), 0.0)
    _, strengths, right = np.linalg.svd(contrast)
    users = taken @ right[:6].T * np.sqrt(strengths[:6])
    items = np.linalg.solve(users.T @ users + 3.0 * np.eye(6), users.T @ taken)
    torch.manual_seed(1)
    model = solved(NCEPLRec(options, facts_of(taken)))
    batch = Batch(USERS, {"user_id": torch.arange(USERS)})
    made = model.score(batch, torch.arange(ITEMS))
    np.testing.assert_allclose(made, users @ items, atol=2e-3)
    terms = model.terms(
        torch.tensor(4), torch.from_numpy(np.flatnonzero(taken[4])), torch.tensor(6)
    )
    assert float(terms.sum()) == pytest.approx(float(made[4, 6]), abs=1e-5)


def cosines(counts: np.ndarray, shrink: float) -> np.ndarray:
    sizes = np.sqrt(np.diag(counts))
    alike = counts / (np.outer(sizes, sizes) + shrink + 1e-6)
    np.fill_diagonal(alike, 0.0)
    return alike


def test_neighbours_of_items_are_the_largest_cosines(taken: np.ndarray) -> None:
    alike = cosines(taken.T @ taken, 2.0)
    least = np.sort(alike, 0)[-4]
    model = solved(ItemKNN(ItemKNN.Options(k=4, shrink=2.0), facts_of(taken)))
    made = columns(model)
    kept = made > 0
    assert kept.sum(0)[1:].tolist() == [4] * (ITEMS - 1) and not kept[:, 0].any()
    np.testing.assert_allclose(made[kept], alike[kept], rtol=1e-5)
    assert (made.min(0, where=kept, initial=9.0)[1:] >= least[1:] - 1e-6).all()


def test_neighbours_of_users_are_the_largest_cosines(taken: np.ndarray) -> None:
    alike = cosines(taken @ taken.T, 0.0)
    model = solved(UserKNN(UserKNN.Options(k=5), facts_of(taken)))
    expected = -np.sort(-alike, 1)[:, :5]
    np.testing.assert_allclose(model.alike, expected, rtol=1e-5, atol=1e-6)
    own = np.take_along_axis(alike, model.neighbours.numpy(), 1)
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_scores_of_chosen_items_are_those_of_all(taken: np.ndarray) -> None:
    batch = Batch(3, {"user_id": torch.tensor([4, 1, 9])})
    chosen = torch.tensor([[1, 2, 2], [5, 1, 22], [3, 4, 6]])
    for model in (
        solved(EASE(EASE.Options(), facts_of(taken))),
        solved(ItemKNN(ItemKNN.Options(k=4), facts_of(taken))),
    ):
        every = model.score(batch, torch.arange(ITEMS))
        np.testing.assert_allclose(every, taken[[4, 1, 9]] @ columns(model), atol=1e-5)
        torch.testing.assert_close(model.score(batch, chosen), every.gather(1, chosen))


def test_sparse_weights_are_those_of_the_checkpoint(taken: np.ndarray) -> None:
    wide = solved(ItemKNN(ItemKNN.Options(k=6), facts_of(taken)))
    narrow = solved(ItemKNN(ItemKNN.Options(k=2), facts_of(taken)))
    narrow.load_state_dict(wide.state_dict())
    np.testing.assert_array_equal(columns(narrow), columns(wide))


CLOSED_FORM = (
    EASE,
    IALS,
    ItemKNN,
    SLIM,
    UserKNN,
    SLIMElastic,
    ADMMSLIM,
    AsymKNN,
    NCEPLRec,
    GFCF,
)


@pytest.mark.parametrize("kind", CLOSED_FORM)
def test_a_solution_is_restored_without_solving(kind: type[Model], taken: np.ndarray) -> None:
    first, second = (kind(kind.Options(), facts_of(taken)) for _ in range(2))
    first.solve()
    second.load_state_dict(first.state_dict())
    batch = Batch(3, {"user_id": torch.tensor([4, 1, 9])})
    items = torch.arange(ITEMS)
    torch.testing.assert_close(second.score(batch, items), first.score(batch, items))
    assert second.score(batch, items).abs().sum() > 0


@pytest.mark.parametrize("kind", [EASE, IALS, UserKNN])
def test_a_solution_of_another_shape_is_refused(kind: type[Model], taken: np.ndarray) -> None:
    model, smaller = (kind(kind.Options(), facts_of(part)) for part in (taken, taken))
    smaller.solve()
    state = {name: value[:-1] for name, value in smaller.state_dict().items()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(state)


def test_a_fit_solves_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither opening a trained run nor resuming a finished one solves the model again."""
    solved_models: list[str] = []
    for kind in CLOSED_FORM:

        def count(model: Model, solve: Callable[[Any], None] = kind.solve) -> None:
            solved_models.append(type(model).__name__)
            solve(model)

        monkeypatch.setattr(kind, "solve", count)
    rows = [(f"u{n % 40}", f"i{n * 7 % 97}") for n in range(600)]
    frame = polars.DataFrame(rows, schema=["user", "item"], orient="row")
    quiet = {"run.log_level": "error", "run.progress": False}
    for kind in CLOSED_FORM:
        name, folder = kind.__name__, tmp_path / kind.__name__
        fitted = shoal.fit(
            name, frame, user="user", item="item", **quiet, **{"run.output": str(folder)}
        )
        ranking = fitted.recommend("u7", topk=3)
        assert shoal.recommend(folder, user="u7", topk=3, trust=True) == ranking
    train(resolve_run(tmp_path / "IALS", trust=True), resume=True)
    assert solved_models == [kind.__name__ for kind in CLOSED_FORM]


def best_vectors(taken: np.ndarray, others: np.ndarray, options: IALS.Options) -> np.ndarray:
    """Each row's equations, written out."""
    found = []
    for row in taken:
        reg = options.reg_weight * (row.sum() + options.alpha * len(others)) ** options.nu
        left = others.T @ (row[:, None] * others) + options.alpha * others.T @ others
        left += reg * np.eye(others.shape[1])
        found.append(np.linalg.solve(left, others.T @ row))
    return np.array(found)


# Lists here have up to 14 values: all are shorter than a vector, some are, none is.
@pytest.mark.parametrize("width", [20, 8, 1])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_ials_solves_its_equations(taken: np.ndarray, width: int, solver: str) -> None:
    options = IALS.Options(
        embedding_size=width, epochs=2, alpha=0.3, reg_weight=0.05, nu=0.5, solver=solver
    )
    options.cg_steps = 30  # as many as there are unknowns: exact
    torch.manual_seed(5)
    items = (torch.randn(ITEMS, width) * (0.1 / width**0.5)).double().numpy()
    for _ in range(2):
        users = best_vectors(taken, items, options)
        items = best_vectors(taken.T, users, options)
    torch.manual_seed(5)
    model = solved(IALS(options, facts_of(taken)))
    np.testing.assert_allclose(model.items, items, atol=2e-4)
    lists = [np.flatnonzero(row).tolist() for row in taken]
    made = model.fold_in(Jagged.from_lists([*lists, []]))
    expected = best_vectors(taken, model.items.double().numpy(), options)
    np.testing.assert_allclose(made[:-1], expected, atol=2e-4)
    assert not made[-1].any()


@pytest.mark.parametrize("alpha_of", ["all", "others"])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_ials_with_weights_solves_its_equations(
    taken: np.ndarray, alpha_of: str, solver: str
) -> None:
    """Each pair comes twice, so its weight is the sum; 0.5 and 1.0 are at and below alpha."""
    weights = taken * np.random.default_rng(4).choice([0.5, 1.0, 7.0], taken.shape)
    options = IALS.Options(
        embedding_size=5, epochs=2, alpha=1.0, reg_weight=0.05, nu=0.0, solver=solver
    )
    options.alpha_of, options.cg_steps = alpha_of, 30

    def best(weights: np.ndarray, others: np.ndarray) -> np.ndarray:
        every = np.where(weights > 0, weights + (alpha_of == "all"), 1.0)
        left = [others.T @ (row[:, None] * others) + 0.05 * np.eye(5) for row in every]
        return np.array([np.linalg.solve(a, others.T @ row) for a, row in zip(left, weights)])

    torch.manual_seed(5)
    items = (torch.randn(ITEMS, 5) * (0.1 / 5**0.5)).double().numpy()
    for _ in range(2):
        users = best(weights, items)
        items = best(weights.T, users)
    facts = facts_of(taken)
    own = torch.from_numpy(weights[facts.train_users, facts.train_items] / 2).float()
    torch.manual_seed(5)
    model = solved(IALS(options, replace(facts, train_weights=own)))
    np.testing.assert_allclose(model.items, items, atol=5e-4)
    user, items = torch.tensor(4), model.items.double().numpy()
    made = model.encode_query(Batch(1, {"user_id": user.view(1)}))[0]
    np.testing.assert_allclose(made, best(weights, items)[4], atol=5e-4)
    terms = model.terms(user, torch.from_numpy(np.flatnonzero(taken[4])), torch.tensor(6))
    assert terms.sum().item() == pytest.approx(float(made.double().numpy() @ items[6]), abs=1e-4)


def test_a_few_steps_of_conjugate_gradients_reach_almost_the_same_loss(taken: np.ndarray) -> None:
    def loss(solver: str) -> float:
        options = IALS.Options(embedding_size=4, epochs=15, solver=solver, cg_steps=3)
        torch.manual_seed(5)
        items = solved(IALS(options, facts_of(taken))).items.double().numpy()
        users = best_vectors(taken, items, options)
        scores = users @ items.T
        total = ((scores - 1) ** 2 * taken).sum() + options.alpha * (scores**2).sum()
        for one, counts in ((users, taken.sum(1)), (items, taken.sum(0))):
            others = ITEMS if one is users else USERS
            reg = options.reg_weight * (counts + options.alpha * others)
            total += (reg * (one**2).sum(1)).sum()
        return float(total)

    assert loss("cg") == pytest.approx(loss("cholesky"), rel=0.01)


def test_a_solution_larger_than_memory_is_refused_with_its_size() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    facts = Facts(2, 10_000_000, train_users=nothing, train_items=nothing)
    for model in (EASE, SLIM):
        with pytest.raises(ValueError, match=r"of 10,000,000 items needs [\d.]+ GB of memory"):
            model(model.Options(), facts).solve()
    check_memory("a byte", 1)


def test_a_long_computation_reports_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("EASE", 40)
    with caplog.at_level(logging.INFO, "shoal"):
        progress(1)
        assert not caplog.messages
        progress.logged = time.monotonic() - 11
        progress(10)
    assert caplog.messages[0].startswith("EASE: 25 % done, about ")
