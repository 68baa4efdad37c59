"""Stopping: a process that gets SIGTERM during training saves first.

A signal handler only takes note; the trainer looks after every step, and all ranks stop after the
same one. Whatever they do meanwhile, they are gone when the time for it has passed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from shoal.distributed.world import World


class Stopping:
    """The stop signal of this process, if it got one."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the stop signal; None: none so far
        self.may_leave = False  # whether it may go while the others of its run continue
        self.everyone = False  # whether the signal stops the whole run
        self._looked = False  # whether the signal is handled
        self._grace = 0.0  # seconds in which to save
        self._hurries = False

    @contextmanager
    def handling_signals(self, seconds: float) -> Iterator[None]:
        """Context in which signals are handled: the run saves within so many seconds."""
        self._grace, self.signal, self._looked = seconds, None, True
        try:
            yield
        finally:
            self._looked = self.may_leave = self.everyone = False

    def ask(self, number: int, hurry: bool = True) -> bool:
        """Record a signal; False: nothing handles it, and the process is to end at once.

        hurry: end the process when the time has passed, saved or not.
        """
        if not self._looked or (hurry and not self._grace):
            return False
        self.signal = number
        if hurry and not self._hurries:
            self._hurries = True
            threading.Thread(target=self._end, args=(self._grace,), daemon=True).start()
        return True

    def _end(self, seconds: float) -> None:
        time.sleep(seconds)
        outcome = "no checkpoint was written" if self.everyone or not self.may_leave else "not gone"
        text = f"{outcome} within launch.grace={seconds:g} s of the signal"
        print(text, file=sys.stderr, flush=True)
        os._exit(128 + (self.signal or 0))


STOPPING = Stopping()


class Agreement:
    """Makes all ranks stop after the same step; they exchange votes about once a second."""

    def __init__(self, world: World):
        self.world = world
        self._step: int | None = None  # the last time; None: there was none
        self._next = 0
        self._at = time.monotonic()
        self.met = time.time()  # when all ranks last answered

    def stops(self, step: int) -> int | None:
        """The stop signal that any rank got; called on all ranks after every step."""
        own_signal = STOPPING.signal or 0
        if self.world.size == 1:
            return own_signal or None
        if step < self._next:
            return None
        now, steps = time.monotonic(), 1 if self._step is None else step - self._step
        # Ranks ask each other about once a second.
        pace = int(steps / max(now - self._at, 1e-6))
        sent = self.world.bytes_sent
        votes = torch.tensor([own_signal, 1 if own_signal else 0, pace], device=self.world.device)
        signals, ranks, paces = self.world.all_reduce(votes).tolist()
        self.met = time.time()
        self.world.bytes_sent = sent  # no part of a step
        # Not too far off, should steps become slow.
        self._next = step + max(1, min(paces // self.world.size, 2 * steps))
        self._step, self._at = step, now
        return signals // ranks if ranks else None
