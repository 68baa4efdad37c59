"""Intervals and tests over users: exact cases, agreement with the formula, error rates."""

import doctest

import numpy as np
import pytest

from shoal.experiments.report import statistics
from shoal.experiments.report.statistics import holm, mean_interval, paired


def test_the_examples_of_the_docstrings() -> None:
    tried = doctest.testmod(statistics)
    assert tried.attempted >= 3 and tried.failed == 0


@pytest.mark.parametrize("users", [60, 943, 5000])
def test_an_interval_is_that_of_the_formula(users: int) -> None:
    """For a mean of many users: 1.96 standard errors on both sides."""
    values = np.random.default_rng(1).beta(0.3, 2.0, (users, 4))
    mean, low, high = mean_interval(values)
    error = values.std(axis=0, ddof=1) / np.sqrt(users)
    assert np.allclose(mean, values.mean(axis=0))
    assert np.allclose((high - low) / 2, 1.96 * error, rtol=0.12)
    again = mean_interval(values)
    assert (again.low == low).all() and (again.high == high).all()


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    many = np.random.default_rng(2).beta(0.5, 2.0, (300, 1000))
    _, low, high = mean_interval(many)
    held = ((low <= 0.2) & (high >= 0.2)).mean()  # 0.5 / (0.5 + 2)
    assert 0.93 <= held <= 0.97


@pytest.mark.parametrize("kind", ["recall", "hit"])
def test_equal_models_differ_significantly_in_five_of_a_hundred_tests(kind: str) -> None:
    """Two models that are equally good for each user, whose users differ much."""
    draw = np.random.default_rng(3)
    chance = draw.beta(0.5, 2.0, (200, 1))
    trials = 20 if kind == "recall" else 1
    a, b = (draw.binomial(trials, chance, (200, 600)) / trials for _ in range(2))
    found = paired(a, b)
    assert 0.03 <= (found.p < 0.05).mean() <= 0.07
    assert 0.03 <= ((found.low > 0) | (found.high < 0)).mean() <= 0.07


def test_a_difference_is_found() -> None:
    draw = np.random.default_rng(4)
    a = draw.random(500)
    difference, low, high, p = paired(a, a + draw.normal(0.02, 0.1, 500))
    assert low < 0.02 < high and low < difference < high and p < 0.01


def test_users_without_a_value_do_not_count() -> None:
    a, b = np.array([0.1, np.nan, 0.5, 0.2]), np.array([0.3, 0.9, np.inf, 0.4])
    assert paired(a, b).difference == pytest.approx(0.2)
    mean, low, high = mean_interval([np.nan, 1.0])
    assert mean == 1.0 and np.isnan(low) and np.isnan(high)


def test_few_users_give_no_small_p_value() -> None:
    assert paired([], []).p == 1.0 and paired([0.1], [0.9]).p == 1.0
    assert paired([0.1, 0.1], [0.9, 0.9]).p == 0.5
    with pytest.raises(ValueError, match="pair them by user"):
        paired([0.1], [0.1, 0.2])


def test_holm() -> None:
    """The example of Wikipedia's article on the method: p times what is left, never falling."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
    kept = holm([0.02, float("nan"), 0.9])
    assert kept[0] == 0.04 and np.isnan(kept[1]) and kept[2] == 0.9
