"""Dropout: gradients, masks of a step and its slices, and the same bits whoever makes them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from drops import needs_core, score
from torch import Tensor, nn

from shoal.kernels.dropout import drop
from shoal.models.nn import dropout as room
from shoal.models.nn.dropout import (
    Dropout,
    begin_slice,
    begin_step,
    draw_key,
    dropout,
    end_steps,
)
from shoal.models.nn.mlp import MLP
from shoal.models.nn.transformer import Transformer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


# --- the function


@needs_core
def test_gradients_are_masked_as_values_were() -> None:
    torch.manual_seed(3)
    x = torch.randn(7, 9, 5, requires_grad=True)
    out = dropout(x, 0.3)
    factor = torch.where(out == 0, 0.0, torch.tensor(1 / 0.7))
    assert torch.equal(out, x * factor)
    assert 0 < int((out == 0).sum()) < out.numel()
    grad = torch.randn(7, 9, 5)
    (got,) = torch.autograd.grad(out, x, grad, create_graph=True)
    assert torch.equal(got, grad * factor)
    out.backward(grad)
    assert x.grad is not None and torch.equal(x.grad, grad * factor)
    # a sum's gradient is one number, seen as many
    (got,) = torch.autograd.grad(dropout(x, 0.3).sum(), x)
    assert torch.equal(got.unique(), torch.tensor([0.0, 1 / 0.7]))


@needs_core
def test_any_layout_is_masked_by_place() -> None:
    torch.manual_seed(4)
    x = torch.randn(6, 10, 14)
    for view in (x.transpose(0, 2), x[:, ::3], x[..., 1:8], x[:1].expand(6, 10, 14)):
        torch.manual_seed(5)
        got = dropout(view, 0.4)
        torch.manual_seed(5)
        assert torch.equal(got, dropout(view.contiguous(), 0.4)) and got.shape == view.shape
    strided = torch.randn(10, 6).t().requires_grad_()
    out = dropout(strided, 0.4)
    grad = torch.randn(10, 6).t()
    out.backward(grad)
    assert strided.grad is not None
    assert torch.equal(strided.grad, torch.where(out == 0, 0.0, grad * (1 / 0.6)))


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    x = torch.randn(5, 4)
    before = torch.default_generator.get_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert Dropout(0.5).eval()(x) is x
    assert dropout(torch.empty(0, 4), 0.5).shape == (0, 4)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_everything_may_be_dropped() -> None:
    x = torch.randn(5, 4, requires_grad=True)
    out = dropout(x, 1.0)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(out, torch.zeros(5, 4)) and torch.equal(x.grad, torch.zeros(5, 4))


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_other_rates_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1"):
        Dropout(p)
    with pytest.raises(ValueError, match=r"between 0 and 1"):
        dropout(torch.ones(3), p)


def in_step(x: Tensor, p: float, first: int = 0, layer: int = 0, step: int = 3) -> Tensor:
    """What a layer of a step makes of x."""
    begin_step(7, step, torch.device("cpu"))
    begin_slice(first)
    for _ in range(layer):
        dropout(x, 0.0)
    return dropout(x, p)


@pytest.fixture(autouse=True)
def outside_of_steps() -> Iterator[None]:
    yield
    end_steps()


# --- masks of a step


@pytest.mark.parametrize("shape", [(30, 7), (30, 3, 5), (30,), (30, 2, 6, 6)])
def test_a_slice_has_the_masks_of_the_whole_batch(shape: tuple[int, ...]) -> None:
    x = 1 + torch.rand(shape)
    whole = in_step(x, 0.5, layer=2)
    for cuts in ([0, 15, 30], [0, 10, 20, 30], [0, 0, 1, 29, 30]):
        parts = [in_step(x[a:b], 0.5, a, layer=2) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_row_prefixes_have_the_masks_of_whole_rows() -> None:
    """By the core, where there is one, and by the definition in torch's integers."""
    x, rows = torch.ones(24, 10), torch.tensor([3, 17, 5])
    for key in (draw_key(x.device, 1)[0], torch.tensor([41])):
        whole = drop(x, 0.4, key, 500)
        made = drop(x[:3, :7].contiguous(), 0.4, key, 50, rows, stride=10)
        assert torch.equal(made, whole[rows, :7])


def test_some_rows_have_the_masks_they_have_among_all_rows() -> None:
    x = 1 + torch.rand(12, 5, 8)  # 12 samples of 5 places
    whole = in_step(x, 0.3).view(60, 8)
    for first, last in ((0, 12), (4, 9)):
        places = torch.tensor([0, 3, 3, 24, 7])
        begin_step(7, 3, torch.device("cpu"))
        begin_slice(first)
        picked = x[first:last].flatten(0, 1)[places]
        assert torch.equal(dropout(picked, 0.3, places, 5), whole[first * 5 + places])


def test_wanted_places_of_a_transformer_have_the_masks_of_all_places() -> None:
    torch.manual_seed(1)
    layers = Transformer(2, 2, 8, 16, 0.4, 0.3, causal=False)
    x, wanted = torch.randn(3, 6, 8), torch.tensor([17, 0, 5, 6])

    def states(which: Tensor | None) -> Tensor:
        begin_step(7, 3, torch.device("cpu"))
        begin_slice(20)
        return layers(x, torch.zeros(3, 6, dtype=torch.bool), which)

    torch.testing.assert_close(states(wanted), states(None).flatten(0, 1)[wanted])


