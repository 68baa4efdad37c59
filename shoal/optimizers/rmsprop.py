"""rmsprop on rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shoal.optimizers.registry import State, StepNumbers, row_optimizer


@row_optimizer(
    "rmsprop", {"square_avg": "dim"}, core="rmsprop", triton="rmsprop", alpha=0.99, eps=1e-8
)
def rmsprop(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    square = state["square_avg"]
    square.add_((grads * grads - square) * (1.0 - o.alpha))
    values.sub_(now.size * grads / (square.sqrt() + now.eps))
