"""Row optimizers: what happens to a row when its summed gradient arrives.

All are lazy: rows without a gradient in a step rest, values and state alike. Names of
hyper-parameters and their defaults are torch.optim's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.config.errors import did_you_mean

Kind = Literal["row", "dim"]

# name -> state; each is one float per row ("row") or one per value ("dim").
STATE: dict[str, dict[str, Kind]] = {
    "sgd": {},
    "momentum": {"momentum_buffer": "dim"},
    "adagrad": {"sum": "dim"},
    "rowwise_adagrad": {"sum": "row"},
    "adam": {"exp_avg": "dim", "exp_avg_sq": "dim"},
    "adamw": {"exp_avg": "dim", "exp_avg_sq": "dim"},
    "ftrl": {"sum": "dim", "linear": "dim"},
    "rmsprop": {"square_avg": "dim"},
}
ALIASES = {"sparse_adam": "adam"}


@dataclass(frozen=True)
class RowOptimizer:
    """One row optimizer with its hyper-parameters; the learning rate comes with each push.

    weight_decay is L2, added to the gradient of touched rows (adamw: decoupled, default 0.01).
    clip is the largest L2 norm a row's summed gradient may have; None: no clipping.
    None for eps or weight_decay means torch.optim's default for that optimizer.
    adam, where all rows have gradients, equals torch.optim.Adam; sparse_adam is the same but for
    the place of eps, and equals torch.optim.SparseAdam; ftrl with l1 = l2 = beta = 0 equals
    adagrad without eps.
    """

    name: str = "adam"
    weight_decay: float | None = None
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw
    eps: float | None = None  # adagrad, rowwise_adagrad 1e-10; adam, adamw, rmsprop 1e-8
    momentum: float = 0.9  # momentum
    alpha: float = 0.99  # rmsprop
    initial_accumulator_value: float = 0.0  # adagrad, rowwise_adagrad, ftrl
    l1: float = 0.0  # ftrl
    l2: float = 0.0  # ftrl
    beta: float = 0.0  # ftrl
    sparse_eps: bool = False  # adam: eps before the second moment is corrected; set by its name

    def __post_init__(self) -> None:
        name = ALIASES.get(self.name, self.name)
        if name not in STATE:
            raise ValueError(
                f"row optimizer {self.name!r} is not known; known are {', '.join(STATE)}"
                f"{did_you_mean(self.name, [*STATE, *ALIASES])}"
            )
        set_field = object.__setattr__  # frozen: the defaults that hang on the name go in here
        set_field(self, "sparse_eps", self.sparse_eps or self.name == "sparse_adam")
        set_field(self, "name", name)
        if self.weight_decay is None:
            set_field(self, "weight_decay", 0.01 if name == "adamw" else 0.0)
        if self.eps is None:
            set_field(self, "eps", 1e-10 if "adagrad" in name else 1e-8)
        set_field(self, "betas", tuple(self.betas))
        for key in ("weight_decay", "eps", "initial_accumulator_value", "l1", "l2", "beta"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{name}: {key} is {getattr(self, key)}; it must be 0 or more")
        for key, value in (("betas[0]", self.betas[0]), ("betas[1]", self.betas[1])):
            if not 0 <= value < 1:
                raise ValueError(f"{name}: {key} is {value}; it must be in [0, 1)")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"{name}: clip is {self.clip}; it must be above 0, or None for none")

    def state_names(self) -> dict[str, Kind]:
        """Per-row state: name -> "row" (one float) or "dim" (dim floats)."""
        return dict(STATE[self.name])

    def initial_state(self) -> dict[str, float]:
        """What each piece of state holds before a row's first gradient."""
        names = self.state_names()
        return {n: self.initial_accumulator_value if n == "sum" else 0.0 for n in names}

    def step_numbers(self, lr: float, step: int) -> tuple[float, float]:
        """(step size, eps) of one step: adam and adamw fold the bias correction into them."""
        eps: Any = self.eps
        if self.name not in ("adam", "adamw"):
            return lr, eps
        correction_1 = 1.0 - self.betas[0] ** step
        correction_2 = math.sqrt(1.0 - self.betas[1] ** step)
        return lr * correction_2 / correction_1, eps * (1.0 if self.sparse_eps else correction_2)


def update_rows(
    optimizer: RowOptimizer,
    values: Tensor,
    state: dict[str, Tensor],
    grads: Tensor,
    lr: float,
    step: int,
) -> None:
    """One step of `values` [n, dim] and their state in place; grads [n, dim], one row each.

    Written for reading; shoal's native core does the same arithmetic in one pass.
    """
    name, decay = optimizer.name, optimizer.weight_decay or 0.0
    size, eps = optimizer.step_numbers(lr, step)
    if optimizer.clip is not None:
        norm = grads.square().sum(dim=1, keepdim=True).sqrt()
        grads = grads * (optimizer.clip / norm.clamp(min=optimizer.clip))
    if name == "adamw":
        values.mul_(1.0 - lr * decay)
    elif decay:
        grads = grads + decay * values

    if name == "sgd":
        values.sub_(grads * size)
    elif name == "momentum":
        buffer = state["momentum_buffer"].mul_(optimizer.momentum).add_(grads)
        values.sub_(buffer * size)
    elif name == "adagrad":
        total = state["sum"].addcmul_(grads, grads)
        values.sub_(size * grads / (total.sqrt() + eps))
    elif name == "rowwise_adagrad":
        total = state["sum"].add_(grads.square().mean(dim=1))
        values.sub_(grads * (size / (total.sqrt() + eps))[:, None])
    elif name in ("adam", "adamw"):
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.add_((grads - first) * (1.0 - optimizer.betas[0]))
        second.add_((grads * grads - second) * (1.0 - optimizer.betas[1]))
        values.sub_(size * first / (second.sqrt() + eps))
    elif name == "rmsprop":
        square = state["square_avg"]
        square.add_((grads * grads - square) * (1.0 - optimizer.alpha))
        values.sub_(size * grads / (square.sqrt() + eps))
    elif name == "ftrl":
        total, linear = state["sum"], state["linear"]
        before = total.sqrt()
        after = total.addcmul_(grads, grads).sqrt()
        linear.add_(grads - (after - before) / lr * values)
        weight = (optimizer.beta + after) / lr + optimizer.l2
        shrunk = linear.sign() * (linear.abs() - optimizer.l1).clamp(min=0.0)
        # A value that never saw a gradient other than 0 has no weight yet and stays.
        torch.where(weight > 0, -shrunk / weight, values, out=values)
