"""Kernels of dense layers against torch's; by Triton's interpreter without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.models.nn.interactions import Dots
from shoal.models.nn.mlp import MLP, Linear, activated

triton_dots, triton_relu, triton_spread = (
    import_kernels(f"shoal.kernels.gpu.{name}") for name in ("dots", "relu", "spread")
)


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    ask_for_interpreter(monkeypatch)


@pytest.mark.parametrize(
    ("number", "dim"), [(5, 12), (3, 16), pytest.param(27, 64, marks=pytest.mark.slow)]
)
def test_pairs_and_their_gradients_are_those_of_torch(number, dim):
    torch.manual_seed(1)
    vectors = torch.randn(3, number - 1, dim).to(DEVICE).requires_grad_()
    first = torch.randn(3, dim).to(DEVICE).requires_grad_()
    dots = Dots(number).to(DEVICE)
    want = torch.cat([first, dots(torch.cat([first.unsqueeze(1), vectors], 1))], 1)
    grad = torch.randn_like(want)
    want.backward(grad)
    wanted = vectors.grad, first.grad
    vectors.grad = first.grad = None
    got = triton_dots.DotsOf.apply(first, vectors, False)
    width = want.shape[1]
    assert got.shape[1] % 8 == 0 and not got[:, width:].any()
    got.backward(pad(grad, (0, got.shape[1] - width), value=7.0))
    torch.testing.assert_close(got[:, :width], want, rtol=1e-5, atol=1e-5)
    for one, other in zip((vectors.grad, first.grad), wanted):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    half = triton_dots.DotsOf.apply(first, vectors, True)
    torch.testing.assert_close(half[:, :width].float(), want, rtol=0.02, atol=0.02)


def test_linear_layers_with_relu():
    torch.manual_seed(1)
    layers = MLP([13, 7, 4]).to(DEVICE)
    x, results = torch.randn(6, 13, device=DEVICE, requires_grad=True), []
    for run in (activated, lambda y, layer: layer(y).relu()):
        y = x
        for layer in layers:
            if isinstance(layer, Linear):
                y = run(y, layer)
        y.backward(torch.ones_like(y))
        results.append([y, x.grad, *(p.grad for p in layers.parameters())])
        x.grad = None
        layers.zero_grad()
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_vectors_spread_over_a_graph_as_by_torch():
    torch.manual_seed(1)
    lengths = torch.tensor([3, 0, 70, 32, 1])
    starts = pad(lengths.cumsum(0), (1, 0)).to(DEVICE)
    neighbours = torch.randint(0, 5, (int(lengths.sum()),), device=DEVICE)
    weights, x = torch.rand(len(neighbours), device=DEVICE), torch.randn(5, 12, device=DEVICE)
    got = triton_spread.spread(x, triton_spread.Pieces.of(starts), neighbours, weights)
    want = torch.zeros(5, 12, device=DEVICE)
    node = torch.arange(5).repeat_interleave(lengths).to(DEVICE)
    want.index_add_(0, node, x[neighbours] * weights[:, None])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "width"), [(70, 200), (1, 3), (40, 64)])
def test_gradients_through_a_relu_and_their_sums(count, width, dtype, monkeypatch):
    monkeypatch.setattr(triton_relu, "PROGRAMS", 2)
    torch.manual_seed(1)
    out, grad = torch.randn(2, count, width, device=DEVICE).to(dtype).unbind()
    got, sums = triton_relu.relu_backward(grad, out)
    want = grad * (out > 0)
    assert torch.equal(got, want) and sums.dtype == dtype
    torch.testing.assert_close(sums, want.float().sum(0).to(dtype), rtol=1e-2, atol=1e-4)
