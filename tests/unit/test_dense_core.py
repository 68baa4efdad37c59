"""Steps of dense parameters by the native core, against torch's own plain loops in float64."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from forks import forked
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.embedding.optim import dense_core
from shoal.embedding.optim.dense import (
    DENSE_OPTIMIZERS,
    dense_step,
    make_optimizer,
    restore_state,
    state_tensors,
)
from shoal.world.core import load_core

CORE = load_core()
# Without the core every step is torch's own, and there is nothing to hold against it.
pytestmark = pytest.mark.skipif(CORE is None, reason="needs the native core")

SHAPES = [(), (0,), (1,), (7,), (3, 5), (33, 17), (4, 0, 2), (1027,)]
RATES = [0.05, 0.02, 0.03, 0.001, 0.01, 0.04]
PLAIN: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "sparse_adam": torch.optim.Adam,
}
EVERY = pytest.mark.parametrize("name", PLAIN)


class Recorder:
    """The core, and how often it was asked for a step."""

    OPTIMIZERS = getattr(CORE, "OPTIMIZERS", None)

    def __init__(self) -> None:
        self.calls = 0

    def step_dense(self, *given: Any) -> None:
        self.calls += 1
        CORE.step_dense(*given)


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(dense_core, "_core", recorder)
    return recorder


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def parameters_of(shapes: list[Any] = SHAPES) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def section_of(name: str, weight_decay: float = 0.1) -> OptimizerSection:
    return OptimizerSection(name=name, weight_decay=weight_decay)  # type: ignore[arg-type]


def gradients(step: int, parameters: list[Tensor]) -> list[Tensor | None]:
    """Views of one buffer, at odd places. The fourth now and then, the sixth from the third on."""
    torch.manual_seed(100 + step)
    sizes = [p.numel() for p in parameters]
    flat = torch.randn(1 + sum(sizes))
    views = flat[1:].split(sizes)
    found: list[Tensor | None] = [v.view(p.shape) for v, p in zip(views, parameters)]
    if step % 2:
        found[3] = None
    if step < 3:
        found[5] = None
    return found


def teach(optimizer: Any, parameters: list[Tensor], steps: range) -> None:
    for step in steps:
        for parameter, grad in zip(parameters, gradients(step, parameters)):
            parameter.grad = grad
        dense_step(optimizer, RATES[step])
        assert all(parameter.grad is None for parameter in parameters)


class Oracle:
    """torch's loops, one parameter after the other, in float64."""

    def __init__(self, name: str, weight_decay: float = 0.1) -> None:
        self.parameters = [p.detach().double().requires_grad_() for p in parameters_of()]
        options = {"fused": False, "foreach": False, "weight_decay": weight_decay}
        self.optimizer = PLAIN[name](self.parameters, lr=1.0, **options)

    def teach(self, steps: range) -> None:
        for step in steps:
            for parameter, grad in zip(self.parameters, gradients(step, self.parameters)):
                parameter.grad = None if grad is None else grad.double()
            self.optimizer.param_groups[0]["lr"] = RATES[step]
            self.optimizer.step()

    def check(self, optimizer: Any, parameters: list[Tensor]) -> None:
        for ours, exact in zip(parameters, self.parameters):
            close(ours, exact)
            state = self.optimizer.state.get(exact, {})
            kept = optimizer.state.get(ours, {})
            assert kept.keys() == {key for key, value in state.items() if value is not None}
            for key, value in kept.items():
                close(value, state[key])


def close(ours: Tensor, exact: Tensor) -> None:
    assert ours.dtype == torch.float32 and ours.shape == exact.shape
    torch.testing.assert_close(ours.detach().double(), exact.double(), rtol=1e-6, atol=1e-6)


@EVERY
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_numbers_are_those_of_torch(name: str, weight_decay: float, core: Recorder) -> None:
    parameters, oracle = parameters_of(), Oracle(name, weight_decay)
    optimizer = make_optimizer(section_of(name, weight_decay), parameters)
    teach(optimizer, parameters, range(6))
    oracle.teach(range(6))
    oracle.check(optimizer, parameters)
    # Adam's first steps of a parameter make its state: the first, that of the sixth parameter.
    assert core.calls == (4 if "adam" in name else 6)


