"""How long a run will take, logged once in its first epoch.

Measured are its first steps and a few tiles of users. Nothing but the log depends on these clocks.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch

log = logging.getLogger("shoal")
WARM_STEPS, MEASURED_STEPS = 3, 20  # the first ones reserve memory, and are slower than others
WORTH_A_LINE = 5.0  # seconds


@dataclass(frozen=True)
class EvaluationSeconds:
    """Seconds that evaluations take; 0 where they are too short to be measured."""

    valid: float = 0.0
    test: float = 0.0


class RunEstimate:
    """Times the first steps of a run, and logs how long an epoch and an evaluation take."""

    def __init__(
        self,
        steps: int | None,
        epochs: int,
        evaluations: int,
        seconds: EvaluationSeconds,
        device: torch.device,
    ):
        """steps: of an epoch, None: not known. evaluations: validations of all epochs."""
        self.steps, self.epochs, self.evaluations = steps, epochs, evaluations
        self.seconds, self.device = seconds, device
        self.last = min(WARM_STEPS + MEASURED_STEPS, steps or 0)
        self.done = 0
        self.begun = 0.0

    def log_test(self) -> None:
        """The line for a model that takes no steps."""
        if self.seconds.test >= WORTH_A_LINE:
            log.info(
                "estimate: validation about %s, the test about %s",
                duration(self.seconds.valid),
                duration(self.seconds.test),
            )

    def count_step(self) -> None:
        """A step of this process is done."""
        if self.done >= self.last:
            return
        self.done += 1
        if self.done == WARM_STEPS:
            self.begun = self._clock()
        elif self.done == self.last and self.done > WARM_STEPS:
            self._log((self._clock() - self.begun) / (self.done - WARM_STEPS))

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _log(self, step: float) -> None:
        assert self.steps is not None
        epoch, valid, test = step * self.steps, self.seconds.valid, self.seconds.test
        total = epoch * self.epochs + valid * self.evaluations + test
        if max(epoch + valid, test) < WORTH_A_LINE:
            return
        evaluated = f", its validation about {duration(valid)}" if valid else ""
        evaluated += f", the test about {duration(test)}" if test else ""
        log.info(
            "estimate: an epoch about %s%s; %d epochs, if none ends it before, about %s",
            duration(epoch),
            evaluated,
            self.epochs,
            duration(total),
        )


def duration(seconds: float) -> str:
    """Rounded for people.

    >>> duration(0.4), duration(6.2), duration(380), duration(9000)
    ('0.4 s', '6 s', '6 min', '2.5 h')
    """
    if seconds < 1:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
