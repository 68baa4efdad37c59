"""Long jobs on hosts that fail: how long they really take, and how often to save.

A failure costs the work since the last checkpoint on disk, and the seconds until training runs
again; a checkpoint costs the seconds that training stands still. Saving often loses little and
pauses often: the best interval lies between, near Young's sqrt(2 * pause * time between failures).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

SEEN = 20_000  # failures that simulated runs of one job see together
RUNS = (40, 20_000)  # the fewest and the most such runs
ENOUGH = 30.0  # failures of a job whose best interval is looked for
HOPELESS = 50.0  # times the work: a job that would take longer is said to make no progress


@dataclass(frozen=True)
class LongJob:
    """A job whose processes all start again from the last checkpoint when a host fails."""

    work: float  # seconds of training if nothing failed and nothing was saved
    hosts: int
    hours_between_failures: float  # of one host
    pause: float  # seconds that training stands still for a checkpoint
    write: float  # seconds from its beginning until it is on disk; training runs in between
    recovery: float  # seconds from a failure until training runs: notice, start, read

    def __post_init__(self) -> None:
        for name in ("work", "hosts", "hours_between_failures"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)}")
        for name in ("pause", "write", "recovery"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: seconds, 0 or more, not {getattr(self, name)}")

    @property
    def between_failures(self) -> float:
        """Seconds between failures of any of its hosts."""
        return self.hours_between_failures * 3600.0 / self.hosts

    @property
    def on_disk(self) -> float:
        """Seconds after its beginning from which on a checkpoint counts."""
        return max(self.pause, self.write)


@dataclass(frozen=True)
class LongTimes:
    """What came of a long job, on average over simulated runs; infinite where it never ends."""

    interval: float  # seconds of training between checkpoints
    seconds: float
    late: float  # seconds within which 95 of 100 runs end
    failures: float
    lost_each: float  # seconds of work that a failure undoes
    lost_most: float  # 95 of 100 failures undo less
    pausing: float  # shares of the seconds: standing still for checkpoints,
    redoing: float  # doing work again,
    recovering: float  # and starting again

    @property
    def useful(self) -> float:
        """Share of the seconds that became progress."""
        return 1.0 - self.pausing - self.redoing - self.recovering


def young_interval(job: LongJob) -> float:
    """Young's first approximation of the best seconds of training between checkpoints.

    >>> young_interval(LongJob(1e6, hosts=10, hours_between_failures=10.0, pause=2.0, write=2.0,
    ...     recovery=0.0))  # sqrt(2 * 2 * 3600)
    120.0
    """
    return math.sqrt(2.0 * job.pause * job.between_failures)


def daly_interval(job: LongJob) -> float:
    """Daly's approximation of higher order, for checkpoints that training waits for."""
    pause, between = job.pause, job.between_failures
    if pause >= 2.0 * between:
        return between
    root = math.sqrt(pause / (2.0 * between))
    return math.sqrt(2.0 * pause * between) * (1.0 + root / 3.0 + root**2 / 9.0) - pause


def expected_seconds(job: LongJob, interval: float) -> float:
    """Exact mean for exponential times between failures, where training waits for the disk.

    Failures may come at any time, during a checkpoint and a recovery too. Where the disk works
    beside training (write > pause) it is a lower bound.
    """
    between, pieces = job.between_failures, job.work / interval
    try:
        each = math.expm1((interval + job.pause) / between)
        return between * math.exp(job.recovery / between) * each * pieces
    except OverflowError:
        return math.inf