@EVERY
def test_a_restored_run_goes_on_with_the_same_bits(name: str) -> None:
    whole, half, again = parameters_of(), parameters_of(), parameters_of()
    section = section_of(name)
    optimizer = make_optimizer(section, whole)
    teach(optimizer, whole, range(6))
    first, second = make_optimizer(section, half), make_optimizer(section, again)
    teach(first, half, range(4))
    teach(second, again, range(1))  # it has seen other state before
    saved = {key: value.clone() for key, value in state_tensors(first, half).items()}
    restore_state(second, again, saved)
    for target, value in zip(again, half):
        target.data = value.detach().clone()
    teach(second, again, range(4, 6))
    for one, other in zip(whole, again):
        assert torch.equal(one, other)
    left, right = state_tensors(optimizer, whole), state_tensors(second, again)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


@EVERY
def test_state_goes_to_torch_and_comes_back(name: str, core: Recorder) -> None:
    parameters, oracle = parameters_of(), Oracle(name)
    optimizer = make_optimizer(section_of(name), parameters)
    teach(optimizer, parameters, range(3))
    plain = PLAIN[name](parameters, lr=1.0, weight_decay=0.1)
    plain.load_state_dict(optimizer.state_dict())
    for parameter, grad in zip(parameters, gradients(3, parameters)):
        parameter.grad = grad
    plain.param_groups[0]["lr"] = RATES[3]
    plain.step()
    optimizer = make_optimizer(section_of(name), parameters)
    optimizer.load_state_dict(plain.state_dict())  # type: ignore[union-attr]
    before = core.calls
    teach(optimizer, parameters, range(4, 6))
    assert core.calls == before + 2
    oracle.teach(range(6))
    oracle.check(optimizer, parameters)


def test_every_parameter_exports_its_own_count() -> None:
    parameters = parameters_of()
    optimizer = make_optimizer(section_of("adam"), parameters)
    teach(optimizer, parameters, range(5))
    counts = {key: value for key, value in state_tensors(optimizer, parameters).items()}
    counts = {key: value for key, value in counts.items() if key.endswith(".step")}
    assert [float(counts[f"{k}.step"]) for k in range(8)] == [5, 5, 5, 3, 5, 2, 5, 5]
    assert len({value.data_ptr() for value in counts.values()}) == 8


@EVERY
def test_threads_change_nothing(name: str, core: Recorder, two_threads: None) -> None:
    shapes = [(5,), (400_003,), (2,), (100_001,)]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        parameters = parameters_of(shapes)
        optimizer = make_optimizer(section_of(name), parameters)
        for step in range(3):
            torch.manual_seed(step)
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape)
            dense_step(optimizer, 0.01)  # type: ignore[arg-type]
        results.append(parameters)
    assert core.calls >= 4
    for one, two in zip(*results):
        # torch's first step of Adam need not be free of threads
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        assert name not in ("sgd", "adagrad") or torch.equal(one, two)


@EVERY
def test_gradients_in_another_order(name: str, core: Recorder) -> None:
    parameters, oracle = parameters_of(), Oracle(name)
    optimizer = make_optimizer(section_of(name), parameters)
    teach(optimizer, parameters, range(4))
    before = core.calls
    for parameter, grad in zip(parameters, gradients(4, parameters)):
        assert grad is not None
        parameter.grad = grad.t().contiguous().t() if grad.dim() == 2 else grad
    assert not parameters[5].grad.is_contiguous()  # type: ignore[union-attr]
    dense_step(optimizer, RATES[4])  # type: ignore[arg-type]
    teach(optimizer, parameters, range(5, 6))
    assert core.calls == before + 2
    oracle.teach(range(6))
    oracle.check(optimizer, parameters)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients_are_left_to_torch(core: Recorder) -> None:
    """Adagrad: the first step is lr * sign of the gradient, where there is one."""
    values = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(section_of("adagrad", 0.0), [values])
    values.grad = torch.tensor([0.0, -4.0, 0.0]).to_sparse()
    dense_step(optimizer, 0.5)  # type: ignore[arg-type]
    assert core.calls == 0
    torch.testing.assert_close(values.detach(), torch.tensor([1.0, 1.5, 1.0]))


