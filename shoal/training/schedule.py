"""Learning rates: a pure function of the step, so that a resumed run needs no state for it."""

from __future__ import annotations

import math

from shoal.config.schema import OptimizerSection


def learning_rate(section: OptimizerSection, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of optimizer step `step` (from 0)."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    epoch = step // max(1, steps_per_epoch)
    total = max(1, steps_per_epoch * epochs - section.warmup_steps)
    done = min(1.0, (step - section.warmup_steps) / total)
    if section.schedule == "linear":
        return section.lr * (1.0 - done)
    if section.schedule == "cosine":
        return section.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    if section.schedule == "step":
        return section.lr * section.gamma ** (epoch // section.decay_epochs)
    if section.schedule == "exponential":
        return section.lr * section.gamma**epoch
    return section.lr
