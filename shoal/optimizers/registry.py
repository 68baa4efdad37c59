"""Row optimizers by name. One registers here from anywhere, in or outside of the package:

    @row_optimizer("sign_sgd", {})
    def sign_sgd(o, now, values, state, grads):
        values.sub_(now.size * grads.sign())

That is its plain form. An engine in C++ or Triton that has no form of it leaves its rows to one
that runs the plain form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from shoal.config.train_section import ROW_OPTIMIZERS

Kind = Literal["row", "dim"]  # of a piece of state: one float per row, or one per value
State = dict[str, Tensor]


class StepNumbers(NamedTuple):
    """The numbers of a table's step, besides gradients and hyper-parameters."""

    size: float  # the learning rate; adam folds the correction of its first moment into it
    eps: float  # adam folds the correction of its second moment into it
    lr: float  # of the rows
    keep: float  # what values are multiplied by first: decoupled weight decay


class Definition(NamedTuple):
    """The definition of a row optimizer: its state, hyper-parameters and forms."""

    state: dict[str, Kind]
    defaults: dict[str, Any]  # hyper-parameter -> default
    # (its hyper-parameters, numbers of the step, values [n, dim], state, gradients [n, dim])
    step: Callable[[Any, StepNumbers, Tensor, State, Tensor], None]
    core: str | None  # its form in csrc/kernels.cpp, by the name there
    triton: str | None  # its form in kernels/gpu/optim.py; None: it has none


DEFINITIONS: dict[str, Definition] = {}
ALIASES: dict[str, str] = {}  # other names, for variants that share a definition


def row_optimizer(
    name: str,
    state: dict[str, Kind],
    *,
    core: str | None = None,
    triton: str | None = None,
    **defaults: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates the plain step of a row optimizer; every one has weight_decay and clip."""

    def define(step: Callable[..., None]) -> Callable[..., None]:
        shared = {"weight_decay": 0.0, "clip": None}
        DEFINITIONS[name] = Definition(state, shared | defaults, step, core, triton)
        ROW_OPTIMIZERS.add(name)  # configs may name it
        return step

    return define


def add_alias(name: str, optimizer: str) -> None:
    """Let configs call a row optimizer by another name."""
    ALIASES[name] = optimizer
    ROW_OPTIMIZERS.add(name)


def row_optimizer_names() -> list[str]:
    """Every name that a row optimizer may be called by."""
    return [*DEFINITIONS, *ALIASES]
