"""Optimizers of dense parameters, by the names that configs use. One registers here from anywhere:

    @dense_optimizer("sign_sgd", kept=())
    def sign_sgd_step(parameters, grads, state, lr, weight_decay):
        for parameter, grad in zip(parameters, grads):
            parameter.sub_(lr * grad.sign())

The formulas are torch's own functions (torch.optim.adam.adam and its like), one call for all
parameters. Its classes are not used: the first one that a process makes imports torch's compiler,
which takes as long as torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from shoal.config import train_section
from shoal.config.schema import OptimizerSection

Rate = float | Tensor  # a tensor where steps are recorded as CUDA graphs, which read it anew
State = dict[str, list[Tensor]]  # name -> of each parameter


class DenseDefinition(NamedTuple):
    """The definition of a dense optimizer."""

    kept: tuple[str, ...]  # the state of each parameter: zeros like it, and the scalar "step"
    # (parameters, gradients, state, learning rate, weight decay): updates parameters and state
    update: Callable[[list[Tensor], list[Tensor], State, Any, float], None]


DENSE_OPTIMIZERS: dict[str, DenseDefinition] = {}
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def dense_optimizer(name: str, kept: tuple[str, ...]) -> Callable[[Callable], Callable]:
    """Decorates the step of a dense optimizer, which configs may name from then on."""

    def define(update: Callable[..., None]) -> Callable[..., None]:
        DENSE_OPTIMIZERS[name] = DenseDefinition(kept, update)
        train_section.DENSE_OPTIMIZERS.add(name)
        return update

    return define


class DenseOptimizer:
    """One optimizer of some parameters, with the defaults that torch's class of the name has.

    state: parameter -> its tensors, by the names that torch gives them. A whole step can be
    recorded as a CUDA graph.
    """

    def __init__(self, name: str, parameters: Sequence[Tensor], weight_decay: float = 0.0):
        self.parameters, self.weight_decay = list(parameters), weight_decay
        self.kept, self._update = DENSE_OPTIMIZERS[name]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.recorded_lr: Tensor | None = None  # what a recorded step reads in the place of lr

    @torch.no_grad()
    def step(self, lr: Rate) -> None:
        """Update the parameters that have a gradient; the gradients are gone afterwards."""
        lr = lr if self.recorded_lr is None else self.recorded_lr
        learning = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not learning:
            return
        grads = [_fitting_gradient(parameter) for parameter in learning]
        states = [self.state.get(parameter) or self._begin(parameter) for parameter in learning]
        state = {name: [parameter[name] for parameter in states] for name in self.kept}
        self._update(learning, grads, state, lr, self.weight_decay)
        for parameter in learning:
            parameter.grad = None

    def _begin(self, parameter: Tensor) -> dict[str, Tensor]:
        state = {name: torch.zeros_like(parameter) for name in self.kept if name != "step"}
        if "step" in self.kept:
            state["step"] = torch.zeros((), device=parameter.device)
        self.state[parameter] = state
        return state


def _fitting_gradient(parameter: Tensor) -> Tensor:
    """A dense gradient with the strides of its parameter, as fused steps need it."""
    grad = parameter.grad
    assert grad is not None
    if grad.layout is not torch.strided:
        grad = grad.to_dense()
    if grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter).copy_(grad)


@dense_optimizer("adam", kept=MOMENTS)
def adam_step(
    parameters: list[Tensor],
    grads: list[Tensor],
    state: State,
    lr: Rate,
    weight_decay: float,
    *,
    decoupled: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> None:
    """Adam in one pass over parameters and state: "exp_avg", "exp_avg_sq" and "step" of each."""
    adam(
        parameters,
        grads,
        state["exp_avg"],
        state["exp_avg_sq"],
        [],
        state["step"],
        fused=True,
        decoupled_weight_decay=decoupled,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )


@dense_optimizer("adamw", kept=MOMENTS)
def adamw_step(
    parameters: list[Tensor], grads: list[Tensor], state: State, lr: Rate, weight_decay: float
) -> None:
    adam_step(parameters, grads, state, lr, weight_decay, decoupled=True)


@dense_optimizer("sgd", kept=())
def sgd_step(
    parameters: list[Tensor], grads: list[Tensor], state: State, lr: Any, weight_decay: float
) -> None:
    sgd(
        parameters,
        grads,
        [None] * len(parameters),
        fused=True,
        weight_decay=weight_decay,
        momentum=0.0,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )


@dense_optimizer("adagrad", kept=("step", "sum"))
def adagrad_step(
    parameters: list[Tensor], grads: list[Tensor], state: State, lr: Rate, weight_decay: float
) -> None:
    eps, sums, steps = 1e-10, state["sum"], state["step"]
    if parameters[0].is_cpu and not isinstance(lr, Tensor):
        adagrad(
            parameters,
            grads,
            sums,
            steps,
            fused=True,
            lr=lr,
            weight_decay=weight_decay,
            lr_decay=0.0,
            eps=eps,
            maximize=False,
        )
        return
    torch._foreach_add_(
        steps, 1.0
    )  # on a GPU, where torch's reads learning rate and step on the host
    if weight_decay:
        grads = list(torch._foreach_add(grads, parameters, alpha=weight_decay))
    torch._foreach_addcmul_(sums, grads, grads)
    roots = torch._foreach_sqrt(sums)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(parameters, torch._foreach_mul(grads, -lr), roots)


@dense_optimizer("rmsprop", kept=("step", "square_avg"))
def rmsprop_step(
    parameters: list[Tensor], grads: list[Tensor], state: State, lr: Any, weight_decay: float
) -> None:
    rmsprop(
        parameters,
        grads,
        state["square_avg"],
        [],
        [],
        state["step"],
        capturable=isinstance(lr, Tensor) and lr.is_cuda,
        lr=lr,
        alpha=0.99,
        eps=1e-8,
        weight_decay=weight_decay,
        momentum=0.0,
        centered=False,
    )


dense_optimizer("sparse_adam", kept=MOMENTS)(adam_step)  # of dense parameters it is adam


def make_optimizer(
    section: OptimizerSection, parameters: Sequence[Tensor]
) -> DenseOptimizer | None:
    """The optimizer of a config; None where there is nothing to optimise."""
    if not parameters:
        return None
    return DenseOptimizer(section.name, parameters, section.weight_decay)


AnyOptimizer = DenseOptimizer | torch.optim.Optimizer  # a user's loop brings torch's own


def state_tensors(
    optimizer: AnyOptimizer | None, parameters: Sequence[Tensor]
) -> dict[str, Tensor]:
    """An optimizer's state as flat tensors: "3.exp_avg" belongs to parameter 3."""
    tensors: dict[str, Tensor] = {}
    if optimizer is not None:
        for number, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    tensors[f"{number}.{key}"] = torch.as_tensor(value).contiguous()
    return tensors


def restore_state(
    optimizer: AnyOptimizer | None,
    parameters: Sequence[Tensor],
    tensors: dict[str, Tensor],
) -> None:
    """Restore the state of an optimizer from tensors of `state_tensors`."""
    if optimizer is None:
        return
    # Kernels count the steps of fused optimizers and of recorded ones, the host those of others.
    on_device = isinstance(optimizer, DenseOptimizer) or bool(
        optimizer.defaults.get("fused") or optimizer.param_groups[0].get("capturable")
    )
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        parameter = parameters[int(number)]
        device = parameter.device if key != "step" or on_device else torch.device("cpu")
        state: Any = optimizer.state.setdefault(parameter, {})
        state[key] = value.to(device)
