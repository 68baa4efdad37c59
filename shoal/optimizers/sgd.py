"""sgd, with and without momentum, on rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shoal.optimizers.registry import State, StepNumbers, row_optimizer


@row_optimizer("sgd", {}, core="sgd", triton="sgd")
def sgd(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    values.sub_(grads * now.size)


@row_optimizer(
    "momentum", {"momentum_buffer": "dim"}, core="momentum", triton="momentum", momentum=0.9
)
def momentum(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    values.sub_(state["momentum_buffer"].mul_(o.momentum).add_(grads) * now.size)