def simulate_failures(
    job: LongJob, interval: float, runs: int | None = None, seed: int = 0
) -> LongTimes:
    """Run the job many times, from failure to failure, with a checkpoint every `interval` seconds
    of training. The same seed has the same failures, whatever the interval.

    runs: how many; None: as many as a mean within a percent or so takes.
    """
    if not interval > 0:
        raise ValueError(f"the interval between checkpoints must be greater than 0, not {interval}")
    period = max(interval + job.pause, job.on_disk)  # the next waits until this one is on disk
    if expected_seconds(job, interval) > HOPELESS * job.work:
        return LongTimes(interval, *(math.inf,) * 2, math.inf, 0.0, 0.0, 0.0, 1.0, 0.0)
    if runs is None:
        runs = int(np.clip(SEEN * job.between_failures / job.work, *RUNS))
    random = np.random.default_rng(seed)
    saved, clock, failures = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    redone, recovering = 0.0, 0.0
    undone: list[np.ndarray] = []
    active = np.arange(runs)
    while len(active):
        # All draw, so that a run's failures do not depend on when the others ended.
        until = random.exponential(job.between_failures, runs)[active]
        first = failures[active] == 0
        start = np.where(first, 0.0, job.recovery)  # a run begins without one
        left = job.work - saved[active]
        checkpoints = np.maximum(np.ceil(left / interval - 1e-9) - 1, 0)  # before its end
        whole = start + left + checkpoints * (period - interval)
        ends = until >= whole
        trained = np.maximum(until - start, 0.0)  # seconds between the start and the failure
        pieces, rest = np.divmod(trained, period)
        done = pieces * interval + np.minimum(rest, interval)
        kept = np.maximum(np.floor((trained - interval - job.on_disk) / period) + 1, 0) * interval
        lost = done - kept
        clock[active] += np.where(ends, whole, until)
        recovering += float(np.minimum(np.where(ends, start, until), start).sum())
        saved[active] += np.where(ends, left, kept)
        failures[active] += ~ends
        redone += float(lost[~ends].sum())
        undone.append(lost[~ends])
        active = active[~ends]
    total, kills = float(clock.sum()), np.concatenate(undone)
    pausing = max(0.0, total - runs * job.work - redone - recovering)  # but for rounding
    return LongTimes(
        interval=interval,
        seconds=total / runs,
        late=float(np.quantile(clock, 0.95)),
        failures=float(failures.mean()),
        lost_each=float(kills.mean()) if len(kills) else 0.0,
        lost_most=float(np.quantile(kills, 0.95)) if len(kills) else 0.0,
        pausing=pausing / total,
        redoing=redone / total,
        recovering=recovering / total,
    )


def best_interval(
    job: LongJob, least: float = 0.0, runs: int | None = None, seed: int = 0
) -> LongTimes:
    """The interval with the shortest job, found by simulation; at least `least` seconds (a step).

    >>> job = LongJob(30 * 86400.0, 4096, 50_000.0, pause=20.0, write=120.0, recovery=300.0)
    >>> times = best_interval(job)
    >>> 0.8 < times.interval / young_interval(job) < 1.25
    True
    """
    # A short job sees too few failures to tell intervals apart; a longer one has the same optimum.
    longer = replace(job, work=max(job.work, ENOUGH * job.between_failures))
    low = max(least, job.on_disk - job.pause, young_interval(job) / 20.0, 1e-3)
    high = max(2 * low, min(longer.work, 20.0 * max(young_interval(job), low)))
    for _ in range(2):  # a grid, then a finer one around its best
        grid = [float(interval) for interval in np.geomspace(low, high, 17)]
        seconds = [simulate_failures(longer, interval, runs, seed).seconds for interval in grid]
        best = min(range(17), key=lambda k: seconds[k])
        low, high = grid[max(0, best - 1)], grid[min(16, best + 1)]
    return simulate_failures(job, max(least, min(grid[best], job.work)), runs, seed)


@dataclass(frozen=True)
class ElasticTimes:
    """A job that continues with the hosts that are left."""

    seconds: float
    failures: float
    present: float  # hosts at work, on average


def simulate_elastic(
    work: float,
    hosts: int,
    hours_between_failures: float,
    back_after: float,
    runs: int = 50,
    seed: int = 0,
) -> ElasticTimes:
    """Seconds of a job that takes `work` on all hosts, where a lost one is back after a while.

    Speed is in proportion to the hosts at work; nothing is lost with a host.

    >>> times = simulate_elastic(86400.0, 100, hours_between_failures=9.0, back_after=3600.0)
    >>> abs(times.present - 90.0) < 1.0  # of ten hours each is there for nine
    True
    """
    random = np.random.default_rng(seed)
    between, seconds, failures = hours_between_failures * 3600.0, 0.0, 0
    for _ in range(runs):
        now, left, present = 0.0, work, hosts
        returning: deque[float] = deque()
        while True:
            # The exponential has no memory: the next failure may be drawn anew at every event.
            fails = now + random.exponential(between / present) if present else math.inf
            returns = returning[0] if returning else math.inf
            ends = now + left * hosts / present if present else math.inf
            after = min(fails, returns, ends)
            left -= (after - now) * present / hosts
            now = after
            if after == ends:
                break
            if after == returns:
                present += 1
                returning.popleft()
            else:
                present, failures = present - 1, failures + 1
                returning.append(now + back_after)
        seconds += now
    return ElasticTimes(seconds / runs, failures / runs, hosts * work * runs / seconds)
