"""adagrad on rows, with a sum for each value or, rowwise, one for each row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shoal.optimizers.registry import State, StepNumbers, row_optimizer

DEFAULTS = {"eps": 1e-10, "initial_accumulator_value": 0.0}


@row_optimizer("adagrad", {"sum": "dim"}, core="adagrad", triton="adagrad", **DEFAULTS)
def adagrad(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    total = state["sum"].addcmul_(grads, grads)
    values.sub_(now.size * grads / (total.sqrt() + now.eps))


@row_optimizer(
    "rowwise_adagrad",
    {"sum": "row"},
    core="rowwise_adagrad",
    triton="rowwise_adagrad",
    **DEFAULTS,
)
def rowwise_adagrad(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    total = state["sum"].add_(grads.square().mean(dim=1))
    values.sub_(grads * (now.size / (total.sqrt() + now.eps))[:, None])
