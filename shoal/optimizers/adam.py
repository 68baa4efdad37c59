"""adam and adamw on rows, and sparse_adam, which is adam but for the place of eps.

Rows that all have gradients in a step may go through torch's own (`adam_step` of dense.py): the
same numbers in one pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shoal.optimizers.registry import Kind, State, StepNumbers, add_alias, row_optimizer

MOMENTS: dict[str, Kind] = {"exp_avg": "dim", "exp_avg_sq": "dim"}
DEFAULTS = {"betas": (0.9, 0.999), "eps": 1e-8}


@row_optimizer("adam", MOMENTS, core="adam", triton="adam", **DEFAULTS)
@row_optimizer("adamw", MOMENTS, core="adamw", triton="adamw", **DEFAULTS, weight_decay=0.01)
def adam(o: Any, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.add_((grads - first) * (1.0 - o.betas[0]))
    second.add_((grads * grads - second) * (1.0 - o.betas[1]))
    if now.keep != 1.0:
        values.mul_(now.keep)
    values.sub_(now.size * first / (second.sqrt() + now.eps))


add_alias("sparse_adam", "adam")