def test_masks_depend_on_the_step_and_not_on_torchs_generator() -> None:
    x = torch.ones(1000)
    torch.manual_seed(1)
    one = in_step(x, 0.5)
    torch.manual_seed(2)
    before = torch.default_generator.get_state()
    assert torch.equal(in_step(x, 0.5), one)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert not torch.equal(in_step(x, 0.5, step=4), one)
    assert not torch.equal(in_step(x, 0.5, layer=1), one)
    assert not torch.equal(in_step(x, 0.5, first=1), one)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_steps_layers_and_samples_are_independent(p: float) -> None:
    x, n = torch.ones(64, 512), 64 * 512

    def seen(**where: int) -> Tensor:
        gone = (in_step(x, p, **where) == 0).double()
        return (gone - p) / (p * (1 - p)) ** 0.5

    here = seen()
    assert score(here) < 5
    for lag in (1, 2, 3, 7, 31):  # samples
        assert score(here[lag:] * here[:-lag]) < 5, lag
    for number in range(1, 40):
        for there in (seen(step=3 + number), seen(layer=number), seen(first=64 * number)):
            assert score(here * there) < 5, number
            flat, other = here.view(n), there.view(n)
            assert score(flat[1:] * other[:-1]) < 5, number


# --- without the core, in other types, compiled, and on a GPU: the same bits


@needs_core
@pytest.mark.parametrize("p", [0.1, 0.5, 1e-12, 1 - 1e-12])
def test_without_the_core_masks_are_the_same(monkeypatch: pytest.MonkeyPatch, p: float) -> None:
    x, places = torch.randn(9, 4, 11), torch.tensor([8, 0, 30])

    def both() -> list[Tensor]:
        made = [in_step(x, p, first, layer) for first in (0, 5, 2**33) for layer in (0, 4)]
        begin_slice(3)
        return [*made, dropout(x[:3], p, places, 4)]

    ours = both()
    monkeypatch.setattr("shoal.kernels.dropout._core", None)
    for want, got in zip(ours, both()):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("by_the_core", [True, False])
def test_other_types_have_the_same_masks(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, by_the_core: bool
) -> None:
    x = 1 + torch.rand(50, 20)
    gone = in_step(x, 0.1) == 0
    if not by_the_core:
        monkeypatch.setattr("shoal.kernels.dropout._core", None)
    got = in_step(x.to(dtype), 0.1)
    want = (x.to(dtype).double() / 0.9).masked_fill(gone, 0.0)
    assert got.dtype == dtype and torch.equal(got == 0, gone)
    torch.testing.assert_close(got.double(), want, rtol=2.0**-8, atol=0.0)


def test_compiled_code_has_the_same_masks() -> None:
    layers = torch.compile(MLP([6, 8, 4], 0.5), backend="eager", fullgraph=True, dynamic=True)
    x = torch.randn(20, 6)

    def pass_over(step: int, first: int, last: int, module: nn.Module) -> Tensor:
        begin_step(7, step, torch.device("cpu"))
        begin_slice(first)
        return module(x[first:last])

    for step in range(3):
        for first, last in ((0, 20), (7, 20), (3, 9)):
            want = pass_over(step, first, last, layers._orig_mod)  # type: ignore[arg-type]
            assert torch.equal(pass_over(step, first, last, layers), want)


def same_on(device: str) -> None:
    """The kernel's values and gradients, in float32 and bfloat16, beside those of this machine."""
    from shoal.kernels.gpu.dropout import Masked

    for x in (torch.randn(9, 4, 11), torch.randn(300, 70), torch.randn(9, 8).t()):
        for first, dtype in ((0, torch.float32), (2**33 + 5, torch.bfloat16)):
            here = x.to(dtype, copy=True).requires_grad_()
            there = x.to(dtype, copy=True).to(device).detach().requires_grad_()
            want = in_step(here, 0.3, first, 2)
            want.sum().backward()
            key = room._key_on(torch.device("cpu"), 2).to(device)
            got = Masked.apply(there, 0.3, key, first * (x.numel() // len(x)), None)
            got.sum().backward()
            assert there.grad is not None and here.grad is not None
            assert torch.equal(got.cpu() == 0, want == 0)
            # The interpreter cuts bfloat16 where others round.
            exact = {"rtol": 0.0 if dtype == torch.float32 else 2.0**-7, "atol": 0.0}
            torch.testing.assert_close(got.cpu(), want, **exact)
            torch.testing.assert_close(there.grad.cpu(), here.grad, **exact)
    places, x = torch.tensor([8, 0, 30]), torch.randn(3, 4, 11)
    begin_slice(3)
    want = dropout(x, 0.5, places, 4)
    key = room._key_on(torch.device("cpu"), 0).to(device)
    got = Masked.apply(x.to(device), 0.5, key, 12, places.to(device))
    assert torch.equal(got.cpu(), want)


def test_the_kernel_has_the_same_masks() -> None:
    pytest.importorskip("triton")
    code = "import test_dropout; test_dropout.same_on('cpu')"
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


@needs_gpu
def test_a_gpu_has_the_same_masks() -> None:
    pytest.importorskip("triton")
    same_on("cuda")


@needs_gpu
@pytest.mark.parametrize("kernel", [True, False])
def test_a_model_has_the_same_masks_on_a_gpu(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    if not kernel:
        for module in ("dropout", "transformer"):
            monkeypatch.setattr(f"shoal.kernels.{module}.makes_masks", lambda _: False)
    torch.manual_seed(1)
    layers = Transformer(2, 2, 16, 32, 0.4, 0.3, causal=True)
    x, wanted = torch.randn(5, 6, 16), torch.tensor([17, 0, 5, 6])
    states = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        begin_step(7, 3, device)
        begin_slice(20)
        states.append(layers.to(device)(x.to(device), wanted=wanted.to(device)).cpu())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-4)
