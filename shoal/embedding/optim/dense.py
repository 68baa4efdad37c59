"""Optimizers of dense parameters, by the names that configs use."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.embedding.optim.dense_core import core_step, is_watched

DENSE_OPTIMIZERS: dict[str, Any] = {
    "adam": partial(torch.optim.Adam, fused=True),  # one call for all parameters
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, fused=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sparse_adam": partial(torch.optim.Adam, fused=True),
}


def make_optimizer(
    section: OptimizerSection, parameters: Sequence[Tensor]
) -> torch.optim.Optimizer | None:
    """The optimizer of a config; None where there is nothing to optimise."""
    if not parameters:
        return None
    _leave_compiler_alone()
    make = DENSE_OPTIMIZERS[section.name]
    return make(parameters, lr=section.lr, weight_decay=section.weight_decay)


def dense_step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One step at a learning rate; the gradients are gone afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    if not core_step(optimizer):
        _torch_step(optimizer)
        optimizer.zero_grad(set_to_none=True)


def _torch_step(optimizer: torch.optim.Optimizer) -> None:
    """torch's step, less what it is wrapped in, where nobody watches: that loads the compiler."""
    if is_watched(optimizer):
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _leave_compiler_alone() -> None:
    """Keep optimizers from loading torch's compiler, which takes as long as torch itself.

    They load it to be left out of what it compiles; here it is given no optimizer at all.
    """
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        function = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            setattr(function, "__dynamo_disable", function)


def state_tensors(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]
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
    optimizer: torch.optim.Optimizer | None,
    parameters: Sequence[Tensor],
    tensors: dict[str, Tensor],
) -> None:
    """The opposite of `state_tensors`."""
    if optimizer is None:
        return
    # Kernels count the steps of fused optimizers and of recorded ones, the host those of others.
    by_kernels = optimizer.defaults.get("fused") or optimizer.param_groups[0].get("capturable")
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        parameter = parameters[int(number)]
        device = "cpu" if key == "step" and not by_kernels else parameter.device
        optimizer.state[parameter][key] = value.to(device)
