"""Workers, servers and ranks as a discrete-event simulation: queues, stragglers, skew, elasticity.

Arithmetic gives the mean of a step. What a worker of `async` waits for depends on who else is in
the queue, and a barrier waits for whoever is slowest: these are drawn, by a seed, and counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

DRAWN_AT_ONCE = 4096


class Clock:
    """Runs events in the order of time; those of one moment in the order they were added.

    >>> clock, seen = Clock(), []
    >>> clock.at(2.0, seen.append, "later")
    >>> clock.at(1.0, seen.append, "sooner")
    >>> clock.run()
    >>> seen, clock.now
    (['sooner', 'later'], 2.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._added = 0

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` at that time."""
        self._added += 1
        heapq.heappush(self._events, (time, self._added, action, arguments))

    def run(self) -> None:
        """Until no event is left."""
        while self._events:
            self.now, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)


class ServerQueues:
    """Servers, each of which answers one request after the other, first come, first served.

    A request goes to all of them at once, with its seconds at each: requests are added in the
    order of time, so when one will be answered is known when it comes.
    """

    def __init__(self, number: int) -> None:
        self.free = np.zeros(number)
        self.worked = np.zeros(number)
        self.waited = 0.0  # seconds in queues, of all requests at all servers
        self.requests = 0

    def add(self, now: float, seconds: np.ndarray) -> float:
        """When the last server has answered a request that comes now."""
        start = np.maximum(self.free, now)
        self.waited += float(start.sum()) - now * len(start)
        self.requests += 1
        self.worked += seconds
        self.free = start + seconds
        return float(self.free.max())


class Noise:
    """Factors around 1 by which seconds differ: lognormal, their mean is 1."""

    def __init__(self, spread: float, seed: int) -> None:
        self.spread, self._random = spread, np.random.default_rng(seed)
        self._drawn: list[float] = []

    def total(self, number: int) -> float:
        """The sum of the next so many factors."""
        if not self.spread:
            return float(number)
        while len(self._drawn) < number:
            self._drawn += lognormal(self._random, self.spread, DRAWN_AT_ONCE).tolist()
        taken, self._drawn = self._drawn[-number:], self._drawn[:-number]
        return sum(taken)


def lognormal(random: np.random.Generator, spread: float, size: Any) -> np.ndarray:
    """Factors with mean 1 whose logarithms have the standard deviation `spread`."""
    return np.exp(spread * random.standard_normal(size) - spread**2 / 2)


@dataclass(frozen=True)
class ServedJob:
    """Workers and parameter servers, in seconds.

    An exchange is that of one batch; under `geo` that of a window of `geo_step` batches.
    """

    workers: int
    compute: float  # of a worker for one batch
    pull: float  # work of all servers together for the rows of one exchange
    push: float  # likewise, to apply its gradients
    shares: Sequence[float] = (1.0,)  # of that work, by server: skewed ids make them uneven
    travel: float = 0.0  # of an exchange's rows or gradients between a worker and the servers
    mode: Literal["sync", "async", "geo"] = "async"
    ahead: bool = True  # async: rows of the next batch are asked for while this one computes
    staleness: int = 16  # async: steps that a worker may be ahead of the slowest
    geo_step: int = 100
    spread: float = 0.0  # of the computing seconds, see Noise
    slowdown: Sequence[float] = ()  # factor of each worker, where some are slower; empty: all alike
    elastic: bool = False  # async, geo: batches are lent from one pool, workers may be lost
    lost_every: float = float("inf")  # elastic: until a worker is lost, on average
    back_after: float = 0.0  # and until it is there again
    timeout: float = 10.0  # after which a lost worker's batches are lent to others

    def __post_init__(self) -> None:
        if self.workers < 1 or not self.shares or min(self.compute, self.pull, self.push) < 0:
            raise ValueError(f"no such job of workers and servers: {self}")
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"shares of servers must add up to 1, not {sum(self.shares):g}")
        if self.slowdown and len(self.slowdown) != self.workers:
            raise ValueError(f"{len(self.slowdown)} factors of slowdown, {self.workers} workers")
        if self.elastic and self.mode == "sync":
            raise ValueError("workers of mode sync are not elastic: a lost one ends the run")
        if self.lost_every != float("inf") and not self.elastic:
            raise ValueError("lost_every needs elastic workers: else the loss of one ends the run")


@dataclass(frozen=True)
class ServedTimes:
    """What came of a simulated job."""

    seconds: float
    batches: int  # that were applied, each once
    age: float  # updates of others between the pull of a row and its push, on average
    oldest: int  # the most of them
    busy: float  # share of the time that the busiest server works
    queued: float  # seconds that a request waits at a server, on average
    waiting: float  # share of the time that workers wait
    lost: int  # workers that were lost
    redone: int  # batches that were computed or begun in vain

    @property
    def per_second(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds


def simulate_servers(job: ServedJob, batches: int, seed: int = 0) -> ServedTimes:
    """Train `batches` batches: those of one process under async, slices of it under sync and geo.

    >>> times = simulate_servers(ServedJob(2, 0.1, 0.01, 0.02, mode="sync"), batches=20)
    >>> times.batches, round(times.seconds, 6)  # 10 steps: pull, compute, push, push
    (20, 1.5)
    """
    return _Simulation(job, batches, seed).run()


class _Simulation:
    """One job: what each worker does, from event to event."""

    def __init__(self, job: ServedJob, batches: int, seed: int) -> None:
        self.job, self.clock = job, Clock()
        shares = np.asarray(job.shares, dtype=float)
        self.pull, self.push = job.pull * shares, job.push * shares
        self.servers = ServerQueues(len(shares))
        self.noise = Noise(job.spread, seed)
        self.losses = np.random.default_rng(seed + 1)
        self.slowdown = list(job.slowdown) or [1.0] * job.workers
        self.window = job.geo_step if job.mode == "geo" else 1
        self.ahead = job.ahead and job.mode == "async"
        # Elastic workers borrow from one pool; others have a part of their own.
        parts = 1 if job.elastic else job.workers
        self.left = [(batches + k) // parts for k in reversed(range(parts))]
        everyone = range(job.workers)
        self.life = [0 for _ in everyone]  # events of a life that is over are void
        self.lent: list[list[int]] = [[] for _ in everyone]  # batches that are not sent yet
        self.seen: list[list[int]] = [[] for _ in everyone]  # updates of others in their rows
        self.asked = [0 for _ in everyone]
        self.sent = [0 for _ in everyone]
        self.arrived = [False for _ in everyone]
        self.computing = [False for _ in everyone]
        self.held: list[int] = []  # workers that are too far ahead
        self.idle: set[int] = set()  # workers that found nothing left
        self.met = 0  # sync: workers whose gradients are applied
        self.pushes = self.applied = self.lost = self.redone = self.age = self.oldest = 0
        self.computed, self.end = 0.0, 0.0

    def run(self) -> ServedTimes:
        for worker in range(self.job.workers):
            self._begin(worker)
        self.clock.run()
        return ServedTimes(
            seconds=self.end,
            batches=self.applied,
            age=self.age / max(1, self.pushes),
            oldest=self.oldest,
            busy=float(self.servers.worked.max()) / self.end,
            queued=self.servers.waited / len(self.pull) / max(1, self.servers.requests),
            waiting=1.0 - self.computed / (self.end * self.job.workers),
            lost=self.lost,
            redone=self.redone,
        )

    def _begin(self, worker: int) -> None:
        if self.job.lost_every != float("inf"):
            after = self.losses.exponential(self.job.lost_every)
            self.clock.at(self.clock.now + after, self._lose, worker)
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        """Take a batch (under geo a window of them) and pull its rows."""
        pool = 0 if self.job.elastic else worker
        number = min(self.left[pool], self.window)
        if not number:
            self.idle.add(worker)
            return
        if self._too_far(worker):
            self.held.append(worker)
            return
        self.left[pool] -= number
        self.lent[worker].append(number)
        self.seen[worker].append(self.pushes - self.sent[worker])
        self.asked[worker] += 1
        ready = self.servers.add(self.clock.now, self.pull) + self.job.travel
        self.clock.at(ready, self._arrive, worker, self.life[worker])

    def _too_far(self, worker: int) -> bool:
        if self.job.mode != "async" or self.job.elastic:
            return False
        return self.asked[worker] - min(self.sent) > self.job.staleness

    def _arrive(self, worker: int, life: int) -> None:
        if life == self.life[worker]:
            self.arrived[worker] = True
            if not self.computing[worker]:
                self._compute(worker)

    def _compute(self, worker: int) -> None:
        self.arrived[worker], self.computing[worker] = False, True
        each, number = self.job.compute * self.slowdown[worker], self.lent[worker][0]
        seconds = each * self.noise.total(number)
        self.clock.at(self.clock.now + seconds, self._send, worker, self.life[worker], seconds)
        if self.ahead:
            self._ask(worker)

    def _send(self, worker: int, life: int, seconds: float) -> None:
        """Gradients are on their way; a worker that asks ahead does not wait for them."""
        if life != self.life[worker]:
            return
        self.computing[worker], self.computed = False, self.computed + seconds
        number, seen = self.lent[worker].pop(0), self.seen[worker].pop(0)
        self.clock.at(self.clock.now + self.job.travel, self._apply, worker, life, number, seen)
        if self.arrived[worker]:
            self._compute(worker)

    def _apply(self, worker: int, life: int, number: int, seen: int) -> None:
        # Under sync all gradients of a step are applied at once: none is older than another.
        age = 0 if self.job.mode == "sync" else self.pushes - self.sent[worker] - seen
        self.age, self.oldest = self.age + age, max(self.oldest, age)
        self.pushes, self.applied = self.pushes + 1, self.applied + number
        self.sent[worker] += 1
        self.end = self.servers.add(self.clock.now, self.push)
        if self.job.mode == "sync":
            self.met += 1
            if self.met == self.job.workers:  # all are applied: the next step begins
                self.met = 0
                for one in range(self.job.workers):
                    self.clock.at(self.end, self._ask, one)
        elif not self.ahead and life == self.life[worker]:
            self._ask(worker)  # behind its own gradients
        held, self.held = self.held, []
        for one in held:
            self._ask(one)

    def _lose(self, worker: int) -> None:
        if not any(self.left) and not any(self.lent):
            return  # the run is over
        number = sum(self.lent[worker])
        self.lost, self.redone = self.lost + 1, self.redone + number
        self.life[worker] += 1
        self.lent[worker], self.seen[worker] = [], []
        self.arrived[worker] = self.computing[worker] = False
        self.idle.discard(worker)
        if number:
            self.clock.at(self.clock.now + self.job.timeout, self._lend_again, number)
        self.clock.at(self.clock.now + self.job.back_after, self._begin, worker)

    def _lend_again(self, number: int) -> None:
        self.left[0] += number
        idle, self.idle = sorted(self.idle), set()
        for worker in idle:
            self._ask(worker)


@dataclass(frozen=True)
class BarrierTimes:
    """Steps of ranks that meet, in seconds."""

    mean: float
    middle: float  # half of the steps take less
    slowest: float  # 99 of 100 take less
    phases: tuple[float, ...]  # of the mean, by phase
    waiting: float  # share of its time that a rank waits for others, on average


def simulate_barriers(
    phases: Sequence[Sequence[float] | np.ndarray],
    spread: float = 0.0,
    steps: int = 2000,
    seed: int = 0,
) -> BarrierTimes:
    """A step of ranks: in each phase every rank works its own seconds, then all meet.

    spread: of each rank's seconds in each phase, see Noise.

    >>> times = simulate_barriers([[1.0, 3.0], [2.0, 2.0]])
    >>> times.mean, times.phases, round(times.waiting, 3)
    (5.0, (3.0, 2.0), 0.2)
    """
    random = np.random.default_rng(seed)
    lengths, worked = [], 0.0
    for seconds in phases:
        one = np.asarray(seconds, dtype=float)
        block = max(1, DRAWN_AT_ONCE * 64 // len(one))
        slowest = []
        for start in range(0, steps, block):
            size = (min(block, steps - start), len(one))
            drawn = one * (lognormal(random, spread, size) if spread else np.ones(size))
            slowest.append(drawn.max(axis=1))
            worked += float(drawn.mean(axis=1).sum())
        lengths.append(np.concatenate(slowest))
    total = np.sum(lengths, axis=0)
    middle, last = np.quantile(total, (0.5, 0.99))
    return BarrierTimes(
        mean=float(total.mean()),
        middle=float(middle),
        slowest=float(last),
        phases=tuple(float(one.mean()) for one in lengths),
        waiting=1.0 - worked / float(total.sum()),
    )


def owner_shares(
    distinct: float, owners: int, top: float = 0.0, seed: int = 0
) -> tuple[float, ...]:
    """Shares of an exchange's rows that each owner gets, by hash: chance makes them uneven.

    distinct: rows of the exchange; top: the share of ids that are the most popular one, where ids
    travel as often as they occur. Its owner gets all of these.

    >>> shares = owner_shares(1e6, owners=4, top=0.5)
    >>> round(max(shares), 2), round(sum(shares), 6)
    (0.62, 1.0)
    """
    if owners < 1 or distinct <= 0 or not 0 <= top <= 1:
        raise ValueError(f"{distinct:g} rows over {owners} owners, {top:g} of them one: impossible")
    random = np.random.default_rng(seed)
    mean = distinct / owners
    # Poisson's distribution; of large numbers the normal one that it becomes.
    drawn = np.maximum(mean + np.sqrt(mean) * random.standard_normal(owners), 0.0)
    if mean < 1e4:
        drawn = random.poisson(mean, owners).astype(float)
    if not drawn.any():
        drawn[int(random.integers(owners))] = 1.0
    shares = (1.0 - top) * drawn / drawn.sum()
    shares[int(random.integers(owners))] += top
    return tuple(float(share) for share in shares)
