"""Stopping: a process that is told to end (SIGTERM) in the midst of training saves first.

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

from shoal.world.world import World


class Stopping:
    """Whether this process was told to end."""

    def __init__(self) -> None:
        self.signal: int | None = None  # that told it
        self.may_leave = False  # whether it may go while the others of its run continue
        self.everyone = False  # whether the whole run was told
        self._looked = False  # whether somebody looks
        self._grace = 0.0  # seconds there are to save
        self._hurries = False

    @contextmanager
    def heeded(self, seconds: float) -> Iterator[None]:
        """In here somebody looks, and saves within so many seconds."""
        self._grace, self.signal, self._looked = seconds, None, True
        try:
            yield
        finally:
            self._looked = self.may_leave = self.everyone = False

    def ask(self, number: int, hurry: bool = True) -> bool:
        """Take note of a signal; False: nobody looks, and the process is to end at once.

        hurry: end it when the time has passed, saved or not.
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
        what = "no checkpoint was written" if self.everyone or not self.may_leave else "not gone"
        text = f"{what} within launch.grace={seconds:g} s of the signal"
        print(text, file=sys.stderr, flush=True)
        os._exit(128 + (self.signal or 0))


STOPPING = Stopping()


class Agreement:
    """All ranks stop after the same step. They ask each other about once a second."""

    def __init__(self, world: World):
        self.world = world
        self._step: int | None = None  # the last time; None: there was none
        self._next = 0
        self._at = time.monotonic()
        self.met = time.time()  # when all ranks last answered

    def stops(self, step: int) -> int | None:
        """After every step, on all ranks: the signal that one of them was given."""
        told = STOPPING.signal or 0
        if self.world.size == 1:
            return told or None
        if step < self._next:
            return None
        now, steps = time.monotonic(), 1 if self._step is None else step - self._step
        # Ranks ask each other about once a second.
        pace = int(steps / max(now - self._at, 1e-6))
        sent = self.world.bytes_sent
        asked = torch.tensor([told, 1 if told else 0, pace], device=self.world.device)
        signals, ranks, paces = self.world.all_reduce(asked).tolist()
        self.met = time.time()
        self.world.bytes_sent = sent  # no part of a step
        # Not too far off, should steps become slow.
        self._next = step + max(1, min(paces // self.world.size, 2 * steps))
        self._step, self._at = step, now
        return signals // ranks if ranks else None
