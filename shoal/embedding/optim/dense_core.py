"""The step of dense parameters by the native core: one call for all of them, on a CPU.

Optimizers are torch's own, and so are their state and their numbers. Where the core cannot make a
step it is left to torch: the first one of a parameter, which makes its state; gradients that are
sparse or not float32; settings that no config has.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from shoal.world.core import load_core

_core = load_core()
# What the core calls an optimizer, and what it keeps of a parameter.
KINDS: dict[type[Optimizer], tuple[str, tuple[str, ...]]] = {
    SGD: ("sgd", ()),
    Adagrad: ("adagrad", ("step", "sum")),
    Adam: ("adam", ("step", "exp_avg", "exp_avg_sq")),
    AdamW: ("adam", ("step", "exp_avg", "exp_avg_sq")),
}
DECOUPLED = "adamw"  # Adam whose group says so: a setting of the group, as torch has it
UNKNOWN = ("amsgrad", "maximize", "capturable", "differentiable", "momentum", "lr_decay")
NO_STATE: dict[str, Any] = {}


class Place(NamedTuple):
    """A parameter and its state as they were found fit for the core, and where they lie."""

    parameter: Tensor
    state: list[Any]  # alive as long as their ids are known
    ids: list[int]
    addresses: tuple[int, ...]
    size: int
    bytes: int


_places: WeakKeyDictionary[Optimizer, dict[int, Place]] = WeakKeyDictionary()


def core_step(optimizer: Optimizer) -> bool:
    """One step, after which the gradients are gone; False, and nothing done, where torch must."""
    kind, names = KINDS.get(type(optimizer), ("", ()))
    if _core is None or not kind or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    if any(group.get(setting) for setting in UNKNOWN) or is_watched(optimizer):
        return False
    if min(group.get("betas", (1.0,))) < 0.5:  # m + (g - m) * (1 - beta) would lose digits
        return False
    if group.get("decoupled_weight_decay"):
        kind = DECOUPLED
    places = _places.get(optimizer)
    if places is None:
        places = _places[optimizer] = {}
    state_of = optimizer.state
    taught: list[Tensor] = []
    grads: list[Tensor] = []  # alive during the call
    addresses: list[int] = []
    sizes: list[int] = []
    for number, parameter in enumerate(group["params"]):
        grad = parameter.grad
        if grad is None:
            continue
        state = state_of.get(parameter, NO_STATE) if names else NO_STATE
        place = places.get(number)
        if (
            place is None
            or place.parameter is not parameter
            or place.ids != [*map(id, state.values())]
            or place.addresses != _addresses(parameter, state, names)
            or not parameter.is_contiguous()
        ):
            place = _look(parameter, state, names)
            if place is None:
                return False
            places[number] = place
        if not grad.is_contiguous():
            if grad.layout is not torch.strided:
                return False
            grad = grad.contiguous()  # torch's fused steps would take it for what it is not
        if grad.nbytes != place.bytes:  # torch sees to the shape and the device, not to the type
            return False
        taught.append(parameter)
        grads.append(grad)
        addresses.append(grad.data_ptr())
        addresses += place.addresses
        sizes.append(place.size)
    rule = [group["lr"], group["weight_decay"], group.get("eps", 0.0)]
    rule += group.get("betas", (0.0, 0.0))
    _core.step_dense(_core.OPTIMIZERS[kind], rule, addresses, sizes, torch.get_num_threads())
    torch.autograd.graph.increment_version(taught)  # which torch has not seen change
    for parameter in taught:
        parameter.grad = None
    return True


def _look(parameter: Tensor, state: dict[str, Any], names: tuple[str, ...]) -> Place | None:
    """Where a parameter and its state are; None where the core cannot take them."""
    kept = [state.get(name) for name in names]
    shapes = [torch.Size(()), parameter.shape, parameter.shape][: len(names)]
    if not _is_plain(parameter):
        return None
    for tensor, shape in zip(kept, shapes):
        if not isinstance(tensor, Tensor) or tensor.shape != shape or not _is_plain(tensor):
            return None
    addresses = _addresses(parameter, state, names)
    values = list(state.values())
    ids = [*map(id, values)]
    return Place(parameter, values, ids, addresses, parameter.numel(), parameter.nbytes)


def _addresses(parameter: Tensor, state: dict[str, Any], names: tuple[str, ...]) -> tuple[int, ...]:
    """Of values, number of steps and two states; 0: none."""
    return (parameter.data_ptr(), *(state[name].data_ptr() for name in names), 0, 0, 0)[:4]


def _is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def is_watched(optimizer: Optimizer) -> bool:
    """Whether somebody wants to hear of steps, or scales gradients."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(hooks) or getattr(optimizer, "grad_scale", None) is not None
