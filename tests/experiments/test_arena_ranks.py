"""Average ranks and critical differences, by hand and against the values of Demšar 2006."""

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from shoal.experiments.arena import rank_plot, ranks
from shoal.experiments.arena.ranks import critical_difference, rank_models

NAMES = ["a", "b", "c"]
VALUES = np.array([[0.3, 0.2, 0.1], [0.6, 0.5, 0.1], [0.2, 0.3, 0.1], [0.9, 0.7, 0.8]])


def test_ranks_and_friedmans_test_by_hand() -> None:
    found = rank_models(NAMES, VALUES, higher_is_better=True)
    assert (found.models, found.average, found.blocks) == (NAMES, [1.25, 2.0, 2.75], 4)
    squares = sum(rank**2 for rank in found.average)
    chi_square = 12 * 4 / (3 * 4) * (squares - 3 * 4**2 / 4)
    assert found.p == pytest.approx(stats.chi2.sf(chi_square, 2))


@pytest.mark.parametrize(  # q of table 5, for infinitely many degrees of freedom
    "models, quantile",
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)],
)
def test_critical_values(models: int, quantile: float) -> None:
    expected = quantile * math.sqrt(models * (models + 1) / (6 * 20))
    assert critical_difference(models, 20) == pytest.approx(expected, rel=5e-4)


def test_lower_values_may_be_better_and_blocks_without_a_value_do_not_count() -> None:
    values = np.array([[0.1, 0.2, 0.3], [0.1, 0.3, 0.2], [np.nan, 0.1, 0.2], [0.1, 0.1, 0.2]])
    found = rank_models(["a", "b", "c"], values, higher_is_better=False)
    assert found.models == ["a", "b", "c"] and found.blocks == 3
    assert found.average == pytest.approx([(1 + 1 + 1.5) / 3, (2 + 3 + 1.5) / 3, 8 / 3])
    assert found.groups == [["a", "b", "c"]]


def test_models_that_differ_share_no_group() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal([0.5, 0.5, 0.1, 0.9], 0.01, (200, 4))
    found = rank_models(["a", "b", "worse", "best"], values, higher_is_better=True)
    assert found.models[0] == "best" and found.models[-1] == "worse"
    assert [sorted(group) for group in found.groups] == [["a", "b"]]
    assert found.p is not None and found.p < 1e-9


def test_two_models_and_ties_have_no_test() -> None:
    two = rank_models(["a", "b"], VALUES[:, :2], higher_is_better=True)
    assert two.p is None and len(two.average) == 2
    tied = rank_models(["a", "b", "c"], np.ones((9, 3)), higher_is_better=True)
    assert tied.p is None and tied.average == [2.0, 2.0, 2.0]
    for wrong in (VALUES[:1], VALUES[:, :1]):
        with pytest.raises(ValueError, match="cannot be ranked"):
            rank_models(NAMES[: wrong.shape[1]], wrong, higher_is_better=True)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(ranks).failed == 0


@pytest.mark.parametrize("number", [2, 7, 40, 41])
def test_a_plot_names_every_model(number: int) -> None:
    pytest.importorskip("matplotlib")
    names = [f"<b>model {k}</b>" for k in range(number)]
    average = [1 + k * 0.99 for k in range(number)]
    groups = [names[:2]]
    found = {"models": names, "average": average, "groups": groups, "critical_difference": 1.5}
    if number > rank_plot.MOST_MODELS:
        with pytest.raises(ValueError, match="41 models do not fit a plot of at most 40"):
            rank_plot.rank_plot(found)
        return
    text = rank_plot.rank_plot(found)
    assert "<b>" not in text and all(f"model {k}&lt;" in text for k in range(number))
