"""Row optimizers: what happens to a row when its summed gradient arrives. Their one place.

To add one, write its step below, with its name, state and hyper-parameters in the decorator, and
the same step as a kernel (csrc/kernels.cpp). All are lazy: rows without a gradient in a step rest,
values and state alike. Names of hyper-parameters and their defaults are torch.optim's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.config.errors import did_you_mean

Kind = Literal["row", "dim"]  # of a piece of state: one float per row, or one per value
State = dict[str, Tensor]


class StepNumbers(NamedTuple):
    """What the step of a table is made with, besides gradients and hyper-parameters."""

    size: float  # the learning rate; adam folds the correction of its first moment into it
    eps: float  # likewise
    lr: float  # of the rows
    keep: float  # what values are multiplied by first: decoupled weight decay


class Definition(NamedTuple):
    """One row optimizer: what it keeps, what it can be told, what it does."""

    state: dict[str, Kind]
    defaults: dict[str, Any]  # hyper-parameter -> default
    # (its hyper-parameters, numbers of the step, values [n, dim], state, gradients [n, dim])
    step: Callable[[RowOptimizer, StepNumbers, Tensor, State, Tensor], None]


DEFINITIONS: dict[str, Definition] = {}
SHARED = {"weight_decay": 0.0, "clip": None}  # hyper-parameters that all of them have
ALIASES = {"sparse_adam": "adam"}  # but for the place of eps
OWN: Any = None  # the optimizer's own default


def row_optimizer(name: str, state: dict[str, Kind], **defaults: Any) -> Callable:
    """Decorates the step of a row optimizer."""

    def define(step: Callable[..., None]) -> Callable[..., None]:
        DEFINITIONS[name] = Definition(state, SHARED | defaults, step)
        return step

    return define


@row_optimizer("sgd", {})
def sgd(o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    values.sub_(grads * now.size)


@row_optimizer("momentum", {"momentum_buffer": "dim"}, momentum=0.9)
def momentum(
    o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor
) -> None:
    values.sub_(state["momentum_buffer"].mul_(o.momentum).add_(grads) * now.size)


@row_optimizer("adagrad", {"sum": "dim"}, eps=1e-10, initial_accumulator_value=0.0)
def adagrad(o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    total = state["sum"].addcmul_(grads, grads)
    values.sub_(now.size * grads / (total.sqrt() + now.eps))


@row_optimizer("rowwise_adagrad", {"sum": "row"}, eps=1e-10, initial_accumulator_value=0.0)
def rowwise_adagrad(
    o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor
) -> None:
    total = state["sum"].add_(grads.square().mean(dim=1))
    values.sub_(grads * (now.size / (total.sqrt() + now.eps))[:, None])


MOMENTS: dict[str, Kind] = {"exp_avg": "dim", "exp_avg_sq": "dim"}


@row_optimizer("adam", MOMENTS, betas=(0.9, 0.999), eps=1e-8)
@row_optimizer("adamw", MOMENTS, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
def adam(o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.add_((grads - first) * (1.0 - o.betas[0]))
    second.add_((grads * grads - second) * (1.0 - o.betas[1]))
    if now.keep != 1.0:
        values.mul_(now.keep)
    values.sub_(now.size * first / (second.sqrt() + now.eps))


@row_optimizer("rmsprop", {"square_avg": "dim"}, alpha=0.99, eps=1e-8)
def rmsprop(o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    square = state["square_avg"]
    square.add_((grads * grads - square) * (1.0 - o.alpha))
    values.sub_(now.size * grads / (square.sqrt() + now.eps))


@row_optimizer(
    "ftrl",
    {"sum": "dim", "linear": "dim"},
    l1=0.0,
    l2=0.0,
    beta=0.0,
    initial_accumulator_value=0.0,
)
def ftrl(o: RowOptimizer, now: StepNumbers, values: Tensor, state: State, grads: Tensor) -> None:
    total, linear = state["sum"], state["linear"]
    before = total.sqrt()
    after = total.addcmul_(grads, grads).sqrt()
    linear.add_(grads - (after - before) / now.lr * values)
    weight = (o.beta + after) / now.lr + o.l2
    shrunk = linear.sign() * (linear.abs() - o.l1).clamp(min=0.0)
    # A value that never saw a gradient other than 0 has no weight yet and stays.
    torch.where(weight > 0, -shrunk / weight, values, out=values)


@dataclass(frozen=True)
class RowOptimizer:
    """One row optimizer with its hyper-parameters; the learning rate comes with each push.

    What is left out is the optimizer's own default; what an optimizer does not have is refused.
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
        set_field = object.__setattr__  # frozen: the defaults that hang on the name go in here
        called, name = self.name, ALIASES.get(self.name, self.name)
        if name not in DEFINITIONS:
            hint = did_you_mean(called, row_optimizer_names())
            raise ValueError(
                f"row optimizer {called!r} is not known; known are "
                f"{', '.join(row_optimizer_names())}{hint}"
            )
        set_field(self, "name", name)
        set_field(self, "sparse_eps", self.sparse_eps or called == "sparse_adam")
        own = DEFINITIONS[name].defaults
        for key in HYPER_PARAMETERS:
            value = getattr(self, key)
            if key in own and value is None:
                set_field(self, key, own[key])
            elif key not in own and value is not None:
                hint = did_you_mean(key, own)
                raise ValueError(f"{called} has no {key}; it has {', '.join(own)}{hint}")
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
            for one in value if key == "betas" else (value,):
                if key in ("betas", "alpha") and not 0 <= one < 1:
                    raise ValueError(f"{called}: {key} is {value}; it must be in [0, 1)")
                if not 0 <= one < math.inf:
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
        """What each piece of state holds before a row's first gradient."""
        names = self.state_names()
        return {n: self.initial_accumulator_value if n == "sum" else 0.0 for n in names}

    def numbers(self, lr: float, step: int) -> StepNumbers:
        """Of the step-th step, where the schedule says `lr`."""
        lr = lr * self.lr_factor
        size, eps = lr, self.eps or 0.0
        if self.betas is not None:
            correction_1 = 1.0 - self.betas[0] ** step
            correction_2 = math.sqrt(1.0 - self.betas[1] ** step)
            size = lr * correction_2 / correction_1
            eps *= 1.0 if self.sparse_eps else correction_2
        return StepNumbers(size, eps, lr, 1.0 - lr * self.weight_decay if self.decoupled else 1.0)

    @property
    def decoupled(self) -> bool:
        """Whether weight decay shrinks the values instead of joining the gradients."""
        return self.name == "adamw"


# Everything that a row optimizer can be told, whichever it is.
HYPER_PARAMETERS = tuple(dict.fromkeys(key for one in DEFINITIONS.values() for key in one.defaults))


def row_optimizer_names() -> list[str]:
    """Every name that a row optimizer may be called by."""
    return [*DEFINITIONS, *ALIASES]


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
