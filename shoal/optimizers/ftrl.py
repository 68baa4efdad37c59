"""ftrl on rows: follow the regularised leader, as in McMahan et al., KDD 2013."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.optimizers.registry import State, StepNumbers, row_optimizer


@row_optimizer(
    "ftrl",
    {"sum": "dim", "linear": "dim"},
    core="ftrl",
    triton="ftrl",
    l1=0.0,
    l2=0.0,
    beta=0.0,
    initial_accumulator_value=0.0,
)
def ftrl(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    total, linear = state["sum"], state["linear"]
    before = total.sqrt()
    after = total.addcmul_(grads, grads).sqrt()
    linear.add_(grads - (after - before) / now.lr * values)
    weight = (o.beta + after) / now.lr + o.l2
    shrunk = linear.sign() * (linear.abs() - o.l1).clamp(min=0.0)
    # A value that never saw a gradient other than 0 has no weight yet and stays.
    torch.where(weight > 0, -shrunk / weight, values, out=values)
