"""Row optimizers: what happens to a row when its summed gradient arrives.

Each family has a file next to this one, with its plain form and the names of its C++ and Triton
forms. To add one, register it (registry.py). All are lazy: rows without a gradient in a step are
not updated, values and state alike. Names of hyper-parameters and their defaults are torch.optim's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.config.errors import did_you_mean
from shoal.optimizers import adagrad, adam, ftrl, rmsprop, sgd
from shoal.optimizers.registry import (
    ALIASES,
    DEFINITIONS,
    Kind,
    State,
    StepNumbers,
    row_optimizer_names,
)

FAMILIES = (sgd, adagrad, adam, rmsprop, ftrl)  # whose import registers them
OWN: Any = None  # the optimizer's own default
# Every hyper-parameter that some row optimizer has:
HYPER_PARAMETERS = (
    "weight_decay",
    "clip",
    "betas",
    "eps",
    "momentum",
    "alpha",
    "initial_accumulator_value",
    "l1",
    "l2",
    "beta",
)


@dataclass(frozen=True)
class RowOptimizer:
    """One row optimizer with its hyper-parameters; the learning rate comes with each push.

    None means the optimizer's default; an option that an optimizer does not support is refused.
    weight_decay is L2, added to the gradient of touched rows (adamw: decoupled, default 0.01).
    clip is the largest L2 norm a row's summed gradient may have; None: no clipping.
    adam, where all rows have gradients, equals torch.optim.Adam; sparse_adam is the same but for
    the place of eps, and equals torch.optim.SparseAdam; ftrl with l1 = l2 = beta = 0 equals
    adagrad without eps.
    """

    name: str = "adam"
    weight_decay: float = OWN
    clip: float | None = None
    betas: tuple[float, float] = OWN
    eps: float = OWN
    momentum: float = OWN
    alpha: float = OWN
    initial_accumulator_value: float = OWN
    l1: float = OWN
    l2: float = OWN
    beta: float = OWN
    lr_factor: float = 1.0  # the rows' learning rate over that of the step
    sparse_eps: bool = False  # adam: eps before the second moment is corrected; set by its name

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen: defaults that depend on the name go in here
        called, name = self.name, ALIASES.get(self.name, self.name)
        if name not in DEFINITIONS:
            hint = did_you_mean(called, row_optimizer_names())
            raise ValueError(
                f"row optimizer {called!r} is not known; known are "
                f"{', '.join(row_optimizer_names())}{hint}"
            )
        set_field(self, "name", name)
        set_field(self, "sparse_eps", self.sparse_eps or called == "sparse_adam")
        defaults = DEFINITIONS[name].defaults
        for key in HYPER_PARAMETERS:
            value = getattr(self, key)
            if key in defaults and value is None:
                set_field(self, key, defaults[key])
            elif key not in defaults and value is not None:
                hint = did_you_mean(key, defaults)
                raise ValueError(f"{called} has no {key}; it has {', '.join(defaults)}{hint}")
        if self.betas is not None:
            set_field(self, "betas", tuple(self.betas))
        self._check_ranges(called)

    def _check_ranges(self, called: str) -> None:
        for key in HYPER_PARAMETERS:
            value = getattr(self, key)
            if value is None:
                continue
            if key == "clip" and not 0 < value < math.inf:
                raise ValueError(f"{called}: clip is {value}; it must be above 0, or None for none")
            for number in value if key == "betas" else (value,):
                if key in ("betas", "alpha") and not 0 <= number < 1:
                    raise ValueError(f"{called}: {key} is {value}; it must be in [0, 1)")
                if not 0 <= number < math.inf:
                    raise ValueError(f"{called}: {key} is {value}; it must be 0 or more")
        if not 0 <= self.lr_factor < math.inf:  # 0: rows that are frozen
            raise ValueError(f"{called}: the learning rate of rows must be above 0")

    def state_names(self) -> dict[str, Kind]:
        """Per-row state: name -> "row" (one float) or "dim" (dim floats)."""
        return dict(DEFINITIONS[self.name].state)

    def widths(self, dim: int) -> dict[str, int]:
        """Floats of each piece of state of a row that has `dim` values."""
        return {name: dim if kind == "dim" else 1 for name, kind in self.state_names().items()}

    def initial_state(self) -> dict[str, float]:
        """The value of each piece of state before a row's first gradient."""
        names = self.state_names()
        return {n: self.initial_accumulator_value if n == "sum" else 0.0 for n in names}

    def numbers(self, lr: float, step: int) -> StepNumbers:
        """The numbers of the step with this number, at learning rate `lr`."""
        lr = lr * self.lr_factor
        size, eps = lr, self.eps or 0.0
        if self.betas is not None:
            correction_1 = 1.0 - self.betas[0] ** step
            correction_2 = math.sqrt(1.0 - self.betas[1] ** step)
            size = lr * correction_2 / correction_1
            eps *= 1.0 if self.sparse_eps else correction_2
        return StepNumbers(size, eps, lr, 1.0 - lr * self.weight_decay if self.decoupled else 1.0)

    @property
    def core_form(self) -> str | None:
        """The native core's name of this optimizer; None: the core does not have it."""
        return DEFINITIONS[self.name].core

    @property
    def triton_form(self) -> str | None:
        """The Triton kernels' name of this optimizer; None: they do not have it."""
        return DEFINITIONS[self.name].triton

    @property
    def decoupled(self) -> bool:
        """Whether weight decay shrinks the values instead of joining the gradients."""
        return self.name == "adamw"


def update_rows(
    optimizer: RowOptimizer, values: Tensor, state: State, grads: Tensor, lr: float, step: int
) -> None:
    """One step of `values` [n, dim] and their state in place; grads [n, dim], one row each.

    Written for reading; shoal's native core does the same arithmetic in one pass.
    """
    if optimizer.clip is not None:
        norm = grads.square().sum(dim=1, keepdim=True).sqrt()
        grads = grads * (optimizer.clip / norm.clamp(min=optimizer.clip))
    if optimizer.weight_decay and not optimizer.decoupled:
        grads = grads + optimizer.weight_decay * values
    now = optimizer.numbers(lr, step)
    DEFINITIONS[optimizer.name].step(optimizer, now, values, state, grads)
