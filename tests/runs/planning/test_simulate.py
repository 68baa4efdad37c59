"""The simulation against answers that are known: queues, barriers, equal workers, skew."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.runs.planning.simulate import (
    Clock,
    ServedJob,
    ServerQueues,
    owner_shares,
    simulate_barriers,
    simulate_servers,
)


def mean_wait(load: float, service: str, requests: int = 15_000, seed: int = 3) -> float:
    """Of requests that come at random (one a second) to one server."""
    random, clock, queue = np.random.default_rng(seed), Clock(), ServerQueues(1)

    def arrive(left: int) -> None:
        seconds = load if service == "fixed" else random.exponential(load)
        queue.add(clock.now, np.array([seconds]))
        if left:
            clock.at(clock.now + random.exponential(1.0), arrive, left - 1)

    clock.at(0.0, arrive, requests)
    clock.run()
    return queue.waited / queue.requests


@pytest.mark.parametrize("load", [0.6])
def test_a_queue_waits_as_theory_says(load):
    """Pollaczek-Khinchine: M/D/1 waits half as long as M/M/1."""
    waits = load * load / (1 - load)
    assert mean_wait(load, "random") == pytest.approx(waits, rel=0.08)
    assert mean_wait(load, "fixed") == pytest.approx(waits / 2, rel=0.08)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_equal_workers_in_step_are_arithmetic(workers):
    job = ServedJob(workers, compute=0.1, pull=0.004, push=0.002, travel=0.01, mode="sync")
    times = simulate_servers(job, 50 * workers)
    # The last worker gets its rows after all others; its gradients find the queue empty.
    step = workers * 0.004 + 0.01 + 0.1 + 0.01 + 0.002
    assert times.seconds == pytest.approx(50 * step)
    assert times.batches == 50 * workers and times.age == 0 and times.redone == 0
    slow = simulate_servers(
        ServedJob(workers, 0.1, 0.002, 0.004, travel=0.01, mode="sync"), workers
    )
    assert slow.seconds == pytest.approx(0.002 + 0.01 + 0.1 + 0.01 + workers * 0.004)


def test_rows_ahead_hide_the_pull():
    without = ServedJob(1, compute=0.1, pull=0.03, push=0.01, mode="async", ahead=False)
    ahead = ServedJob(1, compute=0.1, pull=0.03, push=0.01, mode="async")
    # Without: pull, compute, push, and the pull queues behind the push.
    assert simulate_servers(without, 100).seconds == pytest.approx(100 * 0.14)
    assert simulate_servers(ahead, 100).seconds == pytest.approx(0.03 + 100 * 0.1 + 0.01)


def test_a_full_server_sets_the_pace():
    """Ten workers want 1 s of the server for each second: it is busy, they wait."""
    job = ServedJob(20, compute=0.1, pull=0.006, push=0.004, mode="async", spread=0.3)
    times = simulate_servers(job, 2000)
    assert times.per_second == pytest.approx(100.0, rel=0.01)
    assert times.busy == pytest.approx(1.0, abs=0.01)
    assert times.waiting == pytest.approx(0.5, abs=0.02)
    # Two servers that share the work evenly serve them all; one that gets 90 % of it does not.
    even = simulate_servers(
        ServedJob(20, 0.1, 0.006, 0.004, shares=(0.5, 0.5), mode="async", spread=0.3), 2000
    )
    skewed = simulate_servers(
        ServedJob(20, 0.1, 0.006, 0.004, shares=(0.9, 0.1), mode="async", spread=0.3), 2000
    )
    assert even.per_second > 1.7 * times.per_second
    assert skewed.per_second == pytest.approx(100.0 / 0.9, rel=0.01)


def test_updates_of_others_age_what_was_pulled():
    """While one of n equal workers computes, each of the others updates about once or twice."""
    for workers in (4, 16):
        job = ServedJob(workers, 0.1, 1e-5, 1e-5, mode="async", ahead=False, spread=0.2)
        times = simulate_servers(job, 150 * workers)
        assert times.age == pytest.approx(workers - 1, rel=0.05)
        ahead = simulate_servers(
            ServedJob(workers, 0.1, 1e-5, 1e-5, mode="async", spread=0.2), 150 * workers
        )
        assert ahead.age == pytest.approx(2 * (workers - 1), rel=0.05)


def test_nobody_runs_far_ahead_of_a_straggler():
    """Bounded: all end with the slow one, which is never more than `staleness` steps behind."""
    slow = (1.0, 1.0, 1.0, 4.0)
    job = ServedJob(4, 0.1, 1e-4, 1e-4, mode="async", slowdown=slow, staleness=2)
    times = simulate_servers(job, 400)
    assert times.seconds == pytest.approx(100 * 0.4, rel=0.02)
    assert times.oldest <= 3 * 2 * (2 + 1)
    # Lent from one pool, the quick ones do the slow one's work.
    pooled = simulate_servers(
        ServedJob(4, 0.1, 1e-4, 1e-4, mode="async", slowdown=slow, elastic=True), 2000
    )
    assert pooled.seconds == pytest.approx(2000 * 0.1 / 3.25, rel=0.02)


def test_geo_exchanges_once_a_window():
    job = ServedJob(4, compute=0.01, pull=0.02, push=0.02, mode="geo", geo_step=50)
    times = simulate_servers(job, 4 * 500)
    # Ten windows; workers queue for their first rows, and are out of each other's way from then on.
    assert times.seconds == pytest.approx(10 * (0.5 + 0.04) + 3 * 0.04, rel=0.01)
    assert times.batches == 2000 and times.age == pytest.approx(3, rel=0.15)
    # Servers that are too slow for it: each exchange of each worker has to be served.
    full = ServedJob(4, compute=0.01, pull=0.1, push=0.1, mode="geo", geo_step=50)
    assert simulate_servers(full, 4 * 500).seconds == pytest.approx(10 * 4 * 0.2, rel=0.1)


def test_lost_workers_come_back_and_nothing_is_lost():
    job = ServedJob(
        10, 1.0, 1e-4, 1e-4, mode="async", elastic=True, lost_every=900, back_after=100, timeout=5
    )
    times = simulate_servers(job, 8_000)
    assert times.batches == 8_000  # each counted once
    # Of 1000 s each is there for 900, and what it had begun is done again.
    assert times.seconds == pytest.approx((8_000 + times.redone) / 10 / 0.9, rel=0.03)
    assert times.lost == pytest.approx(times.seconds * 10 / 1000, rel=0.25)
    assert times.lost <= times.redone <= 2 * times.lost


def test_the_same_seed_gives_the_same_times():
    job = ServedJob(5, 0.1, 0.01, 0.01, spread=0.4, elastic=True, lost_every=30, back_after=3)
    assert simulate_servers(job, 500, seed=1) == simulate_servers(job, 500, seed=1)
    assert simulate_servers(job, 500, seed=1) != simulate_servers(job, 500, seed=2)


def test_a_barrier_waits_for_the_slowest():
    even = simulate_barriers([[0.5] * 8, [0.25] * 8])
    assert even.mean == even.slowest == 0.75 and even.waiting == 0
    # The largest of n lognormals, by quadrature of 1 - F(x)^n.
    spread, n = 0.3, 64
    z = np.linspace(-8, 8, 40_001)
    x = np.exp(spread * z - spread**2 / 2)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    below = np.cumsum(density) * (z[1] - z[0])
    expected = float(np.sum(x * n * below ** (n - 1) * density) * (z[1] - z[0]))
    found = simulate_barriers([[1.0] * n], spread=spread, steps=4000)
    assert found.mean == pytest.approx(expected, rel=0.01)
    assert found.waiting == pytest.approx(1 - 1 / expected, abs=0.01)


def test_shares_of_owners():
    # By chance the fullest of 64 has about 2.4 standard deviations more than the mean.
    for rows in (6_400, 6_400_000):
        mean = rows / 64
        most = np.mean([max(owner_shares(rows, 64, seed=k)) for k in range(200)]) * rows
        assert (most - mean) / np.sqrt(mean) == pytest.approx(2.4, abs=0.2)
    # Where ids travel as often as they occur, one owner has the most popular one.
    shares = sorted(owner_shares(10**8, 4, top=0.6))
    assert shares[-1] == pytest.approx(0.7, abs=0.01) and shares[0] == pytest.approx(0.1, abs=0.01)
    assert sum(owner_shares(1, 8)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="impossible"):
        owner_shares(10, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"shares": (0.5, 0.6)},
        {"slowdown": (1.0,)},
        {"mode": "sync", "elastic": True},
        {"lost_every": 10.0},
    ],
)
def test_jobs_that_cannot_be(wrong):
    with pytest.raises(ValueError):
        ServedJob(**{"workers": 2, "compute": 0.1, "pull": 0.01, "push": 0.01, **wrong})
