"""The kernels of products of pairs against torch's; by Triton's interpreter without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.models.nn.interactions import Dots
from shoal.models.nn.mlp import MLP, Linear, activated

triton_dots = import_kernels("shoal.models.nn.triton_dots")


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    ask_for_interpreter(monkeypatch)


@pytest.mark.parametrize(
    ("number", "dim", "has_first"),
    [(5, 12, True), pytest.param(3, 16, False), pytest.param(27, 64, True, marks=pytest.mark.slow)],
)
def test_pairs_and_their_gradients_are_those_of_torch(number, dim, has_first):
    torch.manual_seed(1)
    vectors = torch.randn(3, number - has_first, dim).to(DEVICE).requires_grad_()
    first = torch.randn(3, dim).to(DEVICE).requires_grad_()
    dots = Dots(number).to(DEVICE)
    both = torch.cat([first.unsqueeze(1), vectors], 1) if has_first else vectors
    want = torch.cat([first, dots(both)], 1) if has_first else dots(both)
    grad = torch.randn_like(want)
    want.backward(grad)
    wanted = vectors.grad, first.grad
    vectors.grad = first.grad = None
    got = triton_dots.DotsOf.apply(first if has_first else None, vectors, False)
    width = want.shape[1]
    assert got.shape[1] % 8 == 0 and not got[:, width:].any()
    got.backward(pad(grad, (0, got.shape[1] - width), value=7.0))
    torch.testing.assert_close(got[:, :width], want, rtol=1e-5, atol=1e-5)
    for one, other in zip((vectors.grad, first.grad), wanted):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    half = triton_dots.DotsOf.apply(first if has_first else None, vectors, True)
    torch.testing.assert_close(half[:, :width].float(), want, rtol=0.02, atol=0.02)


def test_layers_that_activate_what_they_make():
    torch.manual_seed(1)
    layers = MLP([13, 7, 4]).to(DEVICE)
    x, results = torch.randn(6, 13, device=DEVICE, requires_grad=True), []
    for fused in (False, True):
        y = x
        for layer in layers:
            if isinstance(layer, Linear):
                y = (
                    activated(y, layer)
                    if fused
                    else torch.nn.functional.relu(
                        torch.nn.functional.linear(y, layer.weight, layer.bias)
                    )
                )
        y.backward(torch.ones_like(y))
        results.append([y, x.grad, *(p.grad for p in layers.parameters())])
        x.grad = None
        layers.zero_grad()
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
