"""Trials: what is started, who is hit with what and when, and how the run goes on afterwards.

A trial is one blow, and a run meets several of them: what goes on after one is hit by the next, and
after the last it goes on to its end. All of it is a pure function of the seed and the number of the
run, but for the moment of a blow: processes run at their own pace. Most blows are signals to a
process; some fall on what a run stands on, and are the only one of their run:

    cut, flaps, cut for good    two hosts, and the line between them
    full disk                   the file system of the run's folder
    clock                       the time of day jumps by an hour, forwards or back
    alone                       a rank is killed, and the run must bring itself back
    replica                     one of two servers with the same rows is killed: all goes on
"""

from __future__ import annotations

import itertools
import random
import signal
from dataclasses import dataclass, replace

KINDS = ["single", "ddp", "sharded", "ps sync", "ps async", "ps geo"]
MOMENTS = ["start", "step", "save", "epoch"]
LINE = ("cut", "flaps", "cut for good")
OTHERS = (*LINE, "full disk", "full disk", "clock", "alone", "alone", "replica")
RARE = 0.5  # of the runs: a quarter of the trials
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
    victim: str  # launcher, rank K or server K; or what OTHERS names
    signal: signal.Signals
    moment: str
    part: float  # of the run (or of some seconds, at the start) before the blow
    after: Shape

    @property
    def blow(self) -> str:
        sent = "" if self.victim in OTHERS else f" {self.signal.name[3:]}"
        return f"{self.victim}{sent} at {self.moment} {self.part:.2f}"


def draw(seed: int, number: int) -> list[Trial]:
    """The trials of the run of a number, one after the other."""
    chance = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)] if number < len(KINDS) else chance.choice(KINDS)
    shapes = [_shape(kind, chance) for _ in range(BLOWS + 1)]
    trials = [
        _signal(f"{seed} {number}", k, shape, after, chance)
        for k, (shape, after) in enumerate(itertools.pairwise(shapes))
    ]
    if number < len(KINDS) or chance.random() >= RARE:
        return trials
    return [_other(trials[0], chance)]


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


def _other(trial: Trial, chance: random.Random) -> Trial:
    """The same with a blow that is no signal, in the midst of training."""
    victim, shape, after = chance.choice(OTHERS), trial.shape, trial.after
    if victim in LINE:
        kind = chance.choice(["ddp", "sharded"])
        shape, after = Shape(kind, 2, 0), Shape(kind, chance.randint(2, 3), 0)
    if victim == "alone":
        kind = shape.kind if shape.kind != "single" else "ddp"
        shape = replace(shape, kind=kind, workers=max(2, shape.workers))
    if victim == "replica":
        kind = shape.kind if shape.servers else "ps sync"
        shape = Shape(kind, min(shape.workers, 2), 1)
    return replace(
        trial,
        shape=shape,
        after=after,
        victim=victim,
        signal=signal.SIGKILL,
        moment="step",
        part=0.05 + 0.5 * chance.random(),
    )


def _shape(kind: str, chance: random.Random) -> Shape:
    if kind == "single":
        return Shape(kind, 1, 0)
    servers = chance.randint(1, 2) if kind.startswith("ps") else 0
    workers = chance.randint(1 if servers else 2, 3)
    return Shape(kind, min(workers, 2) if servers > 1 else workers, servers)
