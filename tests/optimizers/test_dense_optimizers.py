"""Steps of dense parameters, against torch's classes in float64."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from forks import forked
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.optimizers.dense import (
    DENSE_OPTIMIZERS,
    DenseOptimizer,
    make_optimizer,
    restore_state,
    state_tensors,
)

SHAPES = [(), (0,), (1,), (7,), (3, 5), (33, 17), (4, 0, 2), (1027,)]
RATES = [0.05, 0.02, 0.03, 0.001, 0.01, 0.04]
CLASSES: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "sparse_adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}
EVERY = pytest.mark.parametrize("name", CLASSES)


def test_every_optimizer_is_compared() -> None:
    assert CLASSES.keys() == DENSE_OPTIMIZERS.keys()


def parameters_of() -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor | None]:
    """At odd places of one buffer, one transposed; the fourth now and then, the sixth later on."""
    torch.manual_seed(100 + step)
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    views = torch.randn(1 + sum(sizes))[1:].split(sizes)
    found: list[Tensor | None] = [view.view(shape) for view, shape in zip(views, SHAPES)]
    found[4] = found[4].t().contiguous().t()  # type: ignore[union-attr]
    found[3] = None if step % 2 else found[3]
    found[5] = None if step < 3 else found[5]
    return found


def teach(optimizer: DenseOptimizer, steps: range, as_tensor: bool = False) -> None:
    for step in steps:
        for parameter, grad in zip(optimizer.parameters, gradients(step)):
            parameter.grad = grad
        optimizer.step(torch.tensor(RATES[step]) if as_tensor else RATES[step])
        assert all(parameter.grad is None for parameter in optimizer.parameters)


@EVERY
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("as_tensor", [False, True])  # as a step that is recorded has it
def test_the_numbers_are_those_of_torch(name: str, weight_decay: float, as_tensor: bool) -> None:
    optimizer = DenseOptimizer(name, parameters_of(), weight_decay)
    teach(optimizer, range(6), as_tensor)
    exact = [p.detach().double().requires_grad_() for p in parameters_of()]
    torchs = CLASSES[name](exact, lr=1.0, foreach=False, weight_decay=weight_decay)
    for step in range(6):
        for parameter, grad in zip(exact, gradients(step)):
            parameter.grad = None if grad is None else grad.double()
        torchs.param_groups[0]["lr"] = RATES[step]
        torchs.step()
    for ours, theirs in zip(optimizer.parameters, exact):
        torch.testing.assert_close(ours.detach().double(), theirs.detach(), rtol=1e-5, atol=1e-6)
        state = {key: x for key, x in torchs.state.get(theirs, {}).items() if x is not None}
        kept = optimizer.state.get(ours, {})
        assert kept.keys() == state.keys()
        for key, value in kept.items():
            torch.testing.assert_close(value.double(), state[key].double(), rtol=1e-5, atol=1e-6)


@EVERY
def test_a_restored_run_continues_with_the_same_bits(name: str) -> None:
    section = OptimizerSection(name=name, weight_decay=0.1)  # type: ignore[arg-type]
    whole, half, again = (make_optimizer(section, parameters_of()) for _ in range(3))
    assert whole is not None and half is not None and again is not None
    teach(whole, range(6))
    teach(half, range(4))
    teach(again, range(1))  # it has seen other state before
    saved = {key: x.clone() for key, x in state_tensors(half, half.parameters).items()}
    restore_state(again, again.parameters, saved)
    for target, value in zip(again.parameters, half.parameters):
        target.data = value.detach().clone()
    teach(again, range(4, 6))
    assert all(map(torch.equal, whole.parameters, again.parameters))
    left, right = (state_tensors(one, one.parameters) for one in (whole, again))
    assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_gradient_is_the_same_as_a_dense_one() -> None:
    """Adagrad: the first step is lr * sign of the gradient, where there is one."""
    values = torch.nn.Parameter(torch.ones(3))
    values.grad = torch.tensor([0.0, -4.0, 0.0]).to_sparse()
    DenseOptimizer("adagrad", [values]).step(0.5)
    torch.testing.assert_close(values.detach(), torch.tensor([1.0, 1.5, 1.0]))


def use_every_optimizer() -> None:
    for name in DENSE_OPTIMIZERS:
        teach(DenseOptimizer(name, parameters_of()), range(2))
    sys.exit(3 if "torch._dynamo" in sys.modules else 0)


def test_no_optimizer_loads_the_compiler() -> None:
    """It takes as long as torch itself, and nothing is compiled here."""
    process = forked(use_every_optimizer)
    process.start()
    process.join()
    assert process.exitcode == 0
