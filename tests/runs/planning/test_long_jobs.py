"""Long jobs that fail, against Young's and Daly's formulas and the exact mean."""

from __future__ import annotations

import math

import pytest

from shoal.runs.planning.failures import (
    LongJob,
    best_interval,
    daly_interval,
    expected_seconds,
    simulate_elastic,
    simulate_failures,
    young_interval,
)

DAY = 86400.0


def job(pause: float, between: float, recovery: float = 0.0, write: float | None = None) -> LongJob:
    """Ten days on ten hosts that fail every `between` seconds together."""
    hours = between * 10 / 3600
    return LongJob(10 * DAY, 10, hours, pause, pause if write is None else write, recovery)


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("one", [job(60, 7200, 300), job(5, DAY, 600)], ids=["often", "seldom"])
def test_the_mean_is_the_exact_one(one, factor):
    interval = factor * young_interval(one)
    times = simulate_failures(one, interval)
    assert times.seconds == pytest.approx(expected_seconds(one, interval), rel=0.01)
    assert times.failures == pytest.approx(times.seconds / one.between_failures, rel=0.06)
    assert times.useful == pytest.approx(one.work / times.seconds)
    assert times.late > times.seconds


@pytest.mark.parametrize("pause, between", [(60.0, 7200.0), (10.0, 43200.0)])
def test_the_best_interval_is_near_dalys(pause, between):
    one = job(pause, between, recovery=120)
    times = best_interval(one)
    assert times.interval == pytest.approx(daly_interval(one), rel=0.15)
    # The curve is flat there: what matters is that nothing is lost against the exact optimum.
    least = min(expected_seconds(one, daly_interval(one) * (0.5 + k / 50)) for k in range(50))
    assert expected_seconds(one, times.interval) < 1.002 * least
    # A failure undoes half an interval on average.
    assert times.lost_each == pytest.approx(times.interval / 2, rel=0.15)
    assert times.lost_most < times.interval + pause + 1


def test_no_failures_leave_the_pauses():
    one = LongJob(1000.0, 1, 1e12, pause=2.0, write=2.0, recovery=60.0)
    times = simulate_failures(one, 100.0)
    assert times.seconds == times.late == 1018.0  # nine checkpoints before the end
    assert times.failures == times.redoing == times.recovering == 0


def test_a_slow_disk_beside_training_loses_more_per_failure():
    quick, slow = job(5, 7200), job(5, 7200, write=200)
    first, second = simulate_failures(quick, 400.0), simulate_failures(slow, 400.0)
    assert second.lost_each == pytest.approx(first.lost_each + 195, rel=0.1)
    assert second.lost_most > 400
    # The next checkpoint waits until this one is on disk.
    assert simulate_failures(slow, 20.0).pausing > 0.85
    assert best_interval(slow, runs=20).interval >= 195


def test_a_job_that_fails_faster_than_it_saves_never_ends():
    one = job(pause=600, between=60)
    assert simulate_failures(one, 600.0).seconds == math.inf
    assert best_interval(one).seconds == math.inf


def test_elastic_hosts():
    """Of M + R seconds a host is there for M."""
    times = simulate_elastic(5 * DAY, 20, hours_between_failures=9.0, back_after=3600.0)
    assert times.present == pytest.approx(18.0, rel=0.01)
    assert times.seconds == pytest.approx(5 * DAY / 0.9, rel=0.01)
    alone = simulate_elastic(DAY, 1, hours_between_failures=4.0, back_after=0.0)
    assert alone.seconds == pytest.approx(DAY) and alone.failures == pytest.approx(6, rel=0.2)


@pytest.mark.parametrize("wrong", [{"work": 0}, {"hosts": 0}, {"pause": -1}, {"write": math.inf}])
def test_jobs_that_cannot_be_long(wrong):
    given = {"work": 1.0, "hosts": 1, "hours_between_failures": 1.0, "pause": 0, "write": 0}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LongJob(**{**given, "recovery": 0, **wrong})
