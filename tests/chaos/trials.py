"""Trials: what is started, who is hit with what and when, and how the run goes on afterwards.

A trial is one blow, and a run meets several of them: what goes on after one is hit by the next, and
after the last it goes on to its end. All of it is a pure function of the seed and the number of the
run, but for the moment of a blow: processes run at their own pace. Blows are signals to a process.
"""

from __future__ import annotations

import itertools
import random
import signal
from dataclasses import dataclass

KINDS = ["single", "ddp", "sharded", "ps sync", "ps async", "ps geo"]
MOMENTS = ["start", "step", "save", "epoch"]
BLOWS = 3  # signals that a run meets


@dataclass(frozen=True)
class Shape:
    """A strategy, and how many processes of which kind."""

    kind: str
    workers: int
    servers: int

    @property
    def words(self) -> list[str]:
        """Of the command line, before the config."""
        name, _, mode = self.kind.partition(" ")
        if name != "ps":
            return ["train", f"--nproc={self.workers}", f"--strategy.name={name}"]
        numbers = [f"--worker_num={self.workers}", f"--server_num={self.servers}"]
        return ["launch", *numbers, f"--strategy.ps.mode={mode}"]

    @property
    def is_exact(self) -> bool:
        """Whether it gives the numbers of one process."""
        return self.kind not in ("ps async", "ps geo")

    def __str__(self) -> str:
        servers = f"+{self.servers}" if self.servers else ""
        return f"{self.kind} x{self.workers}{servers}"


@dataclass(frozen=True)
class Trial:
    """One blow."""

    seed: str
    shape: Shape
    victim: str  # launcher, rank K or server K
    signal: signal.Signals
    moment: str
    part: float  # of the run (or of some seconds, at the start) before the blow
    after: Shape

    @property
    def blow(self) -> str:
        return f"{self.victim} {self.signal.name[3:]} at {self.moment} {self.part:.2f}"


def draw(seed: int, number: int) -> list[Trial]:
    """The trials of the run of a number, one after the other."""
    chance = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)] if number < len(KINDS) else chance.choice(KINDS)
    shapes = [_shape(kind, chance) for _ in range(BLOWS + 1)]
    return [
        _signal(f"{seed} {number}", k, shape, after, chance)
        for k, (shape, after) in enumerate(itertools.pairwise(shapes))
    ]


def _signal(seed: str, k: int, shape: Shape, after: Shape, chance: random.Random) -> Trial:
    """Blow k of a run, in its k-th part."""
    victims = ["launcher"]
    if shape.workers > 1 or shape.servers:
        victims += [f"rank {k}" for k in range(shape.workers)]
    victims += [f"server {k}" for k in range(shape.servers)]
    victim = chance.choice(victims)
    signals = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
    if victim == "launcher":
        signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    sent, moment = chance.choice(signals), chance.choice(MOMENTS)
    share = chance.random()
    part = share if moment == "start" else 0.8 * (k + share) / BLOWS
    return Trial(seed, shape, victim, sent, moment, part, after)


def _shape(kind: str, chance: random.Random) -> Shape:
    if kind == "single":
        return Shape(kind, 1, 0)
    servers = chance.randint(1, 2) if kind.startswith("ps") else 0
    workers = chance.randint(1 if servers else 2, 3)
    return Shape(kind, min(workers, 2) if servers > 1 else workers, servers)