def test_settings_that_the_core_does_not_know(core: Recorder) -> None:
    values = torch.nn.Parameter(torch.ones(3))
    for optimizer in (
        torch.optim.SGD([values], lr=0.1, momentum=0.9),
        torch.optim.Adam([values], amsgrad=True),
        torch.optim.Adam([values], betas=(0.9, 0.0)),  # what is left of m + (g - m) * 1
        torch.optim.RMSprop([values]),
        torch.optim.SGD([{"params": [values]}, {"params": [torch.ones(2)]}]),
        torch.optim.SGD([torch.ones(3, dtype=torch.float64)]),
    ):
        for _ in range(2):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            before = optimizer.param_groups[0]["params"][0].detach().clone()
            dense_step(optimizer, 0.1)
            assert (optimizer.param_groups[0]["params"][0] < before).all()
    assert core.calls == 0


def test_adam_that_is_told_to_decouple(core: Recorder) -> None:
    """torch has it as a setting of the group, which comes along with a state."""
    one, two = parameters_of([(9,)]), parameters_of([(9,)])
    adamw = torch.optim.AdamW(one, weight_decay=0.3)
    adam = torch.optim.Adam(two, weight_decay=0.3)
    adam.load_state_dict(adamw.state_dict())
    for step in range(4):
        for optimizer, parameters in ((adamw, one), (adam, two)):
            parameters[0].grad = torch.full((9,), 0.5 + step)
            dense_step(optimizer, 0.1)
    assert core.calls == 6 and torch.equal(one[0], two[0])


def test_somebody_who_asked_hears_of_the_step(core: Recorder) -> None:
    values = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([values], lr=0.1)
    heard = []
    optimizer.register_step_post_hook(lambda *_: heard.append(1))
    values.grad = torch.ones(3)
    dense_step(optimizer, 0.1)
    assert heard == [1] and core.calls == 0


def test_autograd_learns_that_values_changed(core: Recorder) -> None:
    values = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([values], lr=0.1)
    loss = (values * values).sum()
    values.grad = torch.ones(3)
    dense_step(optimizer, 0.1)
    assert core.calls == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@EVERY
def test_without_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_core, "_core", None)
    parameters, oracle = parameters_of(), Oracle(name)
    optimizer = make_optimizer(section_of(name), parameters)
    teach(optimizer, parameters, range(6))
    oracle.teach(range(6))
    oracle.check(optimizer, parameters)


def test_moved_parameters_are_found_again(core: Recorder) -> None:
    values = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([values], lr=0.1)
    for target in (torch.ones(3), torch.zeros(3), torch.full((5,), 2.0)):
        values.data = target
        values.grad = torch.ones_like(target)
        dense_step(optimizer, 0.5)
    assert core.calls == 3 and values.tolist() == [1.5] * 5


def test_moved_state_is_found_again(core: Recorder) -> None:
    """Also where a tensor stays the same and its memory does not."""
    moved, still = parameters_of([(9,)]), parameters_of([(9,)])
    optimizers = [torch.optim.Adagrad(one) for one in (moved, still)]
    for step in range(6):
        for optimizer, (parameter,) in zip(optimizers, (moved, still)):
            parameter.grad = torch.full((9,), 0.5 + step)
            dense_step(optimizer, 0.1)
        total = optimizers[0].state[moved[0]]["sum"]
        total.set_(total.clone())
    assert core.calls == 12 and torch.equal(moved[0], still[0])


def test_a_transposed_parameter_is_left_to_torch(core: Recorder) -> None:
    values = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([values], lr=1.0)
    for _ in range(2):
        values.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        dense_step(optimizer, 1.0)
        values.data = values.data.t()
    assert core.calls == 1 and values.tolist() == [[-2.0, -5.0], [-5.0, -8.0]]


def use_every_optimizer() -> None:
    for name in DENSE_OPTIMIZERS:
        parameters = parameters_of()
        optimizer = make_optimizer(section_of(name), parameters)
        assert optimizer is not None
        teach(optimizer, parameters, range(2))
    sys.exit(3 if "torch._dynamo" in sys.modules else 0)


def test_no_optimizer_loads_the_compiler() -> None:
    """It takes as long as torch itself, and nothing is compiled here."""
    process = forked(use_every_optimizer)
    process.start()
    process.join()
    assert process.exitcode == 0
